"""Every committed summary follows from the scores beside it."""

import json
import pathlib

import pytest

from acesearch_jax.errors import UserError
from acesearch_jax.evaluation import intervals, summary

_RESULTS = pathlib.Path(__file__).parents[2] / 'docs' / 'results'
_SUMMARIES = sorted(_RESULTS.glob('*/summary.json'))


@pytest.mark.parametrize('path', _SUMMARIES, ids=lambda path: path.parent.name)
def test_committed_summary_follows_from_its_scores(path):
  assert summary.check_summary(path.parent) == []


def _scores():
  """Two variants, two seeds, four questions; b turns one question right in seed 0 and two in seed 1."""
  right = {('a', 0): '1000', ('b', 0): '1100', ('a', 1): '0010', ('b', 1): '1110'}
  return [
      {'variant': variant, 'seed': seed, 'id': f'q{number}', 'em': int(digit), 'f1': (int(digit) + 1) / 2}
      for (variant, seed), digits in right.items() for number, digit in enumerate(digits)
  ]


@pytest.fixture
def folder(tmp_path):
  summary.write_scores(tmp_path / summary.SCORES, _scores())
  found = summary.summarise(_scores(), [('a', 'b')], 'b is better.', 'a command', 'abc', 'cpu', 'test')
  (tmp_path / summary.SUMMARY).write_text(json.dumps(found))
  return tmp_path


def test_summary_by_hand(folder):
  found = json.loads((folder / summary.SUMMARY).read_text())
  assert list(found) == ['claim', 'command', 'commit', 'device', 'split', 'seeds', 'n', 'rows', 'comparisons']
  assert found['seeds'] == [0, 1] and found['n'] == 4
  a, b = found['rows']
  del a['ci95'], b['ci95']
  assert a == {'variant': 'a', 'em': 0.25, 'f1': 0.625, 'by_seed': [0.25, 0.25]}
  assert b == {'variant': 'b', 'em': 0.625, 'f1': 0.8125, 'by_seed': [0.5, 0.75]}
  comparison, = found['comparisons']
  low, high = comparison.pop('ci95')
  assert comparison == {
      'a': 'a', 'b': 'b', 'metric': 'em', 'difference': 0.375, 'relative': 1.5, 'by_seed': [0.25, 0.5],
      'test': 'paired bootstrap over questions, seeds pooled',
  }
  # Differences by question, seeds pooled: 1/2, 1, 0, 0; means of four draws are multiples of 1/8.
  assert 0 <= low <= 0.125 and 0.75 <= high <= 0.875 and low * 8 == int(low * 8) and high * 8 == int(high * 8)


def test_one_seed_gets_a_wilson_interval_and_missing_seeds_are_null():
  scores = [row for row in _scores() if row['variant'] == 'a' or row['seed'] == 1]
  found = summary.summarise(scores, [('a', 'b')], '', '', None, 'cpu', 'dev')
  row = found['rows'][1]
  assert row['by_seed'] == [None, 0.75]
  assert row['ci95'] == pytest.approx(intervals.wilson(3, 4), abs=1e-6)
  assert found['comparisons'][0]['by_seed'] == [None, 0.5]


def test_success_takes_the_place_of_em():
  scores = [{'variant': 'x', 'seed': 0, 'id': str(n), 'success': n % 2} for n in range(10)]
  row, = summary.summarise(scores, [], '', '', None, 'cpu', 'test')['rows']
  assert row['success'] == 0.5 and 'em' not in row and 'f1' not in row


def test_a_right_summary_passes(folder):
  assert summary.check_summary(folder) == []


@pytest.mark.parametrize(('keys', 'value'), [
    (('rows', 1, 'em'), 0.65),
    (('rows', 0, 'ci95', 1), 0.9),
    (('rows', 0, 'by_seed', 0), 0.3),
    (('comparisons', 0, 'relative'), 1.6),
    (('comparisons', 0, 'ci95', 0), 0.2),
    (('comparisons', 0, 'test'), 'unpaired'),
    (('n',), 1000),
    (('seeds',), [0, 1, 2]),
    (('rows',), []),
])
def test_a_tampered_summary_is_found(folder, keys, value):
  found = json.loads((folder / summary.SUMMARY).read_text())
  target = found
  for key in keys[:-1]:
    target = target[key]
  target[keys[-1]] = value
  (folder / summary.SUMMARY).write_text(json.dumps(found))
  differences = summary.check_summary(folder)
  assert differences and str(keys[0]) in differences[0]


def test_tampered_or_broken_scores_are_found(folder):
  scores = _scores()
  scores[5]['em'] = 0
  summary.write_scores(folder / summary.SCORES, scores)
  assert any('rows' in line for line in summary.check_summary(folder))
  data = (folder / summary.SCORES).read_bytes()
  (folder / summary.SCORES).write_bytes(data[:-9])
  with pytest.raises(UserError, match='not a gzipped JSON-lines file'):
    summary.check_summary(folder)


def test_scores_are_the_same_bytes_every_time(tmp_path):
  summary.write_scores(tmp_path / 'a.gz', _scores())
  summary.write_scores(tmp_path / 'b.gz', iter(_scores()))
  data = (tmp_path / 'a.gz').read_bytes()
  assert data == (tmp_path / 'b.gz').read_bytes()
  assert data[4:8] == bytes(4)  # The header's time stamp.
  assert summary.read_scores(tmp_path / 'a.gz') == _scores()


def test_comparisons_that_cannot_be_made_are_refused():
  with pytest.raises(UserError, match="no scores of 'c', only of a, b"):
    summary.summarise(_scores(), [('a', 'c')], '', '', None, 'cpu', 'test')
  with pytest.raises(UserError, match='different questions'):
    summary.summarise(_scores()[:-1], [('a', 'b')], '', '', None, 'cpu', 'test')
  with pytest.raises(UserError, match='no scores to summarise'):
    summary.summarise([], [], '', '', None, 'cpu', 'test')
