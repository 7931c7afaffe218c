"""Blockwise causal attention against JAX's own attention and plain autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from acesearch_jax.models.attention import causal_attention

B, N, K, H = 2, 6, 3, 8


@pytest.mark.parametrize('length', [1, 3, 16, 21])
@pytest.mark.parametrize('packed', [False, True])
def test_values_and_gradients_equal_those_of_one_softmax(length, packed):
  rng = np.random.default_rng(length)
  query, key, value, cotangent = (
      jnp.asarray(rng.normal(size=(B, length, heads, H)), jnp.float32) for heads in (N, K, K, N)
  )
  # Groups 0 and 1 of a prefix (0, 4) and two branches each, and padding at the end.
  kinds = np.array([0, 1, 2, 4, 5, 6, -1])
  segments = jnp.asarray(kinds[np.sort(rng.integers(7, size=(B, length)), axis=1)]) if packed else None
  mask = jnp.broadcast_to(jnp.tri(length, dtype=bool), (B, length, length))
  if packed:
    own, other = segments[:, :, None], segments[:, None]
    mask &= (own == other) | ((other == 0) & (own > 0) & (own < 4)) | ((other == 4) & (own > 4))

  def blocks(query, key, value):
    out = causal_attention(query, key, value, segments)
    return jnp.sum(out * cotangent), out

  def plain(query, key, value):
    out = jax.nn.dot_product_attention(query, key, value, mask=mask[:, None])
    return jnp.sum(out * cotangent), out

  grads_and_values = [
      jax.jit(jax.grad(f, (0, 1, 2), has_aux=True))(query, key, value) for f in (blocks, plain)
  ]
  for got, want in zip(*map(jax.tree.leaves, grads_and_values), strict=True):
    np.testing.assert_allclose(got, want, atol=2e-5)


def test_no_array_of_length_squared_is_kept():
  length = 256

  def loss(x):
    return jnp.sum(causal_attention(x, x[:, :, :K], x[:, :, :K]))

  shape = jax.ShapeDtypeStruct((B, length, N, H), jnp.float32)
  _, pullback = jax.eval_shape(lambda x: jax.vjp(loss, x), shape)
  assert max(leaf.size for leaf in jax.tree.leaves(pullback)) <= B * length * N * H


def test_bfloat16_stays_close():
  rng = np.random.default_rng(0)
  query, key, value = (jnp.asarray(rng.normal(size=(B, 16, heads, H)), jnp.bfloat16) for heads in (N, K, K))
  out = causal_attention(query, key, value)
  assert out.dtype == jnp.bfloat16
  wide = causal_attention(*(x.astype(jnp.float32) for x in (query, key, value)))
  np.testing.assert_allclose(out.astype(jnp.float32), wide, atol=0.05)
