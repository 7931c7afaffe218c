"""The run folder: one owner at a time, what it was started with, and which stages are complete.

A run is a list of stages. A stage is complete when its marker `stages/NAME.json` exists and names the
same inputs; `results.json` is assembled from the markers alone, so that restarts cannot change it.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import platform
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
from absl import logging
from etils import epath

from acesearch_jax import files
from acesearch_jax.errors import UserError

TOKEN_COUNTERS = ('prefilled', 'decoded', 'trained')
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax')
_SAVE_SECONDS_EVERY = 10.0


def fingerprint(*values: Any) -> str:
  """A hash of JSON values (and bytes) that is the same in every process: 16 hex digits."""
  digest = hashlib.sha256()
  for value in values:
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    digest.update(b'%d:' % len(data) + data)
  return digest.hexdigest()[:16]


def environment() -> dict[str, Any]:
  """What, besides flags, the bits of a run depend on: versions, commit, devices, CPU count, XLA flags."""
  device = jax.devices()[0]
  return {
      'versions': {'python': platform.python_version(), **{p: metadata.version(p) for p in _PACKAGES}},
      'commit': _commit(),
      'platform': device.platform,
      'device': device.device_kind,
      'devices': jax.device_count(),
      'cpus': len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count(),
      'xla_flags': os.environ.get('XLA_FLAGS', ''),
  }


class RunFolder:
  """A folder that belongs to one run.

  Use as a context manager, or call `close`. The lock ends with the process, however it dies.

  Args:
    path: local path or `gs://`; created. Object stores have no locks, so there is none on `gs://`.

  Raises:
    UserError: another process holds the folder, or it cannot be created.
  """

  def __init__(self, path: epath.PathLike):
    self.path = epath.Path(path)
    self._lock = None
    try:
      self.path.mkdir(parents=True, exist_ok=True)
      if is_local(self.path):
        self._lock = _lock(pathlib.Path(self.path) / '.lock')
    except OSError as error:
      raise UserError(
          f'Cannot use {self.path} as a run folder: {error.strerror or error}; choose another --workdir.'
      ) from error
    self._seconds_path = self.path / 'stages' / 'seconds.json'
    stored = files.read_json(self._seconds_path) if self._seconds_path.exists() else {'seconds': 0.0}
    self._seconds_before = stored['seconds']
    self._opened = self._saved = time.monotonic()

  def __enter__(self) -> 'RunFolder':
    return self

  def __exit__(self, *_: Any) -> None:
    self.close()

  def close(self) -> None:
    """Gives the folder back."""
    if self._lock is not None:
      os.close(self._lock)
      self._lock = None

  # What the run was started with.

  def configure(
      self,
      flags: Mapping[str, Any],
      mesh: Mapping[str, int],
      cannot_change_results: frozenset[str] = frozenset(),
  ) -> None:
    """Writes `config.json`, or checks that a resumed run is still the same one.

    A folder in which nothing has been made yet takes any flags: who corrects a wrong one starts the
    command again.

    Args:
      flags: every flag as resolved, JSON values.
      mesh: axis name to size, as resolved.
      cannot_change_results: flags that may differ on resume (logging, profiling, ...); their new
        values are stored.

    Raises:
      UserError: any other flag differs from the one the run was started with.
    """
    path = self.path / 'config.json'
    flags = json.loads(json.dumps(dict(sorted(flags.items()))))
    now = {'flags': flags, 'mesh': dict(mesh), **environment()}
    if not path.exists() or not self._has_work():
      files.write_json(path, now)
      return
    config = files.read_json(path)
    before = config['flags']
    for name in sorted(before.keys() | flags.keys()):
      if before.get(name) != flags.get(name) and name not in cannot_change_results:
        raise UserError(
            f'{self.path} was started with --{name}={_show(before, name)}, not {_show(flags, name)}; '
            'give the old value to resume, or another --workdir for a new run.'
        )
    for name in ('versions', 'commit', 'platform', 'device', 'devices', 'cpus', 'xla_flags', 'mesh'):
      if config.get(name) != now[name]:
        logging.warning('The run was started with %s %s and goes on with %s; the bits of its results may '
                        'differ from an undisturbed run.', name, config.get(name), now[name])
    if before != flags:
      files.write_json(path, config | {'flags': flags})

  def _has_work(self) -> bool:
    """Whether a stage has left anything here."""
    found = {entry.name for entry in self.path.iterdir()} - {'.lock', 'config.json', 'stages'}
    return bool(found) or any(path.name != 'seconds.json' for path in self.path.glob('stages/*.json'))

  # Stages.

  def stage_done(self, stage: str, inputs: str) -> bool:
    """Whether `stage` is complete for these inputs.

    A marker with other inputs counts as incomplete: flags cannot have changed (`configure` refuses
    that), so something upstream was made anew and this stage must follow.

    Args:
      stage: its name.
      inputs: `fingerprint` of everything the stage reads.
    """
    path = self._marker(stage)
    if not path.exists():
      return False
    if files.read_json(path)['inputs'] != inputs:
      logging.warning('The inputs of stage %s have changed since it was completed; it runs again.', stage)
      return False
    return True

  def mark_done(self, stage: str, inputs: str, outputs: Mapping[str, Any]) -> None:
    """Commits a stage. Everything else it wrote must be complete before.

    Args:
      stage: its name.
      inputs: as in `stage_done`.
      outputs: JSON values later stages need. `write_results` reads `result` (one row of
        `results.json`) and `tokens` (counts by `TOKEN_COUNTERS`) from here.
    """
    files.write_json(
        self._marker(stage),
        {'stage': stage, 'inputs': inputs, 'outputs': dict(outputs), 'seconds': round(self.seconds(), 1)},
    )
    self.save_seconds()

  def stage_outputs(self, stage: str) -> dict[str, Any]:
    """What `mark_done` stored.

    Raises:
      UserError: the stage is not complete.
    """
    return files.read_json(self._marker(stage))['outputs']

  def _marker(self, stage: str) -> epath.Path:
    return self.path / 'stages' / f'{stage}.json'

  def shards(self, name: str, inputs: str) -> 'Shards':
    """The shards of a stage under `name`, for example `rollouts/1`."""
    return Shards(self.path / name, inputs)

  # Results.

  def write_results(self, recipe: str, stages: Sequence[str]) -> dict[str, Any]:
    """Writes `results.json` from the markers of `stages`, in their order; incomplete ones are left out.

    Everything but `seconds` depends on the markers alone. A file that differs in nothing else is left
    as it is, so that starting a finished run again changes no byte.

    Args:
      recipe: its name.
      stages: all stages of the run in order, measured ones or not.

    Returns:
      The results.
    """
    rows: list[dict[str, Any]] = []
    tokens = dict.fromkeys(TOKEN_COUNTERS, 0)
    for stage in stages:
      if not self._marker(stage).exists():
        continue
      outputs = self.stage_outputs(stage)
      if 'result' in outputs:
        rows.append(outputs['result'])
      for counter, count in outputs.get('tokens', {}).items():
        tokens[counter] += count
    results = {'recipe': recipe, 'stages': rows, 'seconds': round(self.seconds(), 1), 'tokens': tokens}
    path = self.path / 'results.json'
    if path.exists():
      before = files.read_json(path)
      if before | {'seconds': None} == results | {'seconds': None}:
        return before
    files.write_json(path, results)
    return results

  def seconds(self) -> float:
    """Time spent on this run so far, over all restarts."""
    return self._seconds_before + time.monotonic() - self._opened

  def save_seconds(self) -> None:
    """Stores `seconds`; a killed run loses what it spent since. Cheap enough to call every step."""
    now = time.monotonic()
    if now - self._saved > _SAVE_SECONDS_EVERY or not self._seconds_path.exists():
      files.write_json(self._seconds_path, {'seconds': round(self.seconds(), 1)})
      self._saved = now


class Shards:
  """Rows of a long stage, kept in numbered files that are complete or absent.

  `shard_00012.jsonl` holds the rows (about 32 tasks); `shard_00012.done.json` is written after it with
  the hash of the inputs, the hash of the file and the shard's counters.

  Args:
    folder: where the shards are.
    inputs: `fingerprint` of everything the rows depend on; shards with another one are incomplete.
  """

  def __init__(self, folder: epath.PathLike, inputs: str):
    self.folder = epath.Path(folder)
    self._inputs = inputs

  def complete(self) -> list[int]:
    """Numbers of the complete shards, ascending."""
    return sorted(self._markers())

  def write(
      self, number: int, rows: Iterable[Mapping[str, Any]], counters: Mapping[str, int] | None = None
  ) -> None:
    """Commits a shard.

    Args:
      number: its number, from 0.
      rows: JSON objects.
      counters: for example tokens decoded; summed by `counters`.
    """
    text = ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)
    files.write_text(self._file(number), text)
    files.write_json(self._done(number), {
        'inputs': self._inputs, 'rows': text.count('\n'), 'file': fingerprint(text.encode()),
        'counters': dict(counters or {}),
    })

  def read(self) -> Iterator[dict[str, Any]]:
    """Rows of the complete shards in order."""
    for number in self.complete():
      yield from files.read_jsonl(self._file(number))

  def counters(self) -> dict[str, int]:
    """Sums of the counters of the complete shards."""
    total: dict[str, int] = {}
    for _, marker in sorted(self._markers().items()):
      for name, count in marker['counters'].items():
        total[name] = total.get(name, 0) + count
    return total

  def _file(self, number: int) -> epath.Path:
    return self.folder / f'shard_{number:05d}.jsonl'

  def _done(self, number: int) -> epath.Path:
    return self.folder / f'shard_{number:05d}.done.json'

  def _markers(self) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    if not self.folder.exists():
      return found
    for path in self.folder.glob('shard_*.done.json'):
      number = int(path.name.split('.')[0].removeprefix('shard_'))
      marker = files.read_json(path)
      file = self._file(number)
      if marker['inputs'] != self._inputs or not file.exists():
        continue
      if fingerprint(file.read_bytes()) == marker['file']:
        found[number] = marker
    return found


def is_local(path: epath.PathLike) -> bool:
  """Whether `path` is on this machine's file system (and not `gs://`, say)."""
  return '://' not in os.fspath(path)


def _lock(path: pathlib.Path) -> int:
  """Takes the lock file and returns its descriptor; the kernel frees it when the process dies."""
  descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    owner = os.pread(descriptor, 32, 0).decode(errors='replace').strip()
    os.close(descriptor)
    raise UserError(
        f'{path.parent} is in use by another run (process {owner or "unknown"}); wait for it to end or '
        'choose another --workdir.'
    ) from error
  os.ftruncate(descriptor, 0)
  os.pwrite(descriptor, f'{os.getpid()}\n'.encode(), 0)
  return descriptor


def _commit() -> str | None:
  """The git commit of the code, '+changes' after it where files differ; None outside a repository."""
  here = pathlib.Path(__file__).parent
  with contextlib.suppress(OSError, subprocess.SubprocessError):
    def git(*arguments: str) -> str:
      return subprocess.run(
          ['git', '-C', str(here), *arguments], check=True, capture_output=True, text=True, timeout=10
      ).stdout.strip()

    changes = git('status', '--porcelain', '--untracked-files=no', '--', str(here.parent))
    return git('rev-parse', 'HEAD') + ('+changes' if changes else '')
  return None


def _show(flags: Mapping[str, Any], name: str) -> str:
  return json.dumps(flags[name]) if name in flags else '(unset)'
