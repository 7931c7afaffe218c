"""The training steps compile for a TPU: sharded by the rule table, buffers donated, small enough."""

import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
TOPOLOGY, MESH, CHIPS = 'v5e:2x4', 'data:2,fsdp:2,tensor:2', 8
HBM_BYTES = 16e9  # of a v5e chip
PARAMS = 134_515_008  # SmolLM2-135M, embeddings tied


@pytest.fixture(scope='module')
def programs():
  if importlib.util.find_spec('libtpu') is None:
    pytest.skip('libtpu is not installed (pip install libtpu; Linux on x86-64)')
  if platform.system() != 'Linux' or platform.machine() != 'x86_64':
    pytest.skip('libtpu runs on Linux on x86-64 only')
  environment = os.environ | {
      'JAX_PLATFORMS': 'cpu',
      'TPU_SKIP_MDS_QUERY': '1',
      'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',  # No chip is used: another process may hold the library's lock.
      'PYTHONPATH': os.pathsep.join([str(HERE.parents[1]), os.environ.get('PYTHONPATH', '')]),
  }
  command = [sys.executable, str(HERE / 'compile_steps.py'), TOPOLOGY, MESH]
  done = subprocess.run(command, env=environment, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-4000:]
  report = json.loads(done.stdout.splitlines()[-1])
  for name, program in report.items():
    megabytes = {key: round(value / 1e6, 1) for key, value in program.items() if key.endswith('bytes')}
    print(f'{TOPOLOGY} {MESH} {name}: MB per chip {megabytes}')
  return report


@pytest.mark.parametrize('name', ['sft/accumulate', 'dpo/accumulate', 'sft/update', 'decode'])
def test_fits_a_chip_and_talks_to_the_others(programs, name):
  assert programs[name]['total_bytes'] < HBM_BYTES
  assert programs[name]['num_collectives'] > 0


@pytest.mark.parametrize('name', ['sft/accumulate', 'dpo/accumulate'])
def test_accumulators_are_donated_and_sharded(programs, name):
  program = programs[name]
  assert program['alias_bytes'] > 0 and program['num_aliased'] == 13  # 11 parameters' gradients, two sums
  assert program['output_bytes'] - program['alias_bytes'] < 0.01 * program['output_bytes']
  # fsdp and tensor halve all but the key/value heads, which two do not divide evenly, and norms.
  assert program['argument_bytes'] < 2 * 4 * PARAMS / 2


def test_state_is_donated_and_sharded(programs):
  program = programs['sft/update']
  assert program['output_bytes'] - program['alias_bytes'] < 0.01 * program['output_bytes']
  # Parameters, two moments, gradients: float32, at most half of each on a chip.
  assert program['argument_bytes'] < 4 * 4 * PARAMS / 2


def test_no_chip_holds_the_logits_of_its_rows(programs):
  rows, length, vocab = 16 // 4, 1024, 49152 // 2  # a chip's share
  for name in ('sft/accumulate', 'dpo/accumulate'):
    assert programs[name]['largest_array'] < rows * length * vocab


def test_the_cache_is_donated_and_sharded(programs):
  """64 slots of 1,024 tokens: over data and fsdp; three KV heads do not divide over two chips."""
  cache = 2 * 30 * 64 * 1024 * 3 * 64 * 2  # keys and values of 30 layers, bfloat16
  program = programs['decode']
  assert cache / 4 <= program['alias_bytes'] < cache / 4 * 1.01 + 64 * 49152
  assert program['argument_bytes'] < cache / 4 * 1.01 + 4 * PARAMS / 2
