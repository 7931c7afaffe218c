"""The decoder: a Llama-family transformer in Flax Linen.

The module maps token ids to final hidden states; `unembed` maps hidden states to logits apart from
it, so that a loss can take the vocabulary in chunks. The KV cache is no module state: pages of past
keys and values come in as arrays and the new ones go out; which page is whose is the sampler's business.

Dimension letters: B batch, T new tokens, D width, N query heads, K key/value heads, H head dimension,
F MLP width, V vocabulary, L layers, R LoRA rank.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from acesearch_jax.models.attention import Past, accumulation_dtype, causal_attention, paged_attention
from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.sharding.rules import constrain, logical_axes, named_shardings

Params = Any


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _einsum(spec: str, operands: str, dtype: str, x: jax.Array, kernel: jax.Array) -> jax.Array:
  """einsum of operands rounded to `operands`, accumulated in float32 (or wider), returned in `dtype`.

  The backward products have such operands too; without the custom rule the cotangent would stay in
  float32 and take them off the fast path. The kernel's gradient comes back in the kernel's own dtype,
  unrounded.
  """
  wide = accumulation_dtype(operands)
  y = jnp.einsum(spec, x.astype(operands), kernel.astype(operands), preferred_element_type=wide)
  return y.astype(dtype)


def _einsum_forward(spec, operands, dtype, x, kernel):
  return _einsum(spec, operands, dtype, x, kernel), (x, kernel)


def _einsum_backward(spec, operands, dtype, residuals, cotangent):
  x, kernel = residuals
  inputs, out = spec.split('->')
  x_axes, kernel_axes = inputs.split(',')
  cotangent = cotangent.astype(operands)
  product = partial(jnp.einsum, preferred_element_type=accumulation_dtype(operands))
  dx = product(f'{out},{kernel_axes}->{x_axes}', cotangent, kernel.astype(operands))
  # The first operand of a contraction over rows is transposed for it: let that be the smaller one.
  axes, factors = (x_axes, out), (x.astype(operands), cotangent)
  if x.size > cotangent.size:
    axes, factors = axes[::-1], factors[::-1]
  dkernel = product(f'{axes[0]},{axes[1]}->{kernel_axes}', *factors)
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
    dtypes = config.operand_dtype, config.dtype
    a, b = 'ij'[: len(self.inputs)], 'kl'[: len(self.outputs)]
    fan_in_init = nn.initializers.normal(1 / math.sqrt(math.prod(self.inputs)))
    shape, axes = self.inputs + self.outputs, self.input_axes + self.output_axes
    kernel = self._param('kernel', fan_in_init, shape, axes)
    y = _einsum(f'bt{a},{a}{b}->bt{b}', *dtypes, x, kernel)
    if self.use_bias:
      y += self._param('bias', nn.initializers.zeros, self.outputs, self.output_axes).astype(config.dtype)
    if config.lora_rank:
      rank = (config.lora_rank,)
      down = self._param('lora_a', fan_in_init, self.inputs + rank, self.input_axes + ('rank',))
      up = self._param('lora_b', nn.initializers.zeros, rank + self.outputs, ('rank',) + self.output_axes)
      low = _einsum(f'bt{a},{a}r->btr', *dtypes, x, down)
      y += _einsum(f'btr,r{b}->bt{b}', *dtypes, low, up) * (config.lora_alpha / config.lora_rank)
    return y


class RMSNorm(nn.Module):
  """x / rms(x) · scale over the last axis, computed in float32 or wider (arXiv 1910.07467)."""

  config: DecoderConfig

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    init = nn.with_logical_partitioning(nn.initializers.ones, (None,))
    scale = self.param('scale', init, (x.shape[-1],), self.config.param_dtype)
    return _rms_norm(x, scale, self.config.norm_eps, self.config.dtype)


# Elementwise work is cheaper made again in the backward pass than kept for it.
@partial(jax.checkpoint, prevent_cse=False, static_argnums=(2, 3))
def _rms_norm(x: jax.Array, scale: jax.Array, eps: float, dtype: str) -> jax.Array:
  x = x.astype(accumulation_dtype(dtype))
  x *= jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)
  return (x * scale).astype(dtype)


@partial(jax.checkpoint, prevent_cse=False)
def _gated(gate: jax.Array, up: jax.Array) -> jax.Array:
  return nn.silu(gate) * up


def rotary(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
  """Rotary position embedding in the half-split layout (arXiv 2104.09864).

  Args:
    x: [B, T, heads, H].
    positions: [B, T] int32, place of each token in its sequence.
    theta: base of the frequencies.
  """
  half = x.shape[-1] // 2
  wide = accumulation_dtype(x.dtype)
  frequencies = theta ** (-jnp.arange(half, dtype=wide) / half)
  angles = positions[..., None, None].astype(wide) * frequencies  # [B, T, 1, H/2]
  sin, cos = jnp.sin(angles), jnp.cos(angles)
  first, second = jnp.split(x.astype(wide), 2, axis=-1)
  return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


class Attention(nn.Module):
  config: DecoderConfig

  @nn.compact
  def __call__(self, x, layer, positions, segment_ids, past):
    """Self-attention over the past and, causally, over the new tokens.

    Args:
      x: [B, T, D].
      layer: int32, its place among the layers.
      positions: [B, T] int32.
      segment_ids: [B, T] int32 or None, see `Decoder`.
      past: `Past` or None.

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
    if past is None:
      out = causal_attention(query, key, value, segment_ids)
    else:
      out = paged_attention(query, key, value, past, layer)
    out = Projection(config, heads, (config.width,), ('heads', 'head_dim'), ('embed',), name='out')(out)
    return out, (key, value)


class MLP(nn.Module):
  """SwiGLU (arXiv 2002.05202)."""

  config: DecoderConfig

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    config = self.config
    wide = partial(Projection, config, (config.width,), (config.mlp_width,), ('embed',), ('mlp',))
    hidden = _gated(wide(name='gate')(x), wide(name='up')(x))
    hidden = constrain(hidden, 'batch', 'length', 'mlp')
    return Projection(config, (config.mlp_width,), (config.width,), ('mlp',), ('embed',), name='down')(hidden)


class Block(nn.Module):
  """One layer: x + attention(norm(x)), then x + mlp(norm(x))."""

  config: DecoderConfig

  @nn.compact
  def __call__(self, x, layer, positions, segment_ids, past):
    attended, new = Attention(self.config, name='attention')(
        RMSNorm(self.config, name='attention_norm')(x), layer, positions, segment_ids, past
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
      past: Past | None = None,
  ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Runs the stack.

    Rows are padded on the right: causal masking alone keeps padding out of every real token, and what
    comes out at padding is never read.

    Args:
      tokens: [B, T] int32.
      positions: [B, T] int32, place of each token in its own sequence (past tokens counted).
      segment_ids: [B, T] int32 where rows hold several sequences, see `same_sequence`.
      past: what each row has before its new tokens, which are then one sequence a row. Such a call has
        no reverse-mode derivative.

    Returns:
      Hidden states after the last norm, [B, T, D] in config.dtype, and the new tokens' keys and values,
      [L, B, T, K, H] each, rotary embedding applied.
    """
    config = self.config
    init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ('vocab', 'embed'))
    embedding = nn.Embed(
        config.vocab_size, config.width, embedding_init=init, param_dtype=config.param_dtype, name='embed'
    ).embedding
    # Rounded like every other weight, whether or not they come rounded; after the lookup, so that no
    # backend converts the whole table.
    x = embedding[tokens].astype(config.operand_dtype).astype(config.dtype)
    x = constrain(x, 'batch', 'length', 'activation')
    if not config.tie_embeddings:
      Head(config, name='head')()  # declared here, applied by `unembed`
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
      x, new = stack(x, jnp.arange(config.num_layers), positions, segment_ids, past)
    else:
      layers = []
      for i in range(config.num_layers):
        x, layer = block_type(config, name=f'layers_{i}')(x, i, positions, segment_ids, past)
        layers.append(layer)
      new = tuple(jnp.stack(part) for part in zip(*layers, strict=True))
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
  # Kept in float32: log-probabilities need the bits.
  wide = accumulation_dtype(config.dtype)
  logits = _einsum(spec, config.operand_dtype, str(wide), flat, kernel)
  return logits.reshape((*hidden.shape[:-1], config.vocab_size))


def unstack_layers(params: Params, num_layers: int) -> Params:
  """Parameters of the scanned form {'layers': [L, ...]} as those of the unrolled form {'layers_i'}."""
  rest = {name: value for name, value in params.items() if name != 'layers'}
  layers = {
      f'layers_{i}': jax.tree.map(lambda leaf, i=i: leaf[i], params['layers']) for i in range(num_layers)
  }
  return rest | layers
