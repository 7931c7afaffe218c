"""Attention over blocks: its value, and that unused capacity does not change a bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from acesearch_jax.models.decoder import attend


def blocks(capacity, filled, rows, length, kv_heads, groups, dim):
  """A query, past keys and values [B, K, C, H] of which some are valid, and the new tokens' own."""
  rng = np.random.default_rng(filled)

  def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)

  query = normal(rows, length, kv_heads * groups, dim)
  past = [normal(rows, kv_heads, filled, dim) for _ in range(2)]
  padding = ((0, 0), (0, 0), (0, capacity - filled), (0, 0))
  past = [np.pad(x, padding, constant_values=9.0) for x in past]
  return query, *past, normal(rows, length, kv_heads, dim), normal(rows, length, kv_heads, dim)


@jax.jit
def run(query, past_keys, past_values, keys, values, filled):
  rows, length = query.shape[:2]
  capacity = past_keys.shape[2]
  valid = jnp.broadcast_to(jnp.arange(capacity) < filled, (rows, capacity))
  causal = jnp.broadcast_to(jnp.tri(length, dtype=bool), (rows, length, length))
  past = (past_keys.swapaxes(1, 2), past_values.swapaxes(1, 2), valid)
  return attend(query, (keys, values, causal), [past], 'float32')


@pytest.mark.parametrize(
    'rows, length, kv_heads, groups, dim',
    [(4, 1, 2, 2, 8), (1, 1, 3, 3, 64), (8, 1, 3, 3, 64), (2, 32, 3, 3, 64), (3, 8, 1, 3, 24)],
)
def test_capacity_does_not_change_bits(rows, length, kv_heads, groups, dim):
  for filled in (1, 100, 128):
    results = []
    for capacity in (128, 256, 384):
      arrays = blocks(capacity, filled, rows, length, kv_heads, groups, dim)
      results.append(np.asarray(run(*arrays, filled)))
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()


def test_equals_one_softmax():
  query, past_keys, past_values, keys, values = (
      x.astype(np.float64) for x in blocks(256, 150, 2, 3, 2, 2, 8)
  )
  result = run(*(jnp.asarray(x, jnp.float32) for x in (query, past_keys, past_values, keys, values)), 150)
  for row in range(2):
    for place in range(3):
      for head in range(4):
        seen = [np.concatenate([past[row, head // 2, :150], new[row, : place + 1, head // 2]])
                for past, new in ((past_keys, keys), (past_values, values))]
        scores = seen[0] @ query[row, place, head] / np.sqrt(8)
        weights = np.exp(scores - scores.max())
        wanted = weights @ seen[1] / weights.sum()
        np.testing.assert_allclose(result[row, place, head], wanted, atol=1e-5)
