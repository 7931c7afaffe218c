"""Checkpoints: other meshes, damage, a kill in the middle, a full disk."""

import os
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from acesearch_jax.errors import UserError
from acesearch_jax.sharding.mesh import make_mesh
from acesearch_jax.training.checkpoints import Checkpoints
from acesearch_jax.training.optimizer import OptimizerConfig, make_optimizer
from acesearch_jax.training.state import create_state, state_shardings


def tree(value: float = 0.0):
  return {'a': jnp.full((4, 3), value), 'b': {'c': jnp.arange(5, dtype=jnp.int32)}}


def saved(folder, steps=(1, 2)):
  checkpoints = Checkpoints(folder)
  for step in steps:
    checkpoints.save(step, tree(step), {'tokens': 10 * step})
  checkpoints.close()
  return Checkpoints(folder)


def test_the_latest_comes_back_with_its_counters_and_old_ones_go(tmp_path):
  restored, data = saved(tmp_path, (1, 2, 3)).restore(tree())
  jax.tree.map(np.testing.assert_array_equal, restored, tree(3))
  assert data == {'tokens': 30}
  assert sorted(path.name for path in tmp_path.iterdir()) == ['2', '3']


def test_nothing_saved_is_no_error(tmp_path):
  assert Checkpoints(tmp_path).restore(tree()) is None


def test_eight_devices_to_one_to_four(tmp_path):
  """Every leaf, moments included, lands where the new mesh wants it."""
  optimizer = make_optimizer(OptimizerConfig(1e-3), 10)
  want = None
  for i, mesh_text in enumerate(('data:2,fsdp:2,tensor:2', 'fsdp:1', 'fsdp:4')):
    mesh = make_mesh(mesh_text)
    state = create_state(small.CONFIG, small.params(small.CONFIG, mesh), optimizer, mesh)
    checkpoints = Checkpoints(tmp_path)
    if want is not None:
      state, _ = checkpoints.restore(state)
      jax.tree.map(np.testing.assert_array_equal, state, want)
    else:
      state = jax.tree.map(lambda leaf: leaf + leaf.dtype.type(1), state)
    shardings = state_shardings(small.CONFIG, optimizer, mesh)
    assert all(jax.tree.leaves(jax.tree.map(lambda leaf, s: leaf.sharding == s, state, shardings)))
    want = jax.tree.map(np.array, state)
    checkpoints.save(i, state, {})
    checkpoints.close()


def files_of(folder):
  return [path for path in sorted(folder.rglob('*')) if path.is_file()]


def test_any_damaged_file_falls_back_to_the_checkpoint_before(tmp_path):
  saved(tmp_path / 'whole').close()
  damages = {
      'cut short': lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
      'gone': lambda path: path.unlink(),
  }
  names = [path.relative_to(tmp_path / 'whole') for path in files_of(tmp_path / 'whole' / '2')]
  # All kinds of files, a few of each: the arrays' data files differ in name only.
  arrays = [name for name in names if 'd' in name.parts]
  names = [name for name in names if name not in arrays[2:]]
  for i, name in enumerate(names):
    folder = tmp_path / f'damaged{i}'
    shutil.copytree(tmp_path / 'whole', folder)
    damages['cut short' if i % 2 else 'gone'](folder / name)
    restored, data = Checkpoints(folder).restore(tree())
    assert data == {'tokens': 10}, name
    jax.tree.map(np.testing.assert_array_equal, restored, tree(1))
    assert [path.name for path in folder.iterdir()] == ['1']


def test_one_sentence_when_all_are_damaged(tmp_path):
  saved(tmp_path).close()
  for path in files_of(tmp_path):
    if path.name != 'manifest.json':
      path.write_bytes(b'')
  with pytest.raises(UserError, match=f'No checkpoint in {tmp_path}.*delete the folder') as error:
    Checkpoints(tmp_path).restore(tree())
  assert '\n' not in str(error.value)


def test_a_save_that_a_kill_cut_short_never_was(tmp_path):
  saved(tmp_path, (1,)).close()
  (tmp_path / '1' / 'manifest.json').unlink()  # the last file of a save
  (tmp_path / '2.orbax-checkpoint-tmp').mkdir()
  checkpoints = Checkpoints(tmp_path)
  assert checkpoints.restore(tree()) is None
  checkpoints.save(1, tree(5), {})
  assert checkpoints.restore(tree())[0]['a'][0, 0] == 5


@pytest.mark.skipif(os.geteuid() != 0, reason='mounting a small file system takes root')
def test_a_full_disk_is_one_sentence_and_keeps_the_checkpoint_before(tmp_path):
  small_disk = tmp_path / 'disk'
  small_disk.mkdir()
  mount = ['mount', '-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', str(small_disk)]
  if subprocess.run(mount, capture_output=True).returncode:
    pytest.skip('mount is not allowed here')
  try:
    checkpoints = Checkpoints(small_disk)
    checkpoints.save(1, tree(1), {})
    with pytest.raises(UserError, match=f'Cannot write checkpoint 2 in {small_disk}.*free some space'):
      checkpoints.save(2, {'a': jnp.zeros(2_000_000)}, {})
    checkpoints.close()
    assert Checkpoints(small_disk).restore(tree())[0]['a'][0, 0] == 1
  finally:
    subprocess.run(['umount', str(small_disk)], check=True)
