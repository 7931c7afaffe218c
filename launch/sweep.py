"""Runs variants and seeds of one training configuration, then writes the evidence.

  python -m launch.sweep --flagfile=configs/acesearcher_proof.cfg --seeds=0,1,2 \\
      --compare=sft:dpo_2 --claim='DPO on own rollouts raises EM.' --output=docs/results/acesearcher_proof

Every unit (variant and seed) is one `python -m launch.train` in a folder under --workdir. Units run one
after another; committed ones are skipped and interrupted ones resume, so the same command can be given
again until all are there. Without --vary the variants of the summary are the stages of the runs; with
it, the varied values at the last stage. Flags after `--` go to launch.train as they are.
"""

import pathlib
import re
import shlex
import signal
import sys

from absl import flags

from acesearch_jax.errors import UsageError
from acesearch_jax.evaluation import sweep
from launch.main import run

_FLAGFILE = flags.DEFINE_string('config', None, 'Flagfile of launch.train; --flagfile means the same.')
_VARY = flags.DEFINE_string('vary', None, 'FLAG=v1,v2: a flag of launch.train and its values.')
_SEEDS = flags.DEFINE_list('seeds', ['0'], 'Seeds of every variant.')
_OUTPUT = flags.DEFINE_string('output', None, 'Folder of the committed results, docs/results/NAME.')
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder for the runs; runs/NAME when absent.')
_COMPARE = flags.DEFINE_list('compare', [], 'Comparisons A:B of variants, for example sft:dpo_2.')
_CLAIM = flags.DEFINE_string('claim', '', 'What the experiment shows, one sentence.')


def main(argv: list[str]) -> None:
  if not _OUTPUT.value:
    raise UsageError('--output is missing; give a folder, for example --output=docs/results/NAME.')
  output = pathlib.Path(_OUTPUT.value)
  workdir = pathlib.Path(_WORKDIR.value or pathlib.Path('runs') / output.name)
  vary, values = _parse_vary(_VARY.value)
  shared = ([f'--flagfile={_FLAGFILE.value}'] if _FLAGFILE.value else []) + argv[1:]
  # A run that is told to stop must take the unit's process along.
  signal.signal(signal.SIGTERM, signal.default_int_handler)
  sweep.run(sweep.Sweep(
      train_flags=tuple(shared),
      vary=vary,
      values=values,
      seeds=_parse_seeds(_SEEDS.value),
      workdir=workdir,
      output=output,
      comparisons=tuple(_parse_pair(text) for text in _COMPARE.value),
      claim=_CLAIM.value,
      command=shlex.join(['python', '-m', 'launch.sweep', *_ARGUMENTS]),
  ))


def _parse_vary(text: str | None) -> tuple[str | None, tuple[str, ...]]:
  if text is None:
    return None, ()
  name, equals, values = text.partition('=')
  listed = tuple(value.strip() for value in values.split(','))
  if not (name and equals and all(listed)):
    raise UsageError(f'--vary={text} is not of the form FLAG=v1,v2.')
  return name.lstrip('-'), listed


def _parse_seeds(texts: list[str]) -> tuple[int, ...]:
  try:
    return tuple(int(text) for text in texts)
  except ValueError as error:
    raise UsageError(f'--seeds={",".join(texts)} is not a list of whole numbers.') from error


def _parse_pair(text: str) -> tuple[str, str]:
  a, colon, b = text.partition(':')
  if not (a and colon and b):
    raise UsageError(f'--compare={text} is not of the form A:B.')
  return a, b


def _own_flags(arguments: list[str]) -> list[str]:
  """Arguments with `--flagfile` renamed, lest absl read the runs' flags into this command."""
  return [re.sub(r'^--?flagfile(?==|$)', '--config', argument) for argument in arguments]


_ARGUMENTS = sys.argv[1:]

if __name__ == '__main__':
  sys.argv[1:] = _own_flags(_ARGUMENTS)
  run(main, max_arguments=100)
