"""Causal attention: over whole rows for training, and over pages of a cache for sampling.

Training takes the queries in a few blocks, each against the keys up to its own end, so that little of the
upper triangle is computed. The backward pass makes the weights again from the log of their sum
(arXiv 2205.14135), so that what is kept of a row grows with T and not with its square.

Dimension letters: B batch, T tokens, N query heads, K key/value heads, G = N / K, H head dimension, C
queries of a block, S keys it sees; of the cache also L layers, P pages of S tokens, E lanes.
"""

from collections.abc import Iterator

import flax.struct
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
  wide = accumulation_dtype(query.dtype)
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


def accumulation_dtype(dtype: jax.typing.DTypeLike) -> jnp.dtype:
  """float32, or float64 for a float64 model (tests of sharding compare gradients in it)."""
  return jnp.promote_types(dtype, jnp.float32)


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


# Past keys are read this many at a time, or a page where that is larger.
PAST_CHUNK = 64


@flax.struct.dataclass
class Past:
  """Keys and values (rotary embedding applied) that the new tokens of each row may look back on.

  They lie in pages. Pages, and rows, are split evenly into E lanes, one for each share of the batch axes
  of the mesh, and a row has pages of its own lane only, so that reading them needs no other device.

  Attributes:
    keys: [E, L, P, K, S, H], P pages of S tokens a lane.
    values: like keys.
    table: [B, n] int32, each row's pages in order; after its last one any number below P.
    lengths: [B] int32, tokens that a row has there.
  """

  keys: jax.Array
  values: jax.Array
  table: jax.Array
  lengths: jax.Array


def paged_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, past: Past, layer: jax.Array | int
) -> jax.Array:
  """Grouped-query attention to the past and, causally, to the new tokens, with one softmax.

  The past is read in chunks of `PAST_CHUNK` keys up to the longest of the batch, with the running maximum
  and sum of arXiv 2205.14135: the work follows what is there. A chunk in which a query sees nothing leaves
  its sums as they are, so neither the size of the table nor other rows change a row's bits. There is no
  reverse-mode derivative.

  Args:
    query: [B, T, N, H].
    key: [B, T, K, H], of the new tokens.
    value: [B, T, K, H].
    past: what came before.
    layer: which layer's pages to read.

  Returns:
    [B, T, N, H] in the query's dtype; scores and weights are float32 or wider.
  """
  dtype, length = query.dtype, query.shape[1]
  # Scaled here and not in the scores, where the product may or may not be fused with what follows.
  scaled = (query.astype(accumulation_dtype(dtype)) * query.shape[-1] ** -0.5).astype(dtype)

  def look(keys, values, visible, so_far=None):
    """Adds keys [B, K, S, H] to (maximum, weighted sum of values, sum of weights) of every row."""
    scores = jnp.where(visible, _dot('bkxh,bksh->bkxs', rows, keys), -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    if so_far is not None:
      top = jnp.maximum(top, so_far[0])
    weights = jnp.exp(scores - top)
    out = _dot('bkxs,bksh->bkxh', weights.astype(dtype), values)
    mass = jnp.sum(weights, axis=-1, keepdims=True)
    if so_far is None:
      return top, out, mass
    fade = jnp.exp(so_far[0] - top)
    return top, so_far[1] * fade + out, so_far[2] * fade + mass

  keys = _heads_first(key)
  rows = _rows(scaled, keys)  # [B, K, T · G, H]
  causal = jnp.repeat(jnp.tri(length, dtype=bool), rows.shape[2] // length, axis=0)
  sums = look(keys, _heads_first(value), causal)
  pages, size = past.keys.shape[2], past.keys.shape[4]
  pages_a_chunk = max(1, PAST_CHUNK // size)
  padding = -past.table.shape[1] % pages_a_chunk
  table = layer * pages + jnp.pad(past.table, ((0, 0), (0, padding)))

  def chunk(i, sums):
    places = jax.lax.dynamic_slice_in_dim(table, i * pages_a_chunk, pages_a_chunk, 1)
    tokens = pages_a_chunk * size
    visible = i * tokens + jnp.arange(tokens) < past.lengths[:, None]
    keys, values = _read_pages(past.keys, places), _read_pages(past.values, places)
    return look(keys, values, visible[:, None, None], sums)

  num_chunks = -(-jnp.max(past.lengths) // (pages_a_chunk * size))
  _, out, mass = jax.lax.fori_loop(0, num_chunks, chunk, sums)
  return _tokens(out / mass, query).astype(dtype)


def _read_pages(pool: jax.Array, places: jax.Array) -> jax.Array:
  """Pages of a pool [E, L, P, K, S, H], by their places [B, m] among a lane's L · P, as [B, K, m · S, H]."""
  lanes, layers, pages, *shape = pool.shape
  found = jax.vmap(lambda lane, places: lane.at[places].get(mode='promise_in_bounds'))(
      pool.reshape(lanes, layers * pages, *shape), places.reshape(lanes, -1, places.shape[1])
  )  # [E, B / E, m, K, S, H]
  kv_heads, _, dim = shape
  return found.swapaxes(2, 3).reshape(places.shape[0], kv_heads, -1, dim)


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


def _dot(spec, a, b):
  return jnp.einsum(spec, a, b, preferred_element_type=accumulation_dtype(a.dtype))
