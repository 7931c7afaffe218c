"""The decoder: a Llama-family transformer in Flax Linen.

The module maps token ids to final hidden states; `unembed` maps hidden states to logits apart from
it, so that a loss can take the vocabulary in chunks. The KV cache is no module state: past keys and
values come in as arrays and the new ones go out, and what holds them (pages, a dense buffer) is the
sampler's business.

Dimension letters: B batch, T new tokens, S past slots, D width, N query heads, K key/value heads,
H head dimension, F MLP width, V vocabulary, L layers, R LoRA rank.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.sharding.rules import constrain, logical_axes, named_shardings

Params = Any


@flax.struct.dataclass
class Past:
  """A block of keys and values that new tokens may look back on.

  Attributes:
    keys: [L, B, S, K, H] (rotary embedding applied), or a tuple of L arrays [B, S, K, H].
    values: like keys.
    valid: [B, S] bool, slots that hold a token.
  """

  keys: Any
  values: Any
  valid: jax.Array


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _einsum(spec: str, dtype: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
  """einsum with operands in `dtype` and float32 accumulation, in the backward pass too.

  Without the custom rule the cotangent of a bfloat16 product is float32, and both backward products
  leave the fast path. The kernel's gradient comes back in the kernel's own dtype, unrounded.
  """
  out = jnp.einsum(spec, x.astype(dtype), kernel.astype(dtype), preferred_element_type=jnp.float32)
  return out.astype(dtype)


def _einsum_forward(spec, dtype, x, kernel):
  return _einsum(spec, dtype, x, kernel), (x, kernel)


def _einsum_backward(spec, dtype, residuals, cotangent):
  x, kernel = residuals
  operands, out = spec.split('->')
  x_axes, kernel_axes = operands.split(',')
  cotangent = cotangent.astype(dtype)
  product = partial(jnp.einsum, preferred_element_type=jnp.float32)
  dx = product(f'{out},{kernel_axes}->{x_axes}', cotangent, kernel.astype(dtype))
  dkernel = product(f'{x_axes},{out}->{kernel_axes}', x.astype(dtype), cotangent)
  return dx.astype(x.dtype), dkernel.astype(kernel.dtype)


_einsum.defvjp(_einsum_forward, _einsum_backward)


class Projection(nn.Module):
  """A linear map between (possibly split) axes, with an optional bias and low-rank update.

  Maps [B, T, *inputs] to [B, T, *outputs]; the kernel is [*inputs, *outputs].
  """

  config: DecoderConfig
  inputs: tuple[int, ...]
  outputs: tuple[int, ...]
  input_axes: tuple[str, ...]
  output_axes: tuple[str, ...]
  use_bias: bool = False

  def _param(self, name: str, init: Callable, shape: Sequence[int], axes: Sequence[str]) -> jax.Array:
    init = nn.with_logical_partitioning(init, tuple(axes))
    return self.param(name, init, tuple(shape), self.config.param_dtype)

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    config = self.config
    a, b = 'ij'[: len(self.inputs)], 'kl'[: len(self.outputs)]
    fan_in_init = nn.initializers.normal(1 / math.sqrt(math.prod(self.inputs)))
    shape, axes = self.inputs + self.outputs, self.input_axes + self.output_axes
    kernel = self._param('kernel', fan_in_init, shape, axes)
    y = _einsum(f'bt{a},{a}{b}->bt{b}', config.dtype, x, kernel)
    if self.use_bias:
      y += self._param('bias', nn.initializers.zeros, self.outputs, self.output_axes).astype(config.dtype)
    if config.lora_rank:
      rank = (config.lora_rank,)
      down = self._param('lora_a', fan_in_init, self.inputs + rank, self.input_axes + ('rank',))
      up = self._param('lora_b', nn.initializers.zeros, rank + self.outputs, ('rank',) + self.output_axes)
      low = _einsum(f'bt{a},{a}r->btr', config.dtype, x, down)
      y += _einsum(f'btr,r{b}->bt{b}', config.dtype, low, up) * (config.lora_alpha / config.lora_rank)
    return y


class RMSNorm(nn.Module):
  """x / rms(x) · scale over the last axis, computed in float32 (arXiv 1910.07467)."""

  config: DecoderConfig

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    init = nn.with_logical_partitioning(nn.initializers.ones, (None,))
    scale = self.param('scale', init, (x.shape[-1],), self.config.param_dtype)
    x = x.astype(jnp.float32)
    x *= jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.config.norm_eps)
    return (x * scale).astype(self.config.dtype)


def rotary(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
  """Rotary position embedding in the half-split layout (arXiv 2104.09864).

  Args:
    x: [B, T, heads, H].
    positions: [B, T] int32, place of each token in its sequence.
    theta: base of the frequencies.
  """
  half = x.shape[-1] // 2
  frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
  angles = positions[..., None, None].astype(jnp.float32) * frequencies  # [B, T, 1, H/2]
  sin, cos = jnp.sin(angles), jnp.cos(angles)
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def attend(
    query: jax.Array,
    blocks: Sequence[tuple[jax.Array, jax.Array, jax.Array]],
    dtype: str,
) -> jax.Array:
  """Grouped-query attention over several blocks of keys with one softmax.

  Args:
    query: [B, T, N, H].
    blocks: (keys [B, S, K, H], values [B, S, K, H], mask [B, T, S] bool, True where visible).
    dtype: of the matmul operands; scores and softmax are float32.

  Returns:
    [B, T, N, H] in `dtype`. Every query must see at least one key.
  """
  batch, length, heads, dim = query.shape
  kv_heads = blocks[0][0].shape[2]
  grouped = query.reshape(batch, length, kv_heads, heads // kv_heads, dim)
  scores = []
  for keys, _, mask in blocks:
    score = jnp.einsum('btkgh,bskh->bkgts', grouped, keys.astype(dtype), preferred_element_type=jnp.float32)
    scores.append(jnp.where(mask[:, None, None], score * dim**-0.5, -1e30))
  weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1).astype(dtype)
  out, start = 0.0, 0
  for keys, values, _ in blocks:
    part = weights[..., start : start + keys.shape[1]]
    start += keys.shape[1]
    out += jnp.einsum('bkgts,bskh->btkgh', part, values.astype(dtype), preferred_element_type=jnp.float32)
  return out.astype(dtype).reshape(query.shape)


class Attention(nn.Module):
  config: DecoderConfig

  @nn.compact
  def __call__(self, x, positions, mask, past, past_masks):
    """Self-attention over earlier blocks and, causally, over the new tokens.

    Args:
      x: [B, T, D].
      positions: [B, T] int32.
      mask: [B, T, T] bool, which new tokens each new token sees.
      past: tuple of (keys, values) blocks, each [B, S, K, H].
      past_masks: tuple of [B, S] bool, one a block.

    Returns:
      The output [B, T, D] and the new tokens' (keys, values), [B, T, K, H] each.
    """
    config = self.config
    heads, kv_heads = (config.num_heads, config.head_dim), (config.num_kv_heads, config.head_dim)
    project = partial(Projection, config, (config.width,), input_axes=('embed',), use_bias=config.qkv_bias)
    query = project(heads, output_axes=('heads', 'head_dim'), name='query')(x)
    key = project(kv_heads, output_axes=('kv_heads', 'head_dim'), name='key')(x)
    value = project(kv_heads, output_axes=('kv_heads', 'head_dim'), name='value')(x)
    query = rotary(query, positions, config.rope_theta)
    key = rotary(key, positions, config.rope_theta)
    query = constrain(query, 'batch', 'length', 'heads', 'head_dim')
    blocks = [
        (keys, values, jnp.broadcast_to(valid[:, None, :], (*positions.shape, valid.shape[-1])))
        for (keys, values), valid in zip(past, past_masks, strict=True)
    ]
    out = attend(query, [*blocks, (key, value, mask)], config.dtype)
    out = Projection(config, heads, (config.width,), ('heads', 'head_dim'), ('embed',), name='out')(out)
    return out, (key, value)


class MLP(nn.Module):
  """SwiGLU (arXiv 2002.05202)."""

  config: DecoderConfig

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    config = self.config
    wide = partial(Projection, config, (config.width,), (config.mlp_width,), ('embed',), ('mlp',))
    hidden = nn.silu(wide(name='gate')(x)) * wide(name='up')(x)
    hidden = constrain(hidden, 'batch', 'length', 'mlp')
    return Projection(config, (config.mlp_width,), (config.width,), ('mlp',), ('embed',), name='down')(hidden)


class Block(nn.Module):
  """One layer: x + attention(norm(x)), then x + mlp(norm(x))."""

  config: DecoderConfig

  @nn.compact
  def __call__(self, x, past, positions, mask, past_masks):
    attended, new = Attention(self.config, name='attention')(
        RMSNorm(self.config, name='attention_norm')(x), positions, mask, past, past_masks
    )
    x = constrain(x + attended, 'batch', 'length', 'activation')
    x += MLP(self.config, name='mlp')(RMSNorm(self.config, name='mlp_norm')(x))
    return constrain(x, 'batch', 'length', 'activation'), new


class Decoder(nn.Module):
  """Token ids to final hidden states."""

  config: DecoderConfig

  @nn.compact
  def __call__(
      self,
      tokens: jax.Array,
      positions: jax.Array,
      segment_ids: jax.Array | None = None,
      past: tuple[Past, ...] = (),
  ) -> tuple[jax.Array, tuple[Any, Any]]:
    """Runs the stack.

    Rows are padded on the right: causal masking alone keeps padding out of every real token, and what
    comes out at padding is never read.

    Args:
      tokens: [B, T] int32.
      positions: [B, T] int32, place of each token in its own sequence (past tokens counted).
      segment_ids: [B, T] int32 where rows are packed: tokens see their own segment only.
      past: blocks of earlier keys and values, all visible where valid.

    Returns:
      Hidden states after the last norm, [B, T, D] in config.dtype, and the new (keys, values):
      [L, B, T, K, H] each when scanned, tuples of L arrays [B, T, K, H] when unrolled.
    """
    config = self.config
    init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ('vocab', 'embed'))
    embedding = nn.Embed(
        config.vocab_size, config.width, embedding_init=init, param_dtype=config.param_dtype, name='embed'
    ).embedding
    x = constrain(embedding.astype(config.dtype)[tokens], 'batch', 'length', 'activation')
    if not config.tie_embeddings:
      Head(config, name='head')()  # declared here, applied by `unembed`
    length = tokens.shape[1]
    mask = jnp.broadcast_to(jnp.tri(length, dtype=bool), (tokens.shape[0], length, length))
    if segment_ids is not None:
      mask &= segment_ids[:, :, None] == segment_ids[:, None, :]
    past_masks = tuple(block.valid for block in past)
    block_type = nn.remat(Block, prevent_cse=not config.scan_layers) if config.remat else Block
    if config.scan_layers:
      stack = nn.scan(
          block_type,
          variable_axes={'params': 0},
          split_rngs={'params': True},
          in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
          length=config.num_layers,
          metadata_params={nn.PARTITION_NAME: 'layers'},
      )(config, name='layers')
      key_values = tuple((block.keys, block.values) for block in past)
      x, new = stack(x, key_values, positions, mask, past_masks)
    else:
      layers = []
      for i in range(config.num_layers):
        key_values = tuple((block.keys[i], block.values[i]) for block in past)
        x, layer = block_type(config, name=f'layers_{i}')(x, key_values, positions, mask, past_masks)
        layers.append(layer)
      new = tuple(zip(*layers, strict=True))
    return RMSNorm(config, name='final_norm')(x), new


class Head(nn.Module):
  """The untied output kernel [D, V]."""

  config: DecoderConfig

  @nn.compact
  def __call__(self) -> jax.Array:
    init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ('embed', 'vocab'))
    shape = (self.config.width, self.config.vocab_size)
    return self.param('kernel', init, shape, self.config.param_dtype)


def abstract_params(config: DecoderConfig) -> tuple[Params, Params]:
  """The parameters' shapes and their logical axes, without an array made.

  Returns:
    A tree of ShapeDtypeStructs and a tree of the same structure with a tuple of axis names a leaf.
  """
  tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
  boxed = jax.eval_shape(Decoder(config).init, jax.random.key(0), tokens, tokens)['params']
  return nn.unbox(boxed), logical_axes(boxed)


def init_params(config: DecoderConfig, key: jax.Array, mesh: jax.sharding.Mesh) -> Params:
  """Random parameters, created already sharded over `mesh`."""
  shapes, axes = abstract_params(config)
  tokens = jnp.zeros((1, 1), jnp.int32)
  init = jax.jit(
      lambda key: nn.unbox(Decoder(config).init(key, tokens, tokens))['params'],
      out_shardings=named_shardings(shapes, axes, mesh),
  )
  with jax.set_mesh(mesh):
    return init(key)


def unembed(params: Params, config: DecoderConfig, hidden: jax.Array) -> jax.Array:
  """Logits [..., V] float32 of hidden states [..., D]. Call on chunks, never on [B, T, D] at once."""
  if config.tie_embeddings:
    kernel, spec = params['embed']['embedding'], 'btd,vd->btv'
  else:
    kernel, spec = params['head']['kernel'], 'btd,dv->btv'
  flat = hidden.reshape((1, -1, hidden.shape[-1])) if hidden.ndim != 3 else hidden
  logits = _logits_einsum(spec, config.dtype, flat, kernel)
  return logits.reshape((*hidden.shape[:-1], config.vocab_size))


def _logits_einsum(spec: str, dtype: str, hidden: jax.Array, kernel: jax.Array) -> jax.Array:
  """Operands in `dtype`, result kept in float32: log-probabilities need the bits."""
  return jnp.einsum(spec, hidden.astype(dtype), kernel.astype(dtype), preferred_element_type=jnp.float32)


def unstack_layers(params: Params, num_layers: int) -> Params:
  """Parameters of the scanned form {'layers': [L, ...]} as those of the unrolled form {'layers_i'}."""
  rest = {name: value for name, value in params.items() if name != 'layers'}
  layers = {
      f'layers_{i}': jax.tree.map(lambda leaf, i=i: leaf[i], params['layers']) for i in range(num_layers)
  }
  return rest | layers
