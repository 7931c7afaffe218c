"""The policy: a decoder whose weights lie on the mesh, with or without adapters; saved and loaded.

A stage's weights are one safetensors file: the adapters alone where only they were trained, everything
otherwise, beside a `policy.json` that says what they belong to.
"""

import dataclasses
import hashlib
import json
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import safetensors.numpy
from etils import epath

from acesearch_jax import files
from acesearch_jax.errors import UserError
from acesearch_jax.models import lora
from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.models.decoder import abstract_params
from acesearch_jax.models.loading import LoadedModel
from acesearch_jax.sharding.rules import named_shardings
from acesearch_jax.training.state import add_adapters

Params = Any

_WEIGHTS, _DESCRIPTION = 'weights.safetensors', 'policy.json'
_NOTED = (
    'model', 'tokenizer', 'fingerprint', 'base_fingerprint', 'lora_rank', 'lora_alpha', 'agent'
)  # fmt: skip
_REMEDY = (
    'delete its folder and start the run again, which trains this stage anew, or restore it from a copy'
)


@dataclasses.dataclass(frozen=True)
class Policy:
  """Weights that can be trained and sampled from.

  Attributes:
    config: of the decoder, adapters included.
    params: the whole tree, on the mesh.
    fingerprint: of every weight, 16 hex digits; equal weights have equal ones.
    base_fingerprint: of the weights under the adapters; the same as `fingerprint` without adapters.
  """

  config: DecoderConfig
  params: Params
  fingerprint: str
  base_fingerprint: str


def weights_fingerprint(params: Params) -> str:
  """16 hex digits of the SHA-256 over all leaves in the order of their paths."""
  digest = hashlib.sha256()
  for path, leaf in sorted(flax.traverse_util.flatten_dict(params, sep='/').items()):
    leaf = np.ascontiguousarray(leaf)
    digest.update(f'{path} {leaf.dtype} {leaf.shape}\n'.encode())
    digest.update(leaf.tobytes())
  return digest.hexdigest()[:16]


def make_policy(config: DecoderConfig, trainable: Params, frozen: Params, base_fingerprint: str) -> Policy:
  """A policy from the two halves of a training state.

  Args:
    config: of the decoder.
    trainable: the adapters, or everything.
    frozen: what the adapters sit on, {} without adapters.
    base_fingerprint: of `frozen`.
  """
  own = weights_fingerprint(trainable)
  fingerprint = hashlib.sha256(f'{base_fingerprint} {own}'.encode()).hexdigest()[:16] if frozen else own
  return Policy(config, lora.join(trainable, frozen), fingerprint, base_fingerprint if frozen else own)


def base_policy(
    model: LoadedModel, lora_rank: int, lora_alpha: float, remat: bool, seed: int, mesh: jax.sharding.Mesh
) -> Policy:
  """A loaded model on the mesh, with fresh adapters (whose update is zero) where it is to have some."""
  config = model.config.replace(remat=remat)
  shapes, axes = abstract_params(config)
  params = jax.device_put(model.params, named_shardings(shapes, axes, mesh))
  base_fingerprint = weights_fingerprint(model.params)
  if not lora_rank:
    return Policy(config, params, base_fingerprint, base_fingerprint)
  config = config.replace(lora_rank=lora_rank, lora_alpha=lora_alpha)
  params = add_adapters(params, config, jax.random.key(seed), mesh)
  return make_policy(config, *lora.split_trainable(params, config), base_fingerprint)


def merged_params(policy: Policy, mesh: jax.sharding.Mesh) -> Params:
  """Parameters with the adapters folded in, sharded over the mesh: what a sampler takes."""
  if not policy.config.lora_rank:
    return policy.params
  shapes, axes = abstract_params(policy.config.replace(lora_rank=0))
  merge = jax.jit(
      lambda params: lora.merge(params, policy.config), out_shardings=named_shardings(shapes, axes, mesh)
  )
  return merge(policy.params)


def save_policy(
    folder: epath.PathLike, policy: Policy, model: LoadedModel, agent_options: dict[str, Any]
) -> None:
  """Writes the weights that `model` lacks: the adapters, or everything.

  Args:
    folder: where.
    policy: the weights.
    model: what they belong to.
    agent_options: how the agent was run in training (JSON); kept for who loads the weights.

  Raises:
    UserError: the disk is full or the folder cannot be written.
  """
  folder = epath.Path(folder)
  trainable, _ = lora.split_trainable(policy.params, policy.config)
  flat = flax.traverse_util.flatten_dict(trainable, sep='/')
  arrays = {path: np.ascontiguousarray(leaf) for path, leaf in flat.items()}
  files.write_bytes(folder / _WEIGHTS, safetensors.numpy.save(arrays))
  description = {
      'model': model.name,
      'tokenizer': model.tokenizer.fingerprint,
      'fingerprint': policy.fingerprint,
      'base_fingerprint': policy.base_fingerprint,
      'lora_rank': policy.config.lora_rank,
      'lora_alpha': policy.config.lora_alpha,
      'agent': agent_options,
  }
  files.write_json(folder / _DESCRIPTION, description)


def is_policy_folder(folder: epath.PathLike) -> bool:
  """Whether `save_policy` wrote there."""
  return (epath.Path(folder) / _DESCRIPTION).exists()


def policy_description(folder: epath.PathLike) -> dict[str, Any]:
  """What `save_policy` noted: model, lora_rank, lora_alpha, fingerprints.

  Raises:
    UserError: it is missing or broken.
  """
  path = epath.Path(folder) / _DESCRIPTION
  try:
    description = json.loads(path.read_bytes())
    missing = [name for name in _NOTED if name not in description]
    if missing:
      raise ValueError(f'it lacks {missing[0]}')
  except (OSError, TypeError, ValueError) as error:
    raise UserError(f'{path} is missing or damaged ({error}); {_REMEDY}.') from error
  return description


def restore_policy(folder: epath.PathLike, base: Policy, mesh: jax.sharding.Mesh) -> Policy:
  """The saved weights over those of `base`.

  Args:
    folder: where `save_policy` wrote.
    base: the model the weights belong to, made with the saved `lora_rank` and `lora_alpha`.
    mesh: where to put them.

  Raises:
    UserError: the file is cut short, or the weights belong to another model.
  """
  folder = epath.Path(folder)
  try:
    flat = safetensors.numpy.load((folder / _WEIGHTS).read_bytes())
  except (OSError, ValueError, safetensors.SafetensorError) as error:
    raise UserError(f'{folder / _WEIGHTS} is missing or damaged ({error}); {_REMEDY}.') from error
  description = policy_description(folder)
  if description['base_fingerprint'] != base.base_fingerprint and base.config.lora_rank:
    raise UserError(f"{folder} was trained on other weights of '{description['model']}' than those given.")
  expected, frozen = lora.split_trainable(base.params, base.config)
  shapes = {path: leaf.shape for path, leaf in flax.traverse_util.flatten_dict(expected, sep='/').items()}
  if shapes != {path: array.shape for path, array in flat.items()}:
    raise UserError(f'{folder / _WEIGHTS} does not fit the model {description["model"]!r}; {_REMEDY}.')
  trainable = jax.tree.map(
      lambda array, like: jax.device_put(array, like.sharding),
      flax.traverse_util.unflatten_dict(flat, sep='/'),
      expected,
  )
  policy = make_policy(base.config, trainable, frozen, base.base_fingerprint)
  if policy.fingerprint != description['fingerprint']:
    raise UserError(f'{folder / _WEIGHTS} is damaged: its fingerprint differs; {_REMEDY}.')
  return policy
