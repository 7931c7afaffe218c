"""Attention over pages: its value, and what must not change a bit of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from acesearch_jax.models.attention import Past, paged_attention

LAYERS = 3


def dense(filled, rows, length, kv_heads, groups, dim):
  """A query [B, T, N, H], past keys and values [B, filled, K, H], the new tokens' own [B, T, K, H]."""
  rng = np.random.default_rng(filled)

  def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)

  past = [normal(rows, filled, kv_heads, dim) for _ in range(2)]
  own = [normal(rows, length, kv_heads, dim) for _ in range(2)]
  return normal(rows, length, kv_heads * groups, dim), *past, *own


def paged(cache, size, extra, lanes=1, layer=1, seed=0):
  """Pages [E, L, P, K, S, H] with `cache` [B, filled, K, H] in `layer`, noise elsewhere, and their table."""
  rows, filled, kv_heads, dim = cache.shape
  rng = np.random.default_rng(seed)
  needed = -(-filled // size)
  a_lane = rows // lanes
  pages = a_lane * needed + extra
  pool = rng.normal(size=(lanes, LAYERS, pages, kv_heads, size, dim)).astype(np.float32)
  table = np.zeros((rows, needed + extra), np.int32)
  for lane in range(lanes):
    table[lane * a_lane : (lane + 1) * a_lane, :needed] = rng.permutation(pages)[: a_lane * needed].reshape(
        a_lane, needed
    )
  for row in range(rows):
    for token in range(filled):
      place = (row // a_lane, layer, table[row, token // size], slice(None), token % size)
      pool[place] = cache[row, token]
  return pool, table


def run(arrays, size, extra, lanes=1, layer=1):
  query, past_keys, past_values, keys, values = arrays
  pools, tables = zip(*(paged(x, size, extra, lanes, layer) for x in (past_keys, past_values)), strict=True)
  assert (tables[0] == tables[1]).all()
  past = Past(*pools, tables[0], np.full(len(query), past_keys.shape[1], np.int32))
  return np.asarray(jax.jit(paged_attention)(query, keys, values, past, layer))


@pytest.mark.parametrize(
    'rows, length, kv_heads, groups, dim',
    [(4, 1, 2, 2, 8), (1, 1, 3, 3, 64), (8, 1, 3, 3, 64), (2, 32, 3, 3, 64), (3, 8, 1, 3, 24)],
)
def test_pages_and_tables_do_not_change_bits(rows, length, kv_heads, groups, dim):
  for filled in (1, 100, 128):
    arrays = dense(filled, rows, length, kv_heads, groups, dim)
    results = [run(arrays, *choice).tobytes() for choice in ((32, 0), (32, 7), (64, 1), (8, 3))]
    assert len(set(results)) == 1


def test_other_rows_do_not_change_bits():
  arrays = dense(200, 4, 1, 3, 3, 64)
  (pool, table), (values, _) = (paged(x, 32, 1) for x in arrays[1:3])

  def first(lengths):
    past = Past(pool, values, table, np.asarray(lengths, np.int32))
    return np.asarray(jax.jit(paged_attention)(arrays[0], *arrays[3:], past, 1))[0].tobytes()

  assert first([70, 0, 0, 0]) == first([70, 200, 1, 64]) == first([70, 64, 200, 200])
  assert first([70, 0, 0, 0]) != first([71, 0, 0, 0])


@pytest.mark.parametrize('lanes', [1, 2])
@pytest.mark.parametrize('layer', range(LAYERS))
def test_equals_one_softmax(layer, lanes):
  arrays = dense(150, 2, 3, 2, 2, 8)
  result = run(arrays, 32, 2, lanes, layer)
  query, past_keys, past_values, keys, values = (x.astype(np.float64) for x in arrays)
  for row in range(2):
    for place in range(3):
      for head in range(4):
        seen = [np.concatenate([past[row, :, head // 2], new[row, : place + 1, head // 2]])
                for past, new in ((past_keys, keys), (past_values, values))]
        scores = seen[0] @ query[row, place, head] / np.sqrt(8)
        weights = np.exp(scores - scores.max())
        wanted = weights @ seen[1] / weights.sum()
        np.testing.assert_allclose(result[row, place, head], wanted, atol=1e-5)


def test_nothing_is_read_past_the_end():
  arrays = dense(40, 2, 1, 2, 2, 8)
  (pool, table), (values, _) = (paged(x, 32, 1) for x in arrays[1:3])
  past = Past(pool, values, table, np.asarray([40, 3], np.int32))
  result = np.asarray(jax.jit(paged_attention)(arrays[0], *arrays[3:], past, 1))
  pool[:, :, table[1, 0], :, 3:] = 9.0
  again = np.asarray(jax.jit(paged_attention)(arrays[0], *arrays[3:], past, 1))
  assert result.tobytes() == again.tobytes() and jnp.isfinite(result).all()
