"""Sweeps: training runs one after another, and what of them is committed.

A unit is one run (a variant with a seed). Its scores go into `scores.jsonl.gz`, its `config.json` and
`results.json` into `runs/UNIT/`; `results.json` comes last and marks the unit as committed. Until then
`runs/UNIT/carry/` has its complete stages, so that a unit too long for one sitting goes on in the next,
on another machine if need be.
"""

import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from typing import Any

from absl import logging

from acesearch_jax import files
from acesearch_jax.errors import UsageError, UserError
from acesearch_jax.evaluation import carry, summary

_LOOK_EVERY_SECONDS = 1.0
# An absolute path: a slash that does not follow a name, a colon or another slash.
_PATH = re.compile(r'''(?<![\w.:/])/(?:[^\s:=,'"/]+/)*([^\s:=,'"/]+)/?''')


@dataclasses.dataclass(frozen=True)
class Unit:
  """One run of a sweep.

  Attributes:
    variant: the varied value; None where nothing is varied and the variants are the stages of the run.
    seed: the run's seed.
  """

  variant: str | None
  seed: int

  @property
  def name(self) -> str:
    seed = f'seed_{self.seed}'
    return seed if self.variant is None else f'{re.sub(r"[^A-Za-z0-9._-]", "_", self.variant)}.{seed}'


@dataclasses.dataclass(frozen=True)
class Sweep:
  """What to run.

  Attributes:
    train_flags: flags of `launch.train` that all units share, as written on the command line.
    vary: name of the varied flag, None for none.
    values: its values, empty for none.
    seeds: seeds of every variant.
    workdir: folder for the run folders and logs of the units.
    output: folder of the committed results.
    comparisons: pairs (a, b) of variants.
    claim: one sentence for the summary.
    command: the command line for the summary.
  """

  train_flags: tuple[str, ...]
  vary: str | None
  values: tuple[str, ...]
  seeds: tuple[int, ...]
  workdir: pathlib.Path
  output: pathlib.Path
  comparisons: tuple[tuple[str, str], ...]
  claim: str
  command: str

  def __post_init__(self):
    if not self.seeds or len(set(self.seeds)) != len(self.seeds):
      raise UsageError('--seeds needs different numbers, for example --seeds=0,1,2.')
    names = [unit.name for unit in self.units()]
    if len(set(names)) != len(names):
      raise UsageError(f'Two values of --vary={self.vary} have the same name; give different ones.')
    for pair in self.comparisons:
      for variant in pair:
        if self.vary and variant not in self.values:
          raise UsageError(f'--compare names {variant!r}, which is not a value of --vary={self.vary}.')

  def units(self) -> list[Unit]:
    """Variants outermost."""
    return [Unit(value, seed) for value in (self.values or (None,)) for seed in self.seeds]


def run(sweep: Sweep) -> dict[str, Any]:
  """Runs the units that are not committed yet, commits each, and writes `summary.json`.

  Args:
    sweep: what to run.

  Returns:
    The summary.

  Raises:
    UserError: a unit failed (the others were run all the same), or the scores cannot be summarised.
  """
  failed = []
  units = sweep.units()
  for number, unit in enumerate(units, start=1):
    if _committed(sweep, unit).exists():
      logging.info('Unit %d/%d, %s: committed, skipped.', number, len(units), unit.name)
      continue
    logging.info('Unit %d/%d, %s: running.', number, len(units), unit.name)
    start = time.monotonic()
    try:
      code, log = _train(sweep, unit)
      if code != 0:
        raise UserError(f'Unit {unit.name} ended with exit code {code}; its log is {log}.')
      commit_unit(sweep, unit)
    except UserError as error:
      logging.error('%s', error)
      failed.append(str(error))
      continue
    logging.info('Unit %s: done in %.0f s.', unit.name, time.monotonic() - start)
  found = _summarise(sweep) if (sweep.output / summary.SCORES).exists() else {}
  if failed:
    raise UserError(' '.join(failed))
  return found


def commit_unit(sweep: Sweep, unit: Unit) -> None:
  """Copies what is worth keeping of a finished run into the output folder.

  Raises:
    UserError: the run folder has no results or no scores.
  """
  folder = sweep.workdir / unit.name
  results = files.read_json(folder / 'results.json')
  rows = [
      {'variant': variant if unit.variant is None else unit.variant, 'seed': unit.seed, **row}
      for variant, path in _score_files(folder, results, final_only=unit.variant is not None)
      for row in map(_scores_of, files.read_jsonl(path))
  ]
  if not rows:
    raise UserError(f'{folder / "evaluation"} holds no scores; the run must evaluate at least one stage.')
  path = sweep.output / summary.SCORES
  kept = summary.read_scores(path) if path.exists() else []
  kept = [row for row in kept if _unit_of(sweep, row) != unit]
  order = {known: position for position, known in enumerate(sweep.units())}
  everything = sorted(kept + rows, key=lambda row: order.get(_unit_of(sweep, row), len(order)))
  summary.write_scores(path, everything)
  committed = _committed(sweep, unit)
  files.write_json(committed.parent / 'config.json', portable(files.read_json(folder / 'config.json')))
  files.write_json(committed, portable(results))
  shutil.rmtree(_carried(sweep, unit), ignore_errors=True)


def portable(value: Any) -> Any:
  """A JSON value without what ties it to a machine: absolute paths lose their folders, host names go."""
  if isinstance(value, str):
    text = value.replace(os.getcwd() + os.sep, '')
    text = _PATH.sub(r'\1', text)
    return re.sub(rf'\b{re.escape(socket.gethostname())}\b', 'host', text)
  if isinstance(value, dict):
    return {name: portable(item) for name, item in value.items()}
  if isinstance(value, list):
    return [portable(item) for item in value]
  return value


def _train(sweep: Sweep, unit: Unit) -> tuple[int, pathlib.Path]:
  """Runs (or resumes) one unit in a process of its own; returns its exit code and its log."""
  folder, carried = sweep.workdir / unit.name, _carried(sweep, unit)
  log = sweep.workdir / f'{unit.name}.log'
  if carried.exists() and not (folder / 'config.json').exists():
    carry.restore(carried, folder)
    logging.info('Unit %s: goes on from %s.', unit.name, carried)
  command = [sys.executable, '-m', 'launch.train', *sweep.train_flags]
  if unit.variant is not None:
    command.append(f'--{sweep.vary}={unit.variant}')
  command += [f'--seed={unit.seed}', f'--workdir={folder}']
  sweep.workdir.mkdir(parents=True, exist_ok=True)
  with open(log, 'ab') as output:
    output.write(f'$ {shlex.join(command)}\n'.encode())
    output.flush()
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    stages = carry.complete_stages(folder)
    try:
      while True:
        try:
          return process.wait(_LOOK_EVERY_SECONDS), log
        except subprocess.TimeoutExpired:
          if (now := carry.complete_stages(folder)) != stages:
            carry.save(folder, carried)
            stages = now
    finally:
      if process.poll() is None:  # This process was told to stop: take the run along, it can resume.
        process.terminate()
        process.wait()


def _score_files(
    folder: pathlib.Path, results: dict[str, Any], final_only: bool
) -> list[tuple[str, pathlib.Path]]:
  """Variant names and score files of a run: stages in order, each followed by its other agents."""
  stages = [row['stage'] for row in results['stages']]
  if final_only:
    return [(stages[-1], folder / 'evaluation' / f'{stages[-1]}.jsonl')] if stages else []
  names = sorted(path.name.removesuffix('.jsonl') for path in (folder / 'evaluation').glob('*.jsonl'))
  position = {stage: number for number, stage in enumerate(stages)}
  names.sort(key=lambda name: position.get(name.partition('.')[0], len(stages)))
  return [(name, folder / 'evaluation' / f'{name}.jsonl') for name in names]


def _scores_of(row: dict[str, Any]) -> dict[str, Any]:
  return {name: row[name] for name in ('id', 'em', 'f1', 'success') if name in row}


def _unit_of(sweep: Sweep, row: dict[str, Any]) -> Unit:
  return Unit(row['variant'] if sweep.vary else None, row['seed'])


def _committed(sweep: Sweep, unit: Unit) -> pathlib.Path:
  return sweep.output / 'runs' / unit.name / 'results.json'


def _carried(sweep: Sweep, unit: Unit) -> pathlib.Path:
  return sweep.output / 'runs' / unit.name / 'carry'


def _summarise(sweep: Sweep) -> dict[str, Any]:
  scores = summary.read_scores(sweep.output / summary.SCORES)
  runs = [_committed(sweep, unit) for unit in sweep.units() if _committed(sweep, unit).exists()]
  config = files.read_json(runs[0].parent / 'config.json')
  stages = files.read_json(runs[0])['stages']
  scored = {row['variant'] for row in scores}
  comparisons = []
  for a, b in sweep.comparisons:
    if {a, b} <= scored:
      comparisons.append((a, b))
    else:
      logging.error('Comparison %s:%s is left out: there are scores of %s only.', a, b, sorted(scored))
  found = summary.summarise(
      scores, comparisons, sweep.claim, portable(sweep.command), config.get('commit'),
      f'{config["device"]}, {config["cpus"]} CPUs', stages[-1]['split'],
  )
  files.write_json(sweep.output / summary.SUMMARY, found)
  return found
