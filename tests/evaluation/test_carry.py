"""What is carried of an unfinished run is what it needs to go on, and no more."""

import os

import pytest

from acesearch_jax.errors import UserError
from acesearch_jax.evaluation import carry

KEPT = {
    'config.json': b'{}',
    'results.json': b'{"stages": []}',
    'metrics.jsonl': b'{"step": 1}\n',
    'evaluation/sft.jsonl': b'{"id": "q"}\n' * 100,
    'rollouts/1/shard_00000.jsonl': b'{"id": "r"}\n' * 100,
    'rollouts/1/shard_00000.done.json': b'{"rows": 100}',
    'checkpoints/sft/weights.safetensors': bytes(range(256)),
    'checkpoints/sft/policy.json': b'{"rank": 8}',
    'stages/sft.json': b'{"stage": "sft"}',
    'stages/seconds.json': b'{"seconds": 3}',
}
LEFT = (
    '.lock', 'report.html', 'tensorboard/sft/events', 'preferences/1.jsonl', 'metrics.jsonl.tmp-12',
    'evaluation/shards/dpo_1/shard_00000.jsonl', 'checkpoints/dpo_1/steps/50/array/d',
)  # fmt: skip


@pytest.fixture
def run_folder(tmp_path):
  for name, data in {**KEPT, **dict.fromkeys(LEFT, b'x')}.items():
    path = tmp_path / 'run' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
  return tmp_path / 'run'


def contents(folder):
  return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob('*') if p.is_file()}


def test_a_restored_folder_has_everything_but_what_is_made_anew(run_folder, tmp_path):
  carry.save(run_folder, tmp_path / 'carry')
  carry.restore(tmp_path / 'carry', tmp_path / 'elsewhere')
  assert contents(tmp_path / 'elsewhere') == KEPT
  assert carry.complete_stages(tmp_path / 'elsewhere') == {'sft'}
  assert (tmp_path / 'carry' / 'evaluation' / 'sft.jsonl.gz').stat().st_size < 100


def test_saving_again_brings_what_changed_and_leaves_the_rest(run_folder, tmp_path):
  carry.save(run_folder, tmp_path / 'carry')
  before = contents(tmp_path / 'carry')
  kept = tmp_path / 'carry' / 'checkpoints' / 'sft' / 'weights.safetensors'
  inode = kept.stat().st_ino
  (run_folder / 'metrics.jsonl').write_bytes(b'{"step": 2}\n')
  os.utime(run_folder / 'metrics.jsonl', ns=(2**61, 2**61))
  (run_folder / 'stages' / 'evaluate_sft.json').write_bytes(b'{}')
  carry.save(run_folder, tmp_path / 'carry')
  after = contents(tmp_path / 'carry')
  assert {name for name in after if after[name] != before.get(name)} == {
      'metrics.jsonl.gz', 'stages/evaluate_sft.json'}
  assert kept.stat().st_ino == inode


def test_a_damaged_carry_is_named_and_leaves_nothing_that_looks_whole(run_folder, tmp_path):
  carry.save(run_folder, tmp_path / 'carry')
  path = tmp_path / 'carry' / 'rollouts' / '1' / 'shard_00000.jsonl.gz'
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(UserError, match=r'shard_00000.jsonl.gz is damaged'):
    carry.restore(tmp_path / 'carry', tmp_path / 'elsewhere')
  assert not (tmp_path / 'elsewhere' / 'config.json').exists()
