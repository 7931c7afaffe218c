"""Committed results: the scores of every question, the summary computed from them, and its check."""

import gzip
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from acesearch_jax import files
from acesearch_jax.errors import UserError
from acesearch_jax.evaluation import intervals

SCORES = 'scores.jsonl.gz'
SUMMARY = 'summary.json'
TEST = 'paired bootstrap over questions, seeds pooled'
_DIGITS = 6
_TOLERANCE = 2e-6


def read_scores(path: pathlib.Path) -> list[dict[str, Any]]:
  """Reads `scores.jsonl.gz`: objects with variant, seed, id, and em and f1 or success.

  Raises:
    UserError: the file is missing or broken.
  """
  try:
    text = gzip.decompress(path.read_bytes()).decode()
    return [json.loads(line) for line in text.split('\n') if line]
  except FileNotFoundError as error:
    raise UserError(f'No such file: {path}.') from error
  except (OSError, EOFError, ValueError) as error:
    raise UserError(f'{path} is not a gzipped JSON-lines file ({error}); restore it.') from error


def write_scores(path: pathlib.Path, scores: Iterable[dict[str, Any]]) -> None:
  """Writes `scores.jsonl.gz`; equal scores give equal bytes (no time stamp in the gzip header)."""
  text = ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in scores)
  files.write_bytes(path, gzip.compress(text.encode(), mtime=0))


def summarise(
    scores: Sequence[dict[str, Any]],
    comparisons: Sequence[tuple[str, str]],
    claim: str,
    command: str,
    commit: str | None,
    device: str,
    split: str,
) -> dict[str, Any]:
  """The summary of an experiment.

  Variants come in the order of their first score. The metric is `success` where scores have it, else
  `em`. Intervals: Wilson for one seed, bootstrap over questions with seeds pooled for several, see
  `intervals`. Lists by seed follow `seeds`, with null where a variant lacks the seed. Numbers are
  rounded to six digits.

  Args:
    scores: {variant, seed, id, em, f1} or {variant, seed, id, success}, one a question.
    comparisons: pairs (a, b) of variants.
    claim: one sentence.
    command: what was run.
    commit: of the code.
    device: what it ran on.
    split: of the questions.

  Raises:
    UserError: a comparison names a variant without scores, or cannot be paired.
  """
  if not scores:
    raise UserError('There are no scores to summarise; run at least one unit.')
  metric = 'success' if 'success' in scores[0] else 'em'
  seeds = sorted({row['seed'] for row in scores})
  tables: dict[str, dict[str, dict[tuple[str, int], float]]] = {}
  for row in scores:
    table = tables.setdefault(row['variant'], {})
    for name in (metric, 'f1'):
      if name in row:
        table.setdefault(name, {})[row['id'], row['seed']] = float(row[name])
  rows = []
  for variant, table in tables.items():
    estimate = intervals.pooled_interval(table[metric])
    means = intervals.by_seed(table[metric])
    row = {'variant': variant, metric: estimate.mean}
    if 'f1' in table:
      row['f1'] = sum(table['f1'].values()) / len(table['f1'])
    row |= {'ci95': [estimate.low, estimate.high], 'by_seed': [means.get(seed) for seed in seeds]}
    rows.append(row)
  counts: dict[tuple[str, int], int] = {}
  for row in scores:
    counts[row['variant'], row['seed']] = counts.get((row['variant'], row['seed']), 0) + 1
  summary = {
      'claim': claim, 'command': command, 'commit': commit, 'device': device, 'split': split, 'seeds': seeds,
      'n': max(counts.values()), 'rows': rows,
      'comparisons': [_compare(tables, a, b, metric, seeds) for a, b in comparisons],
  }
  return _rounded(summary)


def check_summary(folder: pathlib.Path) -> list[str]:
  """Recomputes `summary.json` from the scores beside it.

  Args:
    folder: `docs/results/NAME`.

  Returns:
    One line a value that differs; empty when the summary is right.

  Raises:
    UserError: a file is missing or broken.
  """
  summary = files.read_json(folder / SUMMARY)
  again = summarise(
      read_scores(folder / SCORES),
      [(comparison['a'], comparison['b']) for comparison in summary['comparisons']],
      **{name: summary[name] for name in ('claim', 'command', 'commit', 'device', 'split')},
  )
  return list(_differences(summary, again, SUMMARY))


def _compare(tables: dict, a: str, b: str, metric: str, seeds: list[int]) -> dict[str, Any]:
  for variant in (a, b):
    if variant not in tables:
      raise UserError(f'Cannot compare {a}:{b}: no scores of {variant!r}, only of {", ".join(tables)}.')
  try:
    found = intervals.paired_bootstrap(tables[a][metric], tables[b][metric])
  except ValueError as error:
    raise UserError(f'Cannot compare {a}:{b}: {error}.') from error
  return {
      'a': a, 'b': b, 'metric': metric, 'difference': found.difference, 'relative': found.relative,
      'ci95': [found.low, found.high], 'by_seed': [found.by_seed.get(seed) for seed in seeds], 'test': TEST,
  }


def _rounded(value: Any) -> Any:
  if isinstance(value, float):
    return round(value, _DIGITS)
  if isinstance(value, dict):
    return {name: _rounded(item) for name, item in value.items()}
  if isinstance(value, list):
    return [_rounded(item) for item in value]
  return value


def _differences(found: Any, wanted: Any, where: str) -> Iterable[str]:
  if isinstance(found, dict) and isinstance(wanted, dict):
    for name in [*wanted, *(name for name in found if name not in wanted)]:
      yield from _differences(found.get(name), wanted.get(name), f'{where}: {name}')
  elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
    for position, pair in enumerate(zip(found, wanted, strict=True)):
      yield from _differences(*pair, f'{where}[{position}]')
  elif isinstance(found, float | int) and isinstance(wanted, float | int):
    if not abs(found - wanted) <= _TOLERANCE:
      yield f'{where} is {found}, the scores give {wanted}'
  elif found != wanted:
    yield f'{where} is {found!r}, the scores give {wanted!r}'
