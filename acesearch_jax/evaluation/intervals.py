"""Means with 95% intervals over questions, and paired comparisons.

Scores of several seeds on the same questions are pooled by question: a resample draws questions with
replacement and takes all seeds of a drawn question, because the seeds of one question are not
independent of each other.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

RESAMPLES = 10_000
_Z95 = 1.959963984540054  # 97.5th percentile of the standard normal distribution.
_CHUNK = 4_000_000  # Drawn indices held at a time.

# Scores by (question id, seed).
Scores = Mapping[tuple[str, int], float]


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A mean with its 95% interval.

  Attributes:
    mean: over all scores.
    low: lower bound.
    high: upper bound.
    n: number of scores.
  """

  mean: float
  low: float
  high: float
  n: int


@dataclasses.dataclass(frozen=True)
class Comparison:
  """How much b is above a on the same questions.

  Attributes:
    mean_a: mean of a over the shared (question, seed) pairs.
    mean_b: mean of b over the same pairs.
    difference: mean_b − mean_a.
    relative: difference / mean_a; None where mean_a is 0.
    low: lower bound of the 95% interval of the difference.
    high: upper bound.
    by_seed: difference of each shared seed, by ascending seed.
  """

  mean_a: float
  mean_b: float
  difference: float
  relative: float | None
  low: float
  high: float
  by_seed: dict[int, float]


def wilson(successes: int, n: int) -> tuple[float, float]:
  """95% score interval of a proportion (Wilson 1927), without continuity correction.

  Raises:
    ValueError: n is not positive, or successes is not in 0..n.
  """
  if n <= 0 or not 0 <= successes <= n:
    raise ValueError(f'{successes} successes of {n}')
  p = successes / n
  centre = p + _Z95**2 / (2 * n)
  half = _Z95 * math.sqrt(p * (1 - p) / n + _Z95**2 / (4 * n * n))
  scale = 1 + _Z95**2 / n
  low = 0.0 if successes == 0 else (centre - half) / scale
  high = 1.0 if successes == n else (centre + half) / scale
  return low, high


def mean_interval(values: Sequence[float] | np.ndarray, seed: int = 0) -> Estimate:
  """Mean of independent scores: Wilson where all are 0 or 1, else percentile bootstrap.

  Args:
    values: [N], one a question.
    seed: of the resampling.

  Raises:
    ValueError: there are no values.
  """
  values = np.asarray(values, np.float64)
  if values.size == 0:
    raise ValueError('no scores')
  if np.isin(values, (0.0, 1.0)).all():
    low, high = wilson(int(values.sum()), values.size)
  else:
    low, high = _bootstrap(values, np.ones_like(values), seed)
  return Estimate(float(values.mean()), low, high, values.size)


def pooled_interval(scores: Scores, seed: int = 0) -> Estimate:
  """Mean over questions and seeds; with more than one seed a bootstrap that resamples questions.

  Args:
    scores: by (question id, seed).
    seed: of the resampling.

  Raises:
    ValueError: there are no scores.
  """
  if len({run for _, run in scores}) <= 1:
    return mean_interval(list(scores.values()), seed)
  sums, counts = _by_question(scores)
  low, high = _bootstrap(sums, counts, seed)
  return Estimate(float(sums.sum() / counts.sum()), low, high, len(scores))


def paired_bootstrap(a: Scores, b: Scores, seed: int = 0) -> Comparison:
  """Paired bootstrap over questions, seeds pooled.

  The statistic is the mean of b − a over all (question, seed) pairs of the seeds that both have. A
  resample draws as many questions as there are, with replacement, keeping the seeds of a question
  together; the interval is the 2.5th to 97.5th percentile of 10,000 resamples.

  Args:
    a: scores of the first variant by (question id, seed).
    b: scores of the second.
    seed: of the resampling.

  Raises:
    ValueError: no shared seed, or different questions in a shared seed.
  """
  seeds = sorted({run for _, run in a} & {run for _, run in b})
  if not seeds:
    raise ValueError('they have no seed in common')
  shared = set(seeds)
  keys = [key for key in a if key[1] in shared]
  if set(keys) != {key for key in b if key[1] in shared}:
    raise ValueError('they were scored on different questions')
  differences = {key: b[key] - a[key] for key in keys}
  sums, counts = _by_question(differences)
  low, high = _bootstrap(sums, counts, seed)
  mean_a = math.fsum(a[key] for key in keys) / len(keys)
  mean_b = math.fsum(b[key] for key in keys) / len(keys)
  difference = math.fsum(differences.values()) / len(keys)
  return Comparison(
      mean_a=mean_a,
      mean_b=mean_b,
      difference=difference,
      relative=difference / mean_a if mean_a else None,
      low=low,
      high=high,
      by_seed=by_seed(differences),
  )


def by_seed(scores: Scores) -> dict[int, float]:
  """Mean of each seed, by ascending seed."""
  groups: dict[int, list[float]] = {}
  for (_, run), value in scores.items():
    groups.setdefault(run, []).append(value)
  return {run: math.fsum(values) / len(values) for run, values in sorted(groups.items())}


def score_row(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
  """`n`, `em`, `f1`, `acc` and `em_ci95` of a row of `results.json`.

  Args:
    rows: evaluation records with `em`, `f1` and `acc`.

  Raises:
    ValueError: there are no rows.
  """
  rows = list(rows)
  em = mean_interval([row['em'] for row in rows])
  means = {name: math.fsum(row[name] for row in rows) / len(rows) for name in ('f1', 'acc')}
  return {'n': em.n, 'em': em.mean, **means, 'em_ci95': [em.low, em.high]}


def _by_question(scores: Scores) -> tuple[np.ndarray, np.ndarray]:
  """Sum and number of the scores of each question, [Q] each, questions sorted by id.

  Sorting makes the resamples independent of the order in which scores were read.
  """
  groups: dict[str, list[float]] = {}
  for (question, _), value in scores.items():
    groups.setdefault(question, []).append(value)
  ordered = [groups[question] for question in sorted(groups)]
  return np.array([math.fsum(g) for g in ordered]), np.array([len(g) for g in ordered], np.float64)


def _bootstrap(sums: np.ndarray, counts: np.ndarray, seed: int) -> tuple[float, float]:
  """2.5th and 97.5th percentile of Σ sums / Σ counts over resampled questions; inputs are [Q]."""
  questions = sums.size
  rng = np.random.default_rng((seed, questions))
  chunk = max(1, _CHUNK // questions)
  means = []
  for start in range(0, RESAMPLES, chunk):
    drawn = rng.integers(0, questions, size=(min(chunk, RESAMPLES - start), questions))
    means.append(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
  low, high = np.percentile(np.concatenate(means), (2.5, 97.5))
  return float(low), float(high)
