"""A run that is killed in every stage ends with the bytes of an undisturbed one."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import small_world

ROOT = pathlib.Path(__file__).parents[2]
# When the file appears, the run is killed. One in each kind of stage; patterns are relative to the run.
KILLS = (
    'evaluation/shards/base/shard_00000.jsonl',
    'checkpoints/sft/steps/*',
    'stages/sft.json',
    'rollouts/1/shard_00000.done.json',
    'preferences/1.jsonl',
    'checkpoints/dpo_1/policy.json',
    'stages/evaluate_dpo_1.json',
    'checkpoints/raft_1/*',
    'rollouts/2/shard_00000.jsonl',
    'stages/dpo_2.json',
    'stages/sft_more.json',
)


def start(flags, log):
  environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''}
  return subprocess.Popen(
      [sys.executable, '-m', 'launch.train', *flags], cwd=ROOT, env=environment, stdout=log, stderr=log
  )


def finish(flags, log_path):
  with open(log_path, 'ab') as log:
    process = start(flags, log)
    assert process.wait(timeout=900) == 0, log_path.read_text()[-3000:]


def kill_when(pattern, flags, workdir, log_path):
  """Starts the run and kills it as soon as a file matches; returns whether it got that far."""
  with open(log_path, 'ab') as log:
    process = start(flags, log)
    while process.poll() is None:
      if any(workdir.glob(pattern)):
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True
      time.sleep(0.01)
  return False


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  folder = tmp_path_factory.mktemp('resume')
  small_world.write_tasks(folder / 'tasks.jsonl')
  return folder


@pytest.fixture(scope='module')
def undisturbed(place):
  workdir = place / 'undisturbed'
  finish(small_world.train_flags(place / 'tasks.jsonl', workdir, place / 'cache'), place / 'undisturbed.log')
  return workdir


def results(workdir):
  found = json.loads((workdir / 'results.json').read_text())
  assert found.pop('seconds') > 0
  return found


def weights(workdir):
  return {
      str(path.relative_to(workdir)): path.read_bytes()
      for path in workdir.glob('checkpoints/*/weights.safetensors')
  }


def test_the_run_has_every_stage(undisturbed):
  found = results(undisturbed)
  stages = [row['stage'] + ('.rag' if row.get('agent') else '') for row in found['stages']]
  assert stages == ['base', 'sft', 'dpo_1', 'dpo_2', 'dpo_2.rag', 'raft', 'sft_more']
  for row in found['stages']:
    assert row['n'] == 8 and 0 <= row['em_ci95'][0] <= row['em'] <= row['em_ci95'][1]
  assert all(count > 0 for count in found['tokens'].values())
  # The stage that matters here has something to learn from.
  assert (undisturbed / 'preferences/1.jsonl').read_text().count('\n') >= 4
  assert (undisturbed / 'report.html').stat().st_size > 10_000
  config = json.loads((undisturbed / 'config.json').read_text())
  assert config['flags']['model'] == 'tiny' and config['mesh']['fsdp'] == 1


def test_killed_in_every_stage_it_ends_with_the_same_bytes(place, undisturbed):
  workdir, log = place / 'killed', place / 'killed.log'
  flags = small_world.train_flags(place / 'tasks.jsonl', workdir, place / 'cache')
  killed = [kill_when(pattern, flags, workdir, log) for pattern in KILLS]
  assert sum(killed) >= 10, killed
  finish(flags, log)
  assert results(workdir) == results(undisturbed)
  assert weights(workdir) == weights(undisturbed)
  assert len(weights(workdir)) == 6


def test_starting_a_finished_run_again_changes_no_byte(place, undisturbed):
  before = {name: (undisturbed / name).read_bytes() for name in ('results.json', 'config.json')}
  finish(small_world.train_flags(place / 'tasks.jsonl', undisturbed, place / 'cache'), place / 'again.log')
  assert before == {name: (undisturbed / name).read_bytes() for name in before}


def test_other_flags_are_refused(place, undisturbed):
  flags = small_world.train_flags(place / 'tasks.jsonl', undisturbed, place / 'cache')
  with open(place / 'refused.log', 'wb') as log:
    assert start([*flags, '--dpo_beta=0.7'], log).wait(timeout=300) == 1
  message = (place / 'refused.log').read_text().strip().splitlines()[-1]
  assert '--dpo_beta=0.1' in message and '0.7' in message
