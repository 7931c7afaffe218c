"""metrics.jsonl, event files and progress."""

import json
import struct

import numpy as np
import pytest
from absl import logging
from tensorboardX.proto import event_pb2

from acesearch_jax.errors import UserError
from acesearch_jax.training import metrics
from acesearch_jax.training.metrics import MetricsWriter, Progress, cut_back

_STAGES = ['sft', 'dpo_1', 'dpo_2']


def _rows(folder):
  return [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]


def _scalars(folder, stage):
  """(tag, step, value) of every scalar in the event files of a stage, read by the record format."""
  found = []
  for path in sorted((folder / 'tensorboard' / stage).iterdir()):
    data, position = path.read_bytes(), 0
    while position < len(data):
      length, = struct.unpack_from('<Q', data, position)
      event = event_pb2.Event.FromString(data[position + 12:position + 12 + length])
      found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
      position += 12 + length + 4
  return found


def test_rows_and_events_are_written(tmp_path):
  with MetricsWriter(tmp_path, _STAGES, None, 0, clock=lambda: 2.5) as writer:
    writer.log('sft', 1, {'loss': np.float32(0.5), 'rate': 2})
    writer.log('sft', 2, {'loss': float('nan')})
  assert _rows(tmp_path) == [
      {'stage': 'sft', 'step': 1, 'seconds': 2.5, 'loss': 0.5, 'rate': 2.0},
      {'stage': 'sft', 'step': 2, 'seconds': 2.5, 'loss': None},
  ]
  assert _scalars(tmp_path, 'sft')[:2] == [('loss', 1, 0.5), ('rate', 1, 2.0)]


@pytest.mark.parametrize(('stage', 'step', 'left'), [
    (None, 0, []),
    ('sft', 1, [('sft', 1)]),
    ('dpo_1', 0, [('sft', 1), ('sft', 2)]),
    ('dpo_1', 1, [('sft', 1), ('sft', 2), ('dpo_1', 1)]),
    ('dpo_2', 0, [('sft', 1), ('sft', 2), ('dpo_1', 1), ('dpo_1', 2)]),
])
def test_a_resumed_run_forgets_later_steps(tmp_path, stage, step, left):
  with MetricsWriter(tmp_path, _STAGES, None, 0, clock=lambda: 0.0) as writer:
    for name in ('sft', 'dpo_1'):
      for number in (1, 2):
        writer.log(name, number, {'loss': number})
  with MetricsWriter(tmp_path, _STAGES, stage, step, clock=lambda: 0.0):
    pass
  assert [(row['stage'], row['step']) for row in _rows(tmp_path)] == left
  for name in ('sft', 'dpo_1'):
    steps = [number for tag, number in left if tag == name]
    if steps:
      assert _scalars(tmp_path, name) == [('loss', number, float(number)) for number in steps]
    else:
      assert not (tmp_path / 'tensorboard' / name).exists()


def test_a_torn_last_line_is_mended(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  whole = '{"stage": "sft", "step": 1, "seconds": 0, "loss": 1}\n'
  for torn in (b'{"stage": "sft", "st', whole[:-1].encode(), '{"stage": "é'.encode()[:-1]):
    path.write_bytes(whole.encode() + torn)
    assert len(cut_back(path, _STAGES, 'sft', 1)) == 1
    assert path.read_text() == whole


def test_a_broken_line_in_the_middle_is_named(tmp_path):
  row = '{"stage": "sft", "step": 1}\n'
  (tmp_path / 'metrics.jsonl').write_text(f'{row}nonsense\n{row}')
  with pytest.raises(UserError, match='line 2 is not a row of metrics'):
    cut_back(tmp_path / 'metrics.jsonl', _STAGES, 'sft', 2)


def test_progress_off_a_terminal_is_a_line_now_and_then(monkeypatch):
  now, lines = [0.0], []
  monkeypatch.setattr(metrics.time, 'monotonic', lambda: now[0])
  monkeypatch.setattr(logging, 'info', lambda text, *values: lines.append(text % values))
  with Progress('sft', total=100, done=20) as progress:
    for _ in range(40):
      now[0] += 1.0
      progress.update(loss=0.25)
  assert lines == [
      'sft: 50/100 steps, 1 a second, 00:50 left, loss 0.25',
      'sft: 60/100 steps, 1 a second, 00:40 left, loss 0.25',
  ]


def test_a_full_disk_is_one_sentence_and_leaves_rows_that_can_be_resumed(small_disk):
  with pytest.raises(UserError, match='Cannot write the metrics in .*: No space left on device; free'):
    with MetricsWriter(small_disk.path, _STAGES, None, 0, clock=lambda: 0.0) as writer:
      for step in range(1, 10_000):
        writer.log('sft', step, {'loss': step, 'rate': 1e-3})
  small_disk.resize(1024)
  with MetricsWriter(small_disk.path, _STAGES, 'sft', 20, clock=lambda: 0.0) as writer:
    writer.log('sft', 21, {'loss': 21, 'rate': 1e-3})
  assert [row['step'] for row in _rows(small_disk.path)] == list(range(1, 22))
  assert _scalars(small_disk.path, 'sft')[-1] == ('rate', 21, pytest.approx(1e-3))
