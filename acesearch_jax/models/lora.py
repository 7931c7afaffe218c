"""Low-rank adapters: which parameters train, and folding them into the weights (arXiv 2106.09685)."""

from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp

from acesearch_jax.models.config import DecoderConfig

Params = Any
ADAPTER_NAMES = ('lora_a', 'lora_b')


def split_trainable(params: Params, config: DecoderConfig) -> tuple[Params, Params]:
  """Splits a tree into (trainable, frozen): the adapters and the rest, or everything and {}."""
  if not config.lora_rank:
    return params, {}
  flat = flax.traverse_util.flatten_dict(params)
  trainable = {path: leaf for path, leaf in flat.items() if path[-1] in ADAPTER_NAMES}
  frozen = {path: leaf for path, leaf in flat.items() if path[-1] not in ADAPTER_NAMES}
  return flax.traverse_util.unflatten_dict(trainable), flax.traverse_util.unflatten_dict(frozen)


def join(trainable: Params, frozen: Params) -> Params:
  """The whole tree again; the inverse of `split_trainable`."""
  flat = flax.traverse_util.flatten_dict(frozen) | flax.traverse_util.flatten_dict(trainable)
  return flax.traverse_util.unflatten_dict(flat)


def merge(params: Params, config: DecoderConfig) -> Params:
  """Folds every adapter into its kernel: W + (alpha / R) · A·B, and drops the adapters.

  Args:
    params: scanned tree; kernels [L, *inputs, *outputs], lora_a [L, *inputs, R], lora_b [L, R, *outputs].
    config: of the model that has the adapters.

  Returns:
    A tree for `config.replace(lora_rank=0)`, same dtypes.
  """
  if not config.lora_rank:
    return params
  scale = config.lora_alpha / config.lora_rank
  flat = flax.traverse_util.flatten_dict(params)
  merged = {}
  for path, leaf in flat.items():
    if path[-1] in ADAPTER_NAMES:
      continue
    down = flat.get((*path[:-1], 'lora_a'))
    if path[-1] == 'kernel' and down is not None:
      up = flat[(*path[:-1], 'lora_b')]
      product = jax.vmap(lambda a, b: jnp.tensordot(a.astype(jnp.float32), b.astype(jnp.float32), axes=1))
      leaf = (leaf.astype(jnp.float32) + scale * product(down, up)).astype(leaf.dtype)
    merged[path] = leaf
  return flax.traverse_util.unflatten_dict(merged)
