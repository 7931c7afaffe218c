"""Files that survive a kill: atomic writes and JSON lines.

Every file of a run folder is either absent or complete. A writer fills `NAME.tmp-PID` beside the
target and renames it, so that a killed process leaves at most a stray temporary file.
"""

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from etils import epath

from acesearch_jax.errors import UserError


def write_bytes(path: epath.PathLike, data: bytes) -> None:
  """Writes `data` to `path` atomically, creating the folder.

  Raises:
    UserError: the disk is full, or the path cannot be written.
  """
  path = epath.Path(path)
  temporary = path.parent / f'{path.name}.tmp-{os.getpid()}'
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_bytes(data)
    temporary.replace(path)
  except OSError as error:
    try:
      temporary.unlink(missing_ok=True)
    except OSError:
      pass
    raise UserError(
        f'Cannot write {path}: {error.strerror or error}; free some space or choose another folder, '
        'then start again.'
    ) from error


def write_text(path: epath.PathLike, text: str) -> None:
  """Writes `text` as UTF-8, atomically."""
  write_bytes(path, text.encode())


def write_json(path: epath.PathLike, value: Any) -> None:
  """Writes `value` as indented JSON, atomically."""
  write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + '\n')


def write_jsonl(path: epath.PathLike, rows: Iterable[Any]) -> None:
  """Writes one JSON object a line, atomically."""
  write_text(path, ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows))


def read_json(path: epath.PathLike) -> Any:
  """Reads one JSON value.

  Raises:
    UserError: the file is missing or is not JSON.
  """
  try:
    return json.loads(epath.Path(path).read_text())
  except FileNotFoundError as error:
    raise UserError(f'No such file: {path}; check the path.') from error
  except (json.JSONDecodeError, UnicodeDecodeError) as error:
    raise UserError(f'{path} is not valid JSON ({error}); mend or delete it.') from error


def read_jsonl(path: epath.PathLike) -> Iterator[dict[str, Any]]:
  """Yields the objects of a JSON-lines file, skipping blank lines.

  Raises:
    UserError: the file is missing, or a line is not a JSON object; the message has its number.
  """
  try:
    text = epath.Path(path).read_text()
  except FileNotFoundError as error:
    raise UserError(f'No such file: {path}; check the path.') from error
  except (IsADirectoryError, UnicodeDecodeError) as error:
    raise UserError(f'{path} is not a UTF-8 JSON-lines file ({error}).') from error
  for number, line in enumerate(text.split('\n'), start=1):
    if not line.strip():
      continue
    try:
      row = json.loads(line)
    except json.JSONDecodeError as error:
      raise UserError(
          f'{path}, line {number} is not valid JSON ({error}); mend or delete the line.'
      ) from error
    if not isinstance(row, dict):
      raise UserError(f'{path}, line {number} is not a JSON object; each line must be one object.')
    yield row
