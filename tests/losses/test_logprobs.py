"""Chunked log-probabilities against NumPy in float64, their masks and their memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acesearch_jax.losses.logprobs import token_logps
from acesearch_jax.losses.masked import masked_sum

B, T, D, V = 3, 10, 4, 7


SCORE = jax.jit(
    lambda hidden, kernel, targets, mask, chunk: token_logps(
        lambda h: h @ kernel, hidden, targets, mask, chunk
    ),
    static_argnums=4,
)


def arrays(seed: int, share: float):
  rng = np.random.default_rng(seed)
  hidden = rng.normal(size=(B, T, D)).astype(np.float32)
  kernel = rng.normal(size=(D, V)).astype(np.float32)
  return hidden, kernel, rng.integers(V, size=(B, T)).astype(np.int32), rng.random((B, T)) < share


def expected_logps(hidden, kernel, targets, mask):
  logits = hidden.astype(np.float64) @ kernel.astype(np.float64)
  logits -= logits.max(-1, keepdims=True)
  logps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  return np.where(mask, np.take_along_axis(logps, targets[..., None], -1)[..., 0], 0)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    chunk=st.sampled_from([1, 4, 99]),
)
def test_values_for_any_mask_and_chunk(seed, share, chunk):
  hidden, kernel, targets, mask = arrays(seed, share)
  logps = SCORE(hidden, kernel, targets, mask, chunk)
  np.testing.assert_allclose(logps, expected_logps(hidden, kernel, targets, mask), atol=1e-5)


@pytest.mark.parametrize('chunk', [3, 10])
def test_gradients_equal_those_of_the_plain_form(chunk):
  hidden, kernel, targets, mask = arrays(0, 0.4)
  weights = np.random.default_rng(1).normal(size=(B, T)).astype(np.float32)

  def chunked(hidden, kernel):
    return jnp.sum(weights * token_logps(lambda h: h @ kernel, hidden, targets, mask, chunk))

  def plain(hidden, kernel):
    logps = jnp.take_along_axis(jax.nn.log_softmax(hidden @ kernel), targets[..., None], -1)[..., 0]
    return jnp.sum(jnp.where(mask, weights * logps, 0))

  got_and_want = zip(*(jax.grad(f, (0, 1))(hidden, kernel) for f in (chunked, plain)), strict=True)
  for got, want in got_and_want:
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_masked_positions_are_dead_even_when_they_hold_garbage():
  hidden, kernel, targets, mask = arrays(2, 0.4)
  hidden = np.where(mask[..., None], hidden, np.nan)

  def loss(hidden, kernel):
    return masked_sum(token_logps(lambda h: h @ kernel, hidden, targets, mask, 4), mask)

  (by_hidden, by_kernel) = jax.grad(loss, (0, 1))(hidden, kernel)
  assert np.all(np.asarray(by_hidden)[~mask] == 0)
  assert np.all(np.any(np.asarray(by_hidden)[mask] != 0, axis=-1))
  assert np.all(np.isfinite(by_kernel))
  others = np.where(mask, targets, (targets + 1) % V)
  assert np.array_equal(
      token_logps(lambda h: h @ kernel, hidden, others, mask, 4),
      token_logps(lambda h: h @ kernel, hidden, targets, mask, 4),
  )


def sizes_in(jaxpr):
  """Element counts of every array in a jaxpr and the jaxprs inside it."""
  for equation in jaxpr.eqns:
    yield from (int(np.prod(var.aval.shape)) for var in equation.outvars if hasattr(var.aval, 'shape'))
    for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, 'eqns')):
      inner = getattr(value, 'jaxpr', value)
      if hasattr(inner, 'eqns'):
        yield from sizes_in(inner)


def test_no_array_of_batch_times_length_times_vocabulary_in_either_pass():
  batch, length, width, vocab, chunk = 2, 512, 16, 4096, 32
  shapes = [
      jax.ShapeDtypeStruct(*shape)
      for shape in (
          ((batch, length, width), jnp.float32),
          ((width, vocab), jnp.float32),
          ((batch, length), jnp.int32),
          ((batch, length), jnp.bool_),
      )
  ]

  def loss(hidden, kernel, targets, mask):
    return jnp.sum(token_logps(lambda h: h @ kernel, hidden, targets, mask, chunk))

  gradient = jax.jit(jax.grad(loss, (0, 1)))
  assert max(sizes_in(jax.make_jaxpr(gradient)(*shapes).jaxpr)) <= batch * length * vocab // 8
  # What the compiler made of it: a few chunks of logits and the head's gradient.
  memory = gradient.lower(*shapes).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 4 * (5 * batch * chunk * vocab + 3 * width * vocab) + 1e6
  assert memory.temp_size_in_bytes < 4 * batch * length * vocab / 3
