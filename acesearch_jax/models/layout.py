"""Where each tensor of a published checkpoint goes in the parameter tree.

Published layouts store a linear map as [out, in], one tensor a layer, with heads flattened; the tree
holds [L, *in, *out], heads apart.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import flax.traverse_util
import numpy as np

from acesearch_jax.errors import UserError
from acesearch_jax.models.config import DecoderConfig

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Tensor:
  """One parameter.

  Attributes:
    path: in the tree.
    hf: its name in Hugging Face checkpoints; '{i}' is the layer.
    gguf: its name in GGUF files.
    shape: in the tree, without the layer axis.
    inputs: how many leading axes are inputs of a linear map; 0 for what is no linear map.
    rotary_heads: number of heads of a query or key map, whose rows GGUF permutes; 0 for the others.
  """

  path: tuple[str, ...]
  hf: str
  gguf: str
  shape: tuple[int, ...]
  inputs: int = 0
  rotary_heads: int = 0

  @property
  def layered(self) -> bool:
    return self.path[0] == 'layers'

  @property
  def stored_shape(self) -> tuple[int, ...]:
    """Shape in a published checkpoint."""
    if self.inputs:
      return math.prod(self.shape[self.inputs :]), math.prod(self.shape[: self.inputs])
    if self.path[-1] == 'bias':
      return (math.prod(self.shape),)
    return self.shape

  def from_stored(self, array: np.ndarray) -> np.ndarray:
    """[out, in] to [*in, *out]."""
    return (array.T if self.inputs else array).reshape(self.shape)

  def to_stored(self, array: np.ndarray) -> np.ndarray:
    """[*in, *out] to [out, in], contiguous."""
    stored = array.reshape(self.stored_shape[::-1]).T if self.inputs else array.reshape(self.stored_shape)
    # A transposed view would be written in the wrong order.
    return np.ascontiguousarray(stored)


def tensors(config: DecoderConfig) -> list[Tensor]:
  """Every parameter of a model, in checkpoint order."""
  width, mlp, vocab = config.width, config.mlp_width, config.vocab_size
  heads, kv_heads = (config.num_heads, config.head_dim), (config.num_kv_heads, config.head_dim)

  def layer(path: str, hf: str, gguf: str, shape: tuple[int, ...], inputs: int = 0, rotary_heads: int = 0):
    names = f'model.layers.{{i}}.{hf}', f'blk.{{i}}.{gguf}'
    return Tensor(('layers', *path.split('/')), *names, shape, inputs, rotary_heads)

  table = [
      Tensor(('embed', 'embedding'), 'model.embed_tokens.weight', 'token_embd.weight', (vocab, width)),
      layer('attention_norm/scale', 'input_layernorm.weight', 'attn_norm.weight', (width,)),
      layer('mlp_norm/scale', 'post_attention_layernorm.weight', 'ffn_norm.weight', (width,)),
      layer('attention/out/kernel', 'self_attn.o_proj.weight', 'attn_output.weight', (*heads, width), 2),
      layer('mlp/gate/kernel', 'mlp.gate_proj.weight', 'ffn_gate.weight', (width, mlp), 1),
      layer('mlp/up/kernel', 'mlp.up_proj.weight', 'ffn_up.weight', (width, mlp), 1),
      layer('mlp/down/kernel', 'mlp.down_proj.weight', 'ffn_down.weight', (mlp, width), 1),
      Tensor(('final_norm', 'scale'), 'model.norm.weight', 'output_norm.weight', (width,)),
  ]
  for name, shape, rotary_heads in (
      ('query', heads, heads[0]), ('key', kv_heads, kv_heads[0]), ('value', kv_heads, 0)
  ):
    hf, gguf = f'self_attn.{name[0]}_proj', f'attn_{name[0]}'
    path = f'attention/{name}'
    table.append(layer(f'{path}/kernel', f'{hf}.weight', f'{gguf}.weight', (width, *shape), 1, rotary_heads))
    if config.qkv_bias:
      table.append(layer(f'{path}/bias', f'{hf}.bias', f'{gguf}.bias', shape))
  if not config.tie_embeddings:
    table.append(Tensor(('head', 'kernel'), 'lm_head.weight', 'output.weight', (width, vocab), 1))
  return table


def build(config: DecoderConfig, read: Callable[[Tensor, int], np.ndarray]) -> Params:
  """Fills a float32 tree.

  Args:
    config: the model's shape.
    read: gets a tensor and a layer (0 where there is none), returns it in its stored shape.
  """
  flat = {}
  for tensor in tensors(config):
    if not tensor.layered:
      flat[tensor.path] = np.ascontiguousarray(tensor.from_stored(read(tensor, 0)), np.float32)
      continue
    # The last layer first, and before any memory is taken: a wrong shape or depth is met at once.
    last = read(tensor, config.num_layers - 1)
    stacked = np.empty((config.num_layers, *tensor.shape), np.float32)
    stacked[-1] = tensor.from_stored(last)
    for i in range(config.num_layers - 1):
      stacked[i] = tensor.from_stored(read(tensor, i))
    flat[tensor.path] = stacked
  return flax.traverse_util.unflatten_dict(flat)


def flatten(config: DecoderConfig, params: Params) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (Hugging Face name, array in its stored shape) of every parameter.

  Raises:
    UserError: the tree has other parameters or shapes than the config says.
  """
  flat = flax.traverse_util.flatten_dict(params)
  table = tensors(config)
  expected = {
      tensor.path: ((config.num_layers,) if tensor.layered else ()) + tensor.shape for tensor in table
  }
  found = {path: tuple(leaf.shape) for path, leaf in flat.items()}
  if expected != found:
    wrong = sorted(path for path in expected | found if expected.get(path) != found.get(path))
    raise UserError(
        f'The parameters do not fit the model: {"/".join(wrong[0])} is {found.get(wrong[0], "absent")} '
        f'instead of {expected.get(wrong[0], "absent")}; merge adapters, and use the model they came from.'
    )
  for tensor in table:
    leaf = np.asarray(flat[tensor.path])
    if not tensor.layered:
      yield tensor.hf, tensor.to_stored(leaf)
      continue
    for i in range(config.num_layers):
      yield tensor.hf.format(i=i), tensor.to_stored(leaf[i])
