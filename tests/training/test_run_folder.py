"""The run folder: lock, configuration, stages, results and shards."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from absl import logging

from acesearch_jax.errors import UserError
from acesearch_jax.training import run_folder
from acesearch_jax.training.run_folder import RunFolder, Shards, fingerprint

_MESH = {'data': 1, 'fsdp': 1, 'tensor': 1, 'sequence': 1}
_HOLDER = '''
import sys, time
from acesearch_jax.training.run_folder import RunFolder
folder = RunFolder(sys.argv[1])
print('held', flush=True)
time.sleep(60)
'''


@pytest.fixture
def folder(tmp_path):
  with RunFolder(tmp_path / 'run') as opened:
    yield opened


def test_a_second_owner_is_refused_and_a_killed_one_frees_the_folder(tmp_path):
  holder = subprocess.Popen([sys.executable, '-c', _HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True,
                            cwd=pathlib.Path(__file__).parents[2], env=os.environ | {'JAX_PLATFORMS': 'cpu'})
  try:
    assert holder.stdout.readline() == 'held\n'
    with pytest.raises(UserError, match=f'in use by another run .process {holder.pid}.'):
      RunFolder(tmp_path)
  finally:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
  RunFolder(tmp_path).close()


def test_the_same_process_cannot_open_a_folder_twice(tmp_path):
  with RunFolder(tmp_path), pytest.raises(UserError, match='in use'):
    RunFolder(tmp_path)
  RunFolder(tmp_path).close()


def test_a_file_in_the_way_is_one_sentence(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='choose another --workdir'):
    RunFolder(tmp_path / 'file')


def test_configuration_is_complete_and_refuses_changed_flags(folder):
  folder.configure({'lr': 1e-4, 'steps': 3, 'profile': False}, _MESH)
  config = json.loads((folder.path / 'config.json').read_text())
  assert config['flags'] == {'lr': 1e-4, 'profile': False, 'steps': 3}
  assert config['mesh'] == _MESH
  assert set(config['versions']) == {'python', 'jax', 'jaxlib', 'flax', 'optax'}
  assert config.keys() >= {'commit', 'device', 'cpus', 'xla_flags'}

  folder.mark_done('base', 'x', {})
  before = (folder.path / 'config.json').read_bytes()
  folder.configure({'lr': 1e-4, 'steps': 3, 'profile': False}, _MESH)
  assert (folder.path / 'config.json').read_bytes() == before
  with pytest.raises(UserError, match=r'started with --steps=3, not 4'):
    folder.configure({'lr': 1e-4, 'steps': 4, 'profile': False}, _MESH)
  with pytest.raises(UserError, match=r'--new=\(unset\), not 1'):
    folder.configure({'lr': 1e-4, 'steps': 3, 'profile': False, 'new': 1}, _MESH)
  folder.configure({'lr': 1e-4, 'steps': 3, 'profile': True}, _MESH, frozenset({'profile'}))
  assert json.loads((folder.path / 'config.json').read_text())['flags']['profile'] is True


def test_flags_may_be_corrected_until_something_is_made(folder):
  folder.configure({'model': 'mispelt'}, _MESH)
  folder.save_seconds()
  folder.configure({'model': 'tiny'}, _MESH)
  assert json.loads((folder.path / 'config.json').read_text())['flags'] == {'model': 'tiny'}
  folder.shards('evaluation/shards/base', 'x').write(0, [{'id': 'a'}])
  with pytest.raises(UserError, match='started with --model="tiny"'):
    folder.configure({'model': 'other'}, _MESH)


def test_another_environment_warns(folder, monkeypatch):
  folder.configure({}, _MESH)
  folder.mark_done('base', 'x', {})
  messages = []
  monkeypatch.setattr(logging, 'warning', lambda text, *values: messages.append(text % values))
  here = run_folder.environment()
  monkeypatch.setattr(run_folder, 'environment', lambda: here | {'cpus': 99})
  folder.configure({}, _MESH)
  assert len(messages) == 1
  assert f'cpus {here["cpus"]} and goes on with 99' in messages[0]


def test_a_stage_is_done_only_for_its_inputs(folder):
  assert not folder.stage_done('sft', 'a')
  with pytest.raises(UserError):
    folder.stage_outputs('sft')
  folder.mark_done('sft', 'a', {'checkpoint': 12})
  assert folder.stage_done('sft', 'a')
  assert not folder.stage_done('sft', 'b')
  assert folder.stage_outputs('sft') == {'checkpoint': 12}


def _row(stage, em):
  return {'stage': stage, 'step': 0, 'dataset': 'world', 'split': 'test', 'n': 2, 'em': em, 'f1': em,
          'acc': em, 'em_ci95': [0.0, 1.0]}


def test_results_come_from_markers_and_survive_restarts(tmp_path):
  stages = ['evaluate_base', 'sft', 'evaluate_sft', 'later']
  with RunFolder(tmp_path) as folder:
    folder.mark_done('evaluate_base', 'x', {'result': _row('base', 0.25), 'tokens': {'decoded': 5}})
    folder.mark_done('sft', 'x', {'tokens': {'trained': 7}})
    counts = {'decoded': 6, 'prefilled': 1}
    folder.mark_done('evaluate_sft', 'x', {'result': _row('sft', 0.5), 'tokens': counts})
    results = folder.write_results('acesearcher', stages)
  assert results | {'seconds': 0} == {
      'recipe': 'acesearcher', 'stages': [_row('base', 0.25), _row('sft', 0.5)], 'seconds': 0,
      'tokens': {'prefilled': 1, 'decoded': 11, 'trained': 7},
  }
  assert list(results) == ['recipe', 'stages', 'seconds', 'tokens']
  written = (tmp_path / 'results.json').read_bytes()
  with RunFolder(tmp_path) as folder:
    folder.write_results('acesearcher', stages)
  assert (tmp_path / 'results.json').read_bytes() == written


def test_seconds_add_up_over_restarts(tmp_path, monkeypatch):
  now = [100.0]
  monkeypatch.setattr(run_folder.time, 'monotonic', lambda: now[0])
  with RunFolder(tmp_path) as folder:
    folder.save_seconds()
    now[0] += 40
    folder.save_seconds()
    now[0] += 3  # Not stored yet: a kill loses this.
  now[0] = 1000.0
  with RunFolder(tmp_path) as folder:
    now[0] += 2
    assert folder.seconds() == pytest.approx(42)


def test_shards_are_complete_only_with_marker_file_and_inputs(tmp_path):
  shards = Shards(tmp_path / 'rollouts' / '1', 'inputs')
  assert shards.complete() == [] and list(shards.read()) == []
  shards.write(12, [{'id': 'c'}], {'decoded': 3})
  shards.write(0, [{'id': 'a'}, {'id': 'é\u2028'}], {'decoded': 4, 'prefilled': 1})
  assert (tmp_path / 'rollouts' / '1' / 'shard_00012.jsonl').exists()
  assert shards.complete() == [0, 12]
  assert [row['id'] for row in shards.read()] == ['a', 'é\u2028', 'c']
  assert shards.counters() == {'decoded': 7, 'prefilled': 1}

  assert Shards(shards.folder, 'others').complete() == []
  (shards.folder / 'shard_00000.jsonl').write_text('{"id": "a"}\n')
  assert shards.complete() == [12]
  (shards.folder / 'shard_00012.done.json').unlink()
  assert shards.complete() == []


def test_fingerprints_separate_values_and_do_not_depend_on_the_order_of_keys():
  assert fingerprint({'a': 1, 'b': 2}) == fingerprint({'b': 2, 'a': 1})
  assert fingerprint('ab', 'c') != fingerprint('a', 'bc')
  assert fingerprint(b'1') == fingerprint(1) != fingerprint(2)
