"""Causal attention over whole rows for training: blocks of queries, no [T, T] array kept.

Queries are taken in a few blocks, each against the keys up to its own end, so that little of the upper
triangle is computed. The backward pass makes the weights again from the log of their sum
(arXiv 2205.14135), so that what is kept of a row grows with T and not with its square.

Dimension letters: B batch, T tokens, N query heads, K key/value heads, G = N / K, H head dimension, C
queries of a block, S keys it sees.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

# Segments of a row come in groups of so many. The first of a group is a prefix that the others of the
# group see too, such as the prompt of two answers; groups do not see each other.
SEGMENT_GROUP = 4

# Four blocks compute 62.5% of the square; more would compute less and compile longer.
NUM_BLOCKS = 4


def causal_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array | None = None
) -> jax.Array:
  """Grouped-query attention of rows of tokens to themselves.

  Args:
    query: [B, T, N, H].
    key: [B, T, K, H].
    value: [B, T, K, H].
    segment_ids: [B, T] int32, see `same_sequence`. None for one sequence a row.

  Returns:
    [B, T, N, H] in the query's dtype; scores and weights are float32 or wider.
  """
  if segment_ids is None:
    segment_ids = jnp.zeros(query.shape[:2], jnp.int32)
  return _attention(query, key, value, segment_ids)


@jax.custom_vjp
def _attention(query, key, value, segment_ids):
  return _forward(query, key, value, segment_ids)[0]


def _forward(query, key, value, segment_ids):
  keys, values = _heads_first(key), _heads_first(value)
  outs, log_masses = [], []
  for block, seen in _blocks(query.shape[1]):
    scores = _scores(_rows(query[:, block], keys), keys[:, :, seen], segment_ids, block, seen)
    top = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - top)
    mass = jnp.sum(weights, axis=-1, keepdims=True)
    out = _dot('bkxs,bksh->bkxh', weights.astype(query.dtype), values[:, :, seen]) / mass
    outs.append(_tokens(out, query[:, block]))
    log_masses.append(top + jnp.log(mass))  # [B, K, C · G, 1]
  out = jnp.concatenate(outs, axis=1).astype(query.dtype)
  return out, (query, key, value, segment_ids, out, log_masses)


def _backward(residuals, cotangent):
  query, key, value, segment_ids, out, log_masses = residuals
  keys, values = _heads_first(key), _heads_first(value)
  wide = _wide(query.dtype)
  scale = query.shape[-1] ** -0.5
  # Of softmax: ds = w · (dw - sum(w · dw)), and sum(w · dw) = out · cotangent.
  product = jnp.sum(out.astype(wide) * cotangent.astype(wide), axis=-1, keepdims=True)
  key_grad, value_grad = jnp.zeros(keys.shape, wide), jnp.zeros(values.shape, wide)
  query_grads = []
  for (block, seen), log_mass in zip(_blocks(query.shape[1]), log_masses, strict=True):
    rows, upstream = _rows(query[:, block], keys), _rows(cotangent[:, block], keys)
    weights = jnp.exp(_scores(rows, keys[:, :, seen], segment_ids, block, seen) - log_mass)
    weights_grad = _dot('bkxh,bksh->bkxs', upstream, values[:, :, seen])
    scores_grad = (weights * (weights_grad - _rows(product[:, block], keys)) * scale).astype(query.dtype)
    query_grads.append(_tokens(_dot('bkxs,bksh->bkxh', scores_grad, keys[:, :, seen]), query[:, block]))
    key_grad = key_grad.at[:, :, seen].add(_dot('bkxs,bkxh->bksh', scores_grad, rows))
    weights = weights.astype(query.dtype)
    value_grad = value_grad.at[:, :, seen].add(_dot('bkxs,bkxh->bksh', weights, upstream))
  return (
      jnp.concatenate(query_grads, axis=1).astype(query.dtype),
      _heads_first(key_grad).astype(key.dtype),
      _heads_first(value_grad).astype(value.dtype),
      np.zeros(segment_ids.shape, jax.dtypes.float0),
  )


_attention.defvjp(_forward, _backward)


def same_sequence(own: jax.Array, other: jax.Array) -> jax.Array:
  """Whether tokens of segment `own` may see tokens of segment `other` that come before them.

  Segment g · SEGMENT_GROUP + i of group g sees itself and the group's first segment. Negative ids are
  padding, which sees and is seen by nothing but padding.

  Args:
    own: int32, of the queries.
    other: int32, of the keys, broadcast against `own`.

  Returns:
    bool.
  """
  return (own == other) | (own - own % SEGMENT_GROUP == other)


def _blocks(length: int) -> Iterator[tuple[slice, slice]]:
  """The queries of each block and the keys they may see."""
  size = -(-length // NUM_BLOCKS)
  for start in range(0, length, size):
    stop = min(start + size, length)
    yield slice(start, stop), slice(stop)


def _scores(rows, keys, segment_ids, block: slice, seen: slice):
  """[B, K, C · G, S] scaled scores, very low where a query does not see a key."""
  scores = _dot('bkxh,bksh->bkxs', rows, keys) * rows.shape[-1] ** -0.5
  causal = jnp.arange(block.start, block.stop)[:, None] >= jnp.arange(seen.stop)
  visible = causal & same_sequence(segment_ids[:, block, None], segment_ids[:, None, seen])  # [B, C, S]
  visible = jnp.repeat(visible, rows.shape[2] // visible.shape[1], axis=1)[:, None]
  return jnp.where(visible, scores, -1e30)


def _heads_first(x):
  """[B, S, K, H] to [B, K, S, H] and back."""
  return x.swapaxes(1, 2)


def _rows(x, keys):
  """[B, C, N, ...] to [B, K, C · G, ...]: one row a query of the same key/value head."""
  batch, length, heads, dim = x.shape
  kv_heads = keys.shape[1]
  x = x.reshape(batch, length, kv_heads, heads // kv_heads, dim).swapaxes(1, 2)
  return x.reshape(batch, kv_heads, -1, dim)


def _tokens(rows, like):
  """[B, K, C · G, H] to [B, C, N, H], the shape of `like`; the inverse of `_rows`."""
  batch, length, heads, dim = like.shape
  kv_heads = rows.shape[1]
  rows = rows.reshape(batch, kv_heads, length, heads // kv_heads, dim).swapaxes(1, 2)
  return rows.reshape(like.shape)


def _wide(dtype):
  return jnp.promote_types(dtype, jnp.float32)


def _dot(spec, a, b):
  return jnp.einsum(spec, a, b, preferred_element_type=_wide(a.dtype))
