"""Metrics of a run: `metrics.jsonl`, TensorBoard event files, and progress on stderr."""

import contextlib
import json
import math
import pathlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tqdm
from absl import logging
from etils import epath
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2

from acesearch_jax import files
from acesearch_jax.errors import UserError
from acesearch_jax.training.run_folder import is_local

_LOG_EVERY_SECONDS = 30.0
_FLUSH_EVERY_SECONDS = 30.0


def cut_back(path: epath.PathLike, stages: Sequence[str], stage: str | None, step: int) -> list[dict]:
  """Forgets what a resumed run is about to log again.

  Keeps rows of stages before `stage`, and of `stage` itself up to and with `step`. A last line that a
  kill left unfinished goes too.

  Args:
    path: `metrics.jsonl`; may be missing.
    stages: all stages in order; rows of any other stage are dropped.
    stage: where the run goes on; None for the very beginning.
    step: last step of `stage` that is in the checkpoint.

  Returns:
    The rows that are left.

  Raises:
    UserError: a line other than the last is not JSON.
  """
  path = epath.Path(path)
  if not path.exists():
    return []
  order = {name: position for position, name in enumerate(stages)}
  here = -1 if stage is None else order[stage]
  text = path.read_bytes().decode(errors='replace')
  *lines, torn = text.split('\n')
  if torn:
    logging.info('%s ends in an unfinished line, which is dropped.', path)
  kept = []
  for number, line in enumerate(lines, start=1):
    try:
      row = json.loads(line)
      position = order.get(row['stage'], len(stages))
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(f'{path}, line {number} is not a row of metrics; mend or delete the line.') from error
    if position < here or (position == here and row['step'] <= step):
      kept.append(row)
  files.write_jsonl(path, kept)
  return kept


class MetricsWriter:
  """Writes metrics of a run folder: one JSON object a logged step, and the same for TensorBoard.

  TensorBoard has one run a stage. Its files cannot be cut back, so they are written anew from the rows
  that are left whenever a run resumes. On `gs://`, which has no append, the whole file is written by
  `flush`, and there are no TensorBoard files.

  Args:
    folder: the run folder.
    stages: all stages of the run in order.
    stage: where the run goes on, see `cut_back`.
    step: the last step that is kept.
    clock: seconds spent on the run so far, for example `RunFolder.seconds`.

  Raises:
    UserError: here and in every method, when the disk is full or the folder cannot be written.
  """

  def __init__(
      self,
      folder: epath.PathLike,
      stages: Sequence[str],
      stage: str | None,
      step: int,
      clock: Callable[[], float],
  ):
    self._folder = epath.Path(folder)
    self._path = self._folder / 'metrics.jsonl'
    self._clock = clock
    self._start = time.time() - clock()
    self._local = is_local(folder)
    self._boards: dict[str, EventsWriter] = {}
    self._flushed = time.monotonic()
    self._rows = cut_back(self._path, stages, stage, step)
    if self._local:
      with self._writing():
        shutil.rmtree(pathlib.Path(self._folder) / 'tensorboard', ignore_errors=True)
        for row in self._rows:
          self._to_board(row)
        self._rows = []
        self._file = open(self._path, 'ab', buffering=0)  # noqa: SIM115 (closed by close)

  def __enter__(self) -> 'MetricsWriter':
    return self

  def __exit__(self, kind: type | None, *_: Any) -> None:
    if kind is None:
      self.close()
    else:  # The error under way says more than one about what could not be flushed after it.
      with contextlib.suppress(UserError):
        self.close()

  def log(self, stage: str, step: int, values: Mapping[str, Any]) -> None:
    """Logs one step.

    Args:
      stage: one of the stages of the run.
      step: step within the stage.
      values: scalars (Python, NumPy or JAX); a value that is not finite is stored as null.
    """
    scalars = {name: float(value) for name, value in values.items()}
    row = {'stage': stage, 'step': int(step), 'seconds': round(self._clock(), 3)}
    row |= {name: value if math.isfinite(value) else None for name, value in scalars.items()}
    if not self._local:
      self._rows.append(row)
      return
    with self._writing():
      line = (json.dumps(row) + '\n').encode()
      while line:  # An unbuffered file may take a part; what a full disk cut is mended on resume.
        line = line[self._file.write(line) :]
      self._to_board(row)
      if time.monotonic() - self._flushed > _FLUSH_EVERY_SECONDS:
        self.flush()

  def flush(self) -> None:
    """Makes everything logged so far visible to readers."""
    with self._writing():
      if not self._local:
        files.write_jsonl(self._path, self._rows)
      for board in self._boards.values():
        board.flush()
    self._flushed = time.monotonic()

  def close(self) -> None:
    """Flushes and closes all files."""
    if self._local:
      self._file.close()
    self.flush()
    with self._writing():
      for board in self._boards.values():
        board.close()

  def _to_board(self, row: Mapping[str, Any]) -> None:
    # Written by this thread: a writer with its own would meet a full disk where nobody listens.
    stage = row['stage']
    if stage not in self._boards:
      folder = pathlib.Path(self._folder) / 'tensorboard' / stage
      folder.mkdir(parents=True, exist_ok=True)
      self._boards[stage] = EventsWriter(str(folder / 'events'))
    for name, value in row.items():
      if name in ('stage', 'step', 'seconds'):
        continue
      scalar = summary.scalar(name, math.nan if value is None else value)
      time_ = self._start + row['seconds']
      self._boards[stage].write_event(event_pb2.Event(wall_time=time_, step=row['step'], summary=scalar))

  @contextlib.contextmanager
  def _writing(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      raise UserError(
          f'Cannot write the metrics in {self._folder}: {error.strerror or error}; free some space, then '
          'start again.'
      ) from error


class Progress:
  """How far something is, its rate and the time that remains.

  A bar on a terminal; elsewhere one log line every 30 seconds and one at the end.

  Args:
    what: shown before the numbers, for example 'sft'.
    total: number of items.
    done: how many were done before (a resumed run); they do not count for the rate.
    unit: name of one item.
  """

  def __init__(self, what: str, total: int, done: int = 0, unit: str = 'step'):
    self._what, self._total, self._done, self._first, self._unit = what, total, done, done, unit
    self._start = self._logged = time.monotonic()
    self._note = ''
    self._bar = None
    if sys.stderr.isatty():
      self._bar = tqdm.tqdm(
          desc=what, total=total, initial=done, unit=unit, dynamic_ncols=True, file=sys.stderr
      )

  def __enter__(self) -> 'Progress':
    return self

  def __exit__(self, *_: Any) -> None:
    if self._bar is not None:
      self._bar.close()
    elif self._done > self._first:
      self._log()

  def update(self, count: int = 1, **values: float) -> None:
    """Counts `count` more items; `values` are shown beside them."""
    self._done += count
    if values:
      self._note = ' '.join(f'{name} {value:.4g}' for name, value in values.items())
    if self._bar is not None:
      self._bar.set_postfix_str(self._note, refresh=False)
      self._bar.update(count)
    elif time.monotonic() - self._logged >= _LOG_EVERY_SECONDS:
      self._log()

  def _log(self) -> None:
    self._logged = time.monotonic()
    rate = (self._done - self._first) / max(self._logged - self._start, 1e-9)
    left = tqdm.tqdm.format_interval((self._total - self._done) / rate) if rate else 'unknown'
    logging.info('%s: %d/%d %ss, %.3g a second, %s left%s', self._what, self._done, self._total,
                 self._unit, rate, left, f', {self._note}' if self._note else '')
