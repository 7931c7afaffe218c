"""Sweeps over a stand-in for launch.train, in real processes."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from acesearch_jax.errors import UsageError
from acesearch_jax.evaluation import summary, sweep

_ROOT = pathlib.Path(__file__).parents[2]
# Does what a run leaves behind: one more line in `starts` each time, then results and evaluations.
_TRAIN = '''
import json, os, pathlib, sys, time
flags = dict(argument.lstrip('-').split('=', 1) for argument in sys.argv[1:])
folder = pathlib.Path(flags['workdir'])
(folder / 'evaluation').mkdir(parents=True, exist_ok=True)
(folder / 'pid').write_text(str(os.getpid()))
with open(folder / 'starts', 'a') as file:
  file.write(json.dumps(sys.argv[1:]) + chr(10))
if flags.get('stops_after_sft') and not os.path.exists('healed'):
  (folder / 'config.json').write_text('{}')
  (folder / 'stages').mkdir(exist_ok=True)
  (folder / 'stages' / 'sft.json').write_text('{}')
if flags.get('sleep') and not os.path.exists('healed'):
  time.sleep(float(flags['sleep']))
if flags['seed'] == flags.get('dies_with_seed') and not os.path.exists('healed'):
  sys.exit('out of luck')
seed = int(flags['seed'])
bonus = int(flags.get('beta', 0))
def score(stage, n):
  right = (n + seed) % 10 < 2 + 3 * stage + bonus
  return {'id': f'q{n}', 'em': int(right), 'f1': float(right), 'acc': 1.0, 'question': 'Why?'}
stages = ['base', 'sft', 'dpo_1']
for number, stage in enumerate(stages):
  text = ''.join(json.dumps(score(number, n)) + chr(10) for n in range(20))
  (folder / 'evaluation' / f'{stage}.jsonl').write_text(text)
(folder / 'evaluation' / 'dpo_1.rag.jsonl').write_text(text)
rows = [{'stage': stage, 'split': 'dev'} for stage in stages]
config = {'flags': {'workdir': str(folder.resolve()), 'index': '/home/someone/index'}, 'commit': 'abc',
          'device': 'cpu', 'cpus': 2}
(folder / 'config.json').write_text(json.dumps(config))
(folder / 'results.json').write_text(json.dumps({'recipe': 'x', 'stages': rows}))
'''


@pytest.fixture
def place(tmp_path, monkeypatch):
  """A folder with a `launch` package whose train.py is the stand-in."""
  shutil.copytree(_ROOT / 'launch', tmp_path / 'launch', ignore=shutil.ignore_patterns('__pycache__'))
  (tmp_path / 'launch' / 'train.py').write_text(_TRAIN)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('PYTHONPATH', str(_ROOT))
  return tmp_path


def _command(*arguments):
  return [sys.executable, '-m', 'launch.sweep', '--output=docs/results/proof', *arguments]


def _run(*arguments):
  return subprocess.run(_command(*arguments), capture_output=True, text=True, timeout=60)


def _starts(place, unit):
  return (place / 'runs' / 'proof' / unit / 'starts').read_text().splitlines()


def test_stages_are_the_variants_when_nothing_varies(place):
  done = _run(
      '--flagfile=some.cfg', '--seeds=0,1', '--compare=sft:dpo_1', '--claim=It works.', '--', '--lr=1'
  )
  assert done.returncode == 0, done.stderr
  assert json.loads(_starts(place, 'seed_1')[0]) == [
      '--flagfile=some.cfg', '--lr=1', '--seed=1', '--workdir=runs/proof/seed_1']
  output = place / 'docs' / 'results' / 'proof'
  scores = summary.read_scores(output / summary.SCORES)
  assert scores[0] == {'variant': 'base', 'seed': 0, 'id': 'q0', 'em': 1, 'f1': 1.0}
  assert len(scores) == 2 * 4 * 20
  found = json.loads((output / summary.SUMMARY).read_text())
  assert [(row['variant'], row['em']) for row in found['rows']] == [
      ('base', 0.2), ('sft', 0.5), ('dpo_1', 0.8), ('dpo_1.rag', 0.8)]
  assert found['comparisons'][0]['difference'] == pytest.approx(0.3)
  assert found['claim'] == 'It works.' and found['split'] == 'dev' and found['commit'] == 'abc'
  assert found['command'].startswith('python -m launch.sweep --output=docs/results/proof --flagfile=some.cfg')
  assert summary.check_summary(output) == []
  config = (output / 'runs' / 'seed_0' / 'config.json').read_text()
  assert json.loads(config)['flags'] == {'workdir': 'runs/proof/seed_0', 'index': 'index'}


def test_varied_values_are_the_variants_at_the_last_stage(place):
  done = _run('--vary=beta=0,1', '--seeds=0,1', '--compare=0:1')
  assert done.returncode == 0, done.stderr
  output = place / 'docs' / 'results' / 'proof'
  found = json.loads((output / summary.SUMMARY).read_text())
  assert [(row['variant'], row['em'], row['by_seed']) for row in found['rows']] == [
      ('0', 0.8, [0.8, 0.8]), ('1', 0.9, [0.9, 0.9])]
  assert json.loads(_starts(place, '1.seed_0')[0])[0] == '--beta=1'


def test_a_dead_unit_is_reported_others_go_on_and_the_next_start_finishes(place):
  arguments = ('--seeds=0,1,2', '--compare=base:sft', '--', '--dies_with_seed=1')
  done = _run(*arguments)
  assert done.returncode == 1
  last = done.stderr.splitlines()[-1]
  assert last == 'Unit seed_1 ended with exit code 1; its log is runs/proof/seed_1.log.'
  assert 'out of luck' in (place / 'runs' / 'proof' / 'seed_1.log').read_text()
  output = place / 'docs' / 'results' / 'proof'
  assert json.loads((output / summary.SUMMARY).read_text())['seeds'] == [0, 2]
  assert not (output / 'runs' / 'seed_1').exists()

  (place / 'healed').write_text('')
  done = _run(*arguments)
  assert done.returncode == 0, done.stderr
  assert [len(_starts(place, f'seed_{seed}')) for seed in range(3)] == [1, 2, 1]
  assert json.loads((output / summary.SUMMARY).read_text())['seeds'] == [0, 1, 2]
  # The order in which units came does not show.
  written = (output / summary.SCORES).read_bytes()
  shutil.rmtree(output)
  assert _run(*arguments).returncode == 0
  assert (output / summary.SCORES).read_bytes() == written


def test_being_told_to_stop_takes_the_run_along(place):
  process = subprocess.Popen(_command('--', '--sleep=50'), stderr=subprocess.PIPE, text=True)
  starts = place / 'runs' / 'proof' / 'seed_0' / 'starts'
  deadline = time.monotonic() + 30
  while not starts.exists() and time.monotonic() < deadline:
    time.sleep(0.05)
  assert starts.exists()
  process.send_signal(signal.SIGTERM)
  _, messages = process.communicate(timeout=20)
  assert process.returncode == 130
  assert messages.splitlines()[-1].startswith('Interrupted; the same command started again goes on')
  with pytest.raises(ProcessLookupError):
    os.kill(int((place / 'runs' / 'proof' / 'seed_0' / 'pid').read_text()), 0)


def test_a_unit_goes_on_without_its_run_folder(place):
  arguments = ('--', '--sleep=50', '--stops_after_sft=1')
  process = subprocess.Popen(_command(*arguments), stderr=subprocess.PIPE, text=True)
  carried = place / 'docs' / 'results' / 'proof' / 'runs' / 'seed_0' / 'carry'
  deadline = time.monotonic() + 30
  while not (carried / 'stages' / 'sft.json').exists() and time.monotonic() < deadline:
    time.sleep(0.05)
  process.send_signal(signal.SIGTERM)
  process.communicate(timeout=20)
  shutil.rmtree(place / 'runs')
  (place / 'healed').write_text('')
  done = _run(*arguments)
  assert done.returncode == 0, done.stderr
  assert (place / 'runs' / 'proof' / 'seed_0' / 'stages' / 'sft.json').exists()
  assert (carried.parent / 'results.json').exists() and not carried.exists()


@pytest.mark.parametrize(('arguments', 'message'), [
    (['--vary=beta'], '--vary=beta is not of the form'),
    (['--vary=beta=1,,2'], '--vary=beta=1,,2 is not of the form'),
    (['--seeds=0,x'], '--seeds=0,x is not a list of whole numbers'),
    (['--seeds=0,0'], '--seeds needs different numbers'),
    (['--compare=sft'], '--compare=sft is not of the form A:B'),
    (['--vary=beta=1,2', '--compare=1:3'], "--compare names '3'"),
    (['--output='], '--output is missing'),
])
def test_wrong_usage(place, arguments, message):
  done = _run(*arguments)
  assert done.returncode == 2
  assert done.stderr.startswith(message) and done.stderr.count('\n') == 1


def test_nothing_of_the_machine_is_left(monkeypatch):
  monkeypatch.setattr(sweep.socket, 'gethostname', lambda: 'box-17')
  monkeypatch.setattr(sweep.os, 'getcwd', lambda: '/home/me/project')
  assert sweep.portable({
      'a': '/home/me/project/runs/x', 'b': ['/data/corpus.jsonl', 'gs://bucket/dir', 'EM/F1 on box-17'],
      'c': '--xla_dump_to=/var/dump --x', 'd': 3, 'e': None,
  }) == {
      'a': 'runs/x', 'b': ['corpus.jsonl', 'gs://bucket/dir', 'EM/F1 on host'], 'c': '--xla_dump_to=dump --x',
      'd': 3, 'e': None,
  }


def test_values_whose_units_would_share_a_folder_are_refused():
  with pytest.raises(UsageError, match='same name'):
    sweep.Sweep((), 'x', ('a/b', 'a:b'), (0,), pathlib.Path('w'), pathlib.Path('o'), (), '', '')
