"""Intervals against scipy, hand-worked numbers and their own coverage."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from acesearch_jax.evaluation import intervals

_CASES = [(0, 10), (1, 10), (50, 100), (99, 100), (100, 100), (431, 1000)]


@pytest.mark.parametrize(('successes', 'n'), _CASES)
def test_wilson_equals_scipy(successes, n):
  wanted = stats.binomtest(successes, n).proportion_ci(0.95, method='wilson')
  assert intervals.wilson(successes, n) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_proportion_and_stays_in_range(case):
  low, high = intervals.wilson(*case)
  assert 0 <= low <= case[0] / case[1] <= high <= 1


def test_impossible_counts_are_refused():
  for case in ((0, 0), (3, 2), (-1, 2)):
    with pytest.raises(ValueError):
      intervals.wilson(*case)


def test_graded_scores_get_a_bootstrap_close_to_scipys():
  values = np.random.default_rng(1).beta(2, 3, size=300)
  mine = intervals.mean_interval(values)
  wanted = stats.bootstrap((values,), np.mean, method='percentile', rng=np.random.default_rng(2))
  assert mine.mean == pytest.approx(values.mean(), abs=1e-15)
  assert (mine.low, mine.high) == pytest.approx(tuple(wanted.confidence_interval), abs=1.5e-3)
  assert mine == intervals.mean_interval(values)
  assert mine != intervals.mean_interval(values, seed=1)


def test_few_questions_give_the_exact_bootstrap_distribution():
  # Three questions have 27 equally likely resamples.
  values = [0.0, 0.5, 1.0]
  means = sorted(sum(draw) / 3 for draw in itertools.product(values, repeat=3))
  exact = np.percentile(means, (2.5, 97.5), method='inverted_cdf')
  mine = intervals.mean_interval(values)
  assert (mine.low, mine.high) == pytest.approx(tuple(exact), abs=1e-12)


def test_coverage_is_near_95_percent():
  rng = np.random.default_rng(3)
  hits = {'wilson': 0, 'bootstrap': 0, 'paired': 0}
  trials = 150
  for trial in range(trials):
    low, high = intervals.wilson(int(rng.binomial(80, 0.4)), 80)
    hits['wilson'] += low <= 0.4 <= high
    estimate = intervals.mean_interval(rng.beta(2, 2, size=60), seed=trial)
    hits['bootstrap'] += estimate.low <= 0.5 <= estimate.high
    # Question difficulty is shared by seeds and variants; b is right 0.1 more often.
    level = rng.uniform(0.2, 0.8, size=60)
    a = {(str(q), s): float(rng.random() < level[q]) for q in range(60) for s in range(3)}
    b = {(str(q), s): float(rng.random() < level[q] + 0.1) for q in range(60) for s in range(3)}
    comparison = intervals.paired_bootstrap(a, b, seed=trial)
    hits['paired'] += comparison.low <= 0.1 <= comparison.high
  # Binomial(150, 0.95) is below 134 with probability 0.2% and above 149.5 with 0.05%.
  for name, count in hits.items():
    assert 134 <= count <= 149, (name, count)


def test_comparison_by_hand():
  a = {('x', 0): 0.0, ('x', 1): 1.0, ('y', 0): 1.0, ('y', 1): 0.0}
  b = {('x', 0): 1.0, ('x', 1): 1.0, ('y', 0): 1.0, ('y', 1): 0.0}
  comparison = intervals.paired_bootstrap(a, b)
  assert comparison.mean_a == 0.5 and comparison.mean_b == 0.75
  assert comparison.difference == 0.25 and comparison.relative == 0.5
  assert comparison.by_seed == {0: 0.5, 1: 0.0}
  # Resamples of two questions with differences (1/2, 0): 0, 1/4 or 1/2 with chance 1/4, 1/2, 1/4.
  assert (comparison.low, comparison.high) == (0.0, 0.5)


def test_paired_interval_matches_scipy_on_pooled_questions():
  rng = np.random.default_rng(4)
  a = rng.binomial(1, 0.5, size=(200, 3)).astype(float)
  b = np.clip(a + rng.binomial(1, 0.2, size=a.shape), 0, 1)
  keyed = [{(f'{q:04d}', s): x[q, s] for q in range(200) for s in range(3)} for x in (a, b)]
  mine = intervals.paired_bootstrap(*keyed)
  wanted = stats.bootstrap(((b - a).mean(axis=1),), np.mean, method='percentile', rng=rng).confidence_interval
  assert (mine.low, mine.high) == pytest.approx((wanted.low, wanted.high), abs=3e-3)


def test_seeds_of_one_question_are_not_independent():
  # 100 questions whose seeds all agree: three seeds must not narrow the interval.
  one = {(f'{q:03d}', 0): float(q % 2) for q in range(100)}
  three = {(question, s): value for (question, _), value in one.items() for s in range(3)}
  single, pooled = intervals.pooled_interval(one), intervals.pooled_interval(three)
  assert pooled.mean == single.mean
  assert pooled.high - pooled.low == pytest.approx(single.high - single.low, rel=0.1)


def test_order_of_scores_does_not_matter():
  rng = np.random.default_rng(5)
  a = {(str(q), s): float(rng.random()) for q in range(30) for s in range(2)}
  b = {key: float(rng.random()) for key in a}
  assert intervals.paired_bootstrap(a, b) == intervals.paired_bootstrap(
      dict(reversed(a.items())), dict(reversed(b.items())))
  assert intervals.pooled_interval(a) == intervals.pooled_interval(dict(reversed(a.items())))


def test_only_shared_seeds_are_compared():
  a = {('x', 0): 0.0}
  b = {('x', 0): 1.0, ('x', 1): 0.0}
  assert intervals.paired_bootstrap(a, b).difference == 1.0
  assert intervals.paired_bootstrap(a, b).relative is None
  with pytest.raises(ValueError, match='no seed in common'):
    intervals.paired_bootstrap({('x', 2): 0.0}, b)
  with pytest.raises(ValueError, match='different questions'):
    intervals.paired_bootstrap({('y', 0): 0.0}, b)


def test_score_row():
  rows = [{'em': 1.0, 'f1': 1.0, 'acc': 1.0}, {'em': 0.0, 'f1': 0.5, 'acc': 1.0}]
  row = intervals.score_row(rows)
  assert row == {'n': 2, 'em': 0.5, 'f1': 0.75, 'acc': 1.0, 'em_ci95': list(intervals.wilson(1, 2))}
