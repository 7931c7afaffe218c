"""What a run report shows, read from the run folder and cut down to what a page can hold."""

import collections
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from acesearch_jax import files
from acesearch_jax.errors import UserError

_LONGEST_PASSAGE = 700


@dataclasses.dataclass(frozen=True)
class TrajectorySet:
  """Trajectories of one iteration or evaluation.

  Attributes:
    name: for people.
    total: how many the run folder holds.
    kept: those that are in the page, under the names that its script reads.
  """

  name: str
  total: int
  kept: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class RunData:
  """The contents of a run folder; what is missing there is empty here.

  Attributes:
    config: `config.json`.
    results: `results.json`.
    metrics: rows of `metrics.jsonl`.
    evaluations: records by file (`STAGE` or `STAGE.AGENT`), in the order of the stages.
    self_play: statistics by iteration.
    preferences: pairs by iteration.
    sets: trajectories.
    passages: [title, text] of every passage that `sets` refer to by position.
    notes: a sentence for each thing that is missing.
  """

  config: dict[str, Any]
  results: dict[str, Any]
  metrics: list[dict[str, Any]]
  evaluations: dict[str, list[dict[str, Any]]]
  self_play: dict[str, 'SelfPlay']
  preferences: dict[str, list[dict[str, Any]]]
  sets: list[TrajectorySet]
  passages: list[list[str]]
  notes: list[str]


def read_run(folder: epath.Path, max_trajectories: int) -> RunData:
  """Reads a run folder.

  Args:
    folder: the run folder.
    max_trajectories: most trajectories kept of a set, evenly spaced over it.

  Raises:
    UserError: the folder does not exist, or a file in it is broken.
  """
  if not folder.is_dir():
    raise UserError(f'No such run folder: {folder}.')
  results = files.read_json(folder / 'results.json') if (folder / 'results.json').exists() else {}
  config = files.read_json(folder / 'config.json') if (folder / 'config.json').exists() else {}
  evaluations = _in_order(
      {path.name.removesuffix('.jsonl'): _rows(path) for path in _listed(folder / 'evaluation', '*.jsonl')},
      [row['stage'] for row in results.get('stages', [])],
  )
  passages = Passages()
  self_play = {
      name: _read_rollouts(path, max_trajectories, passages)
      for name, path in _iterations(folder / 'rollouts').items()
  }
  sets = [TrajectorySet(f'self-play {name}', found.total, found.kept) for name, found in self_play.items()]
  for name, rows in evaluations.items():
    kept = [_compact(row, passages) for row in evenly(rows, max_trajectories)]
    sets.append(TrajectorySet(f'evaluation {name}', len(rows), kept))
  preferences = {
      path.name.removesuffix('.jsonl'): _rows(path)
      for path in sorted(_listed(folder / 'preferences', '*.jsonl'), key=lambda path: _natural(path.name))
  }
  metrics = _metrics(folder / 'metrics.jsonl')
  present = {
      'config.json': config, 'results.json': results, 'metrics.jsonl': metrics, 'evaluation/': evaluations,
      'rollouts/': self_play, 'preferences/': preferences,
  }
  notes = [f'{name} is missing or empty; its part of this page is left out.'
           for name, value in present.items() if not value]
  return RunData(
      config, results, metrics, evaluations, self_play, preferences, sets, passages.table, notes
  )


class Passages:
  """Passages named by their position, so that each text is in the page once."""

  def __init__(self):
    self.table: list[list[str]] = []
    self._known: dict[tuple[str, str], int] = {}

  def number(self, passage: Mapping[str, Any]) -> int:
    title, text = str(passage.get('title', '')), str(passage.get('text', ''))
    if len(text) > _LONGEST_PASSAGE:
      text = text[:_LONGEST_PASSAGE] + ' …'
    if (title, text) not in self._known:
      self._known[title, text] = len(self.table)
      self.table.append([title, text])
    return self._known[title, text]


class SelfPlay:
  """One iteration of self-play: its kept trajectories and the statistics of all."""

  def __init__(self):
    self.total = self.plans = self.valid_plans = self.solutions = self.mixed = 0
    self.scores: collections.Counter[str] = collections.Counter()
    self.kept: list[dict[str, Any]] = []

  def add(self, row: Mapping[str, Any]) -> None:
    plans = row.get('plans', [])
    solutions = [solution for plan in plans for solution in plan.get('solutions', [])]
    self.total += 1
    self.plans += len(plans)
    self.valid_plans += sum(bool(plan.get('valid')) for plan in plans)
    self.solutions += len(solutions)
    self.mixed += len({solution.get('reward', 0) for solution in solutions}) > 1
    for solution in solutions:
      self.scores.update({'reward': solution.get('reward', 0)} | _scores(solution))


def _read_rollouts(folder: epath.Path, limit: int, passages: Passages) -> SelfPlay:
  shards = _listed(folder, 'shard_*.jsonl')
  total = sum(1 for shard in shards for _ in files.read_jsonl(shard))
  chosen = set(evenly(range(total), limit))
  found = SelfPlay()
  for number, row in enumerate(row for shard in shards for row in files.read_jsonl(shard)):
    found.add(row)
    if number in chosen:
      found.kept.append(_compact(row, passages))
  return found


def _compact(row: Mapping[str, Any], passages: Passages) -> dict[str, Any]:
  """What the page needs of a rollout or an evaluation record, under short names."""
  task = row.get('task', {})

  def get(name: str, default: Any) -> Any:
    return row.get(name, task.get(name, default))

  plans = [
      {
          'text': plan.get('text', ''), 'valid': bool(plan.get('valid')), 'reason': plan.get('reason', ''),
          'mean': plan.get('mean_reward'),
          'solutions': [_compact_solution(solution, passages) for solution in plan.get('solutions', [])],
      }
      for plan in row.get('plans', [])
  ]
  solutions = [solution for plan in plans for solution in plan['solutions']]
  answers = [solution['answer'] for solution in solutions if solution['answer'] is not None]
  rewards = [solution['reward'] for solution in solutions]
  if 'em' in row:
    right = [row['em'] == 1]
  else:
    right = [solution['scores'].get('em', solution['reward']) == 1 for solution in solutions]
  if any(right):
    status = 'right' if all(right) else 'mixed'
  else:
    parsed = row.get('plan_valid', True) and (answers or row.get('prediction'))
    status = 'wrong' if parsed else 'unparsed'
  return {
      'id': str(get('id', '')), 'type': get('type', ''), 'question': get('question', ''),
      'gold': list(get('answers', [])), 'status': status,
      'answer': row.get('prediction', collections.Counter(answers).most_common(1)[0][0] if answers else None),
      'reward': sum(rewards) / len(rewards) if rewards else row.get('em', 0), 'plans': plans,
  }


def _compact_solution(solution: Mapping[str, Any], passages: Passages) -> dict[str, Any]:
  return {
      'text': solution.get('final_text', ''), 'answer': solution.get('answer'),
      'reward': solution.get('reward', 0), 'scores': _scores(solution),
      'steps': [
          {
              'question': step.get('question', ''), 'template': step.get('template', ''),
              'answer': step.get('answer', ''),
              'passages': [
                  [passages.number(p), round(p.get('score', 0), 3)] for p in step.get('passages', [])
              ],
          }
          for step in solution.get('steps', [])
      ],
  }


def _scores(solution: Mapping[str, Any]) -> dict[str, float]:
  scores = solution.get('scores') or {name: solution[name] for name in ('em', 'format') if name in solution}
  return {
      name: value for name, value in scores.items() if name != 'reward' and isinstance(value, int | float)
  }


def _rows(path: epath.Path) -> list[dict[str, Any]]:
  return list(files.read_jsonl(path)) if path.exists() else []


def _metrics(path: epath.Path) -> list[dict[str, Any]]:
  """Rows of a file that may be in use: a last line without its end is left out."""
  lines = path.read_bytes().decode(errors='replace').split('\n')[:-1] if path.exists() else []
  try:
    return [json.loads(line) for line in lines]
  except ValueError as error:
    raise UserError(f'{path} has a line that is not JSON ({error}); mend or delete it.') from error


def _listed(folder: epath.Path, pattern: str) -> list[epath.Path]:
  return sorted(folder.glob(pattern)) if folder.exists() else []


def _iterations(folder: epath.Path) -> dict[str, epath.Path]:
  found = [path for path in folder.iterdir() if _listed(path, 'shard_*.jsonl')] if folder.exists() else []
  return {path.name: path for path in sorted(found, key=lambda path: _natural(path.name))}


def _natural(name: str) -> list[Any]:
  return [(0, int(part), '') if part.isdigit() else (1, 0, part) for part in re.split(r'(\d+)', name) if part]


def _in_order(evaluations: dict[str, Any], stages: Sequence[str]) -> dict[str, Any]:
  """Stages in the order of the run, each followed by its other agents."""
  position = {stage: number for number, stage in enumerate(stages)}
  names = sorted(evaluations, key=lambda name: (position.get(name.partition('.')[0], len(stages)), name))
  return {name: evaluations[name] for name in names}


def evenly(items: Sequence[Any], limit: int) -> list[Any]:
  """At most `limit` items, evenly spaced."""
  if len(items) <= limit:
    return list(items)
  return [items[number * len(items) // limit] for number in range(limit)]
