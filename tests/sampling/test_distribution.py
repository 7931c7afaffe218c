"""Draws against a plain NumPy reference in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from acesearch_jax.sampling import distribution
from acesearch_jax.sampling.distribution import Controls, sample

PLAIN = {'temperature': 1.0, 'top_p': 1.0, 'top_k': 0, 'min_p': 0.0, 'repetition_penalty': 1.0}


def controls(rows):
  columns = {name: [PLAIN[name] if name not in row else row[name] for row in rows] for name in PLAIN}
  return Controls(**{
      name: jnp.asarray(values, jnp.int32 if name == 'top_k' else jnp.float32)
      for name, values in columns.items()
  })


draw = jax.jit(sample)


def reference(logits, seen, temperature, top_p, top_k, min_p, repetition_penalty):
  """Probabilities [V] in float64, by sorting."""
  logits = np.asarray(logits, np.float64).copy()
  penalised = np.where(logits < 0, logits * repetition_penalty, logits / repetition_penalty)
  logits = np.where(seen, penalised, logits) / temperature
  order = np.argsort(-logits, kind='stable')
  probs = np.exp(logits[order] - logits.max())
  if top_k:
    probs[top_k:] = 0
  probs /= probs.sum()
  before = np.cumsum(probs) - probs
  probs[before >= top_p] = 0
  probs[probs < min_p * probs[0]] = 0
  result = np.zeros_like(probs)
  result[order] = probs / probs.sum()
  return result


@pytest.mark.parametrize(
    'changed',
    [
        {},
        {'temperature': 0.6},
        {'temperature': 2.0, 'top_p': 0.7},
        {'top_k': 4},
        {'min_p': 0.2},
        {'repetition_penalty': 1.7},
        {'temperature': 1.3, 'top_k': 6, 'top_p': 0.8, 'min_p': 0.1, 'repetition_penalty': 1.2},
    ],
)
def test_frequencies_follow_the_filtered_distribution(changed):
  count, vocab = 20_000, 150  # more than one chunk
  rng = np.random.default_rng(0)
  logits = rng.normal(size=vocab).astype(np.float32) * 2
  seen = rng.random(vocab) < 0.3
  wanted = reference(logits, seen, **PLAIN | changed)
  uniform = jax.random.uniform(jax.random.key(1), (count,))
  tokens, logps, behaviour = draw(
      jnp.broadcast_to(logits, (count, vocab)), uniform, controls([changed] * count),
      jnp.broadcast_to(seen, (count, vocab)), jnp.ones(count, bool),
  )
  tokens = np.asarray(tokens)
  counts = np.bincount(tokens, minlength=vocab)
  assert not counts[wanted == 0].any()
  often = wanted * count >= 5
  observed = np.append(counts[often], counts[~often].sum())
  expected = np.append(wanted[often], wanted[~often].sum()) * count
  if expected[-1] < 5:
    observed, expected = observed[:-1], expected[:-1] * observed[:-1].sum() / expected[:-1].sum()
  assert stats.chisquare(observed, expected).pvalue > 1e-3
  np.testing.assert_allclose(behaviour, np.log(wanted[tokens]), atol=1e-5)
  np.testing.assert_allclose(logps, jax.nn.log_softmax(logits)[tokens], atol=1e-5)


@pytest.mark.parametrize('spread', [0.3, 6.0])
def test_sets_of_any_size_are_found_exactly(spread):
  rng = np.random.default_rng(2)
  rows = [{'top_p': p} for p in (0.05, 0.5, 0.9, 0.99)] + [{'top_k': k} for k in (1, 7, 512, 513, 1900)]
  rows += [{'top_k': 700, 'top_p': 0.8}, {'top_k': 40, 'top_p': 0.8}, {'top_p': 0.9999}, {}]
  logits = (rng.normal(size=(len(rows), 2000)) * spread).astype(np.float32)
  nothing = np.zeros(logits.shape, bool)
  wanted = np.stack([
      reference(row, nothing[0], **PLAIN | changed) for row, changed in zip(logits, rows, strict=True)
  ])
  sets = [set(np.flatnonzero(row)) for row in wanted]
  assert max(len(s) for s in sets[:4]) > distribution.CANDIDATES or spread > 1
  for value in np.linspace(0, 1, 40, endpoint=False, dtype=np.float32):
    uniform = jnp.full(len(rows), value)
    tokens, _, behaviour = draw(logits, uniform, controls(rows), nothing, jnp.ones(len(rows), bool))
    for i, token in enumerate(np.asarray(tokens)):
      assert token in sets[i]
      # The normaliser gives away whether one token more or less was kept.
      np.testing.assert_allclose(behaviour[i], np.log(wanted[i, token]), atol=2e-5)


def test_a_row_does_not_depend_on_the_others():
  rng = np.random.default_rng(3)
  logits = (rng.normal(size=(6, 1500)) * 0.5).astype(np.float32)
  seen = rng.random((6, 1500)) < 0.5
  uniform = rng.random(6, np.float32)
  mixed = [{}, {'top_p': 0.99}, {'top_k': 600}, {'temperature': 0.0}, {'repetition_penalty': 1.3}]
  mixed.append({'min_p': 0.1})
  active = jnp.ones(6, bool)
  together = draw(logits, uniform, controls(mixed), seen, active)
  for i, changed in enumerate(mixed):
    rows = [{}] * 6
    rows[i] = changed
    others = np.where(np.arange(6)[:, None] == i, logits, logits[::-1])
    alone = draw(others, uniform, controls(rows), seen, active)
    for a, b in zip(together, alone, strict=True):
      assert np.asarray(a)[i].tobytes() == np.asarray(b)[i].tobytes()


def test_impossible_tokens_are_never_drawn():
  logits = np.full((2, 300), -1e4, np.float32)
  logits[:, 140] = 3.0
  logits[:, 260] = 2.0
  seen = np.zeros(logits.shape, bool)
  for value in (0.0, 0.3, np.float32(1 - 2**-24)):
    tokens, _, _ = draw(logits, jnp.full(2, value), controls([{}] * 2), seen, jnp.ones(2, bool))
    assert set(np.asarray(tokens).tolist()) <= {140, 260}


def test_greedy_takes_the_best_after_the_penalty():
  logits = np.array([[2.0, 1.9, -1.0], [-1.0, -1.1, -9.0]], np.float32)
  seen = np.array([[True, False, False], [True, False, False]])
  rows = [{'temperature': 0.0, 'repetition_penalty': 1.2}] * 2
  tokens, logps, behaviour = draw(logits, jnp.zeros(2), controls(rows), seen, jnp.ones(2, bool))
  assert np.asarray(tokens).tolist() == [1, 1] and not np.asarray(behaviour).any()
  np.testing.assert_allclose(logps, [jax.nn.log_softmax(row)[1] for row in logits], atol=1e-6)
