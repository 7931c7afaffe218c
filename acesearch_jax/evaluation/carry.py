"""What an unfinished run needs to go on elsewhere: its complete stages, small enough to be committed.

A carry folder mirrors the run folder. JSON lines are compressed; what a resumed run makes anew (report,
curves, preferences) or does without (checkpoints within a stage, finished evaluation shards) stays behind.
"""

import gzip
import pathlib

from acesearch_jax import files
from acesearch_jax.errors import UserError

_LEFT_BEHIND = (
    'report.html', 'tensorboard/*', 'preferences/*', 'evaluation/shards/*', 'checkpoints/*/steps/*',
)  # fmt: skip
_MARKERS = pathlib.PurePath('stages')


def complete_stages(run_folder: pathlib.Path) -> frozenset[str]:
  """Names of the stages that are complete in a run folder."""
  return frozenset(path.stem for path in run_folder.glob('stages/*.json')) - {'seconds'}


def save(run_folder: pathlib.Path, carry: pathlib.Path) -> None:
  """Brings the carry folder up to date; the run may be under way.

  Raises:
    UserError: the disk is full or the folder cannot be written.
  """
  # A marker that is there before its stage's outputs are copied names outputs that are complete.
  markers = {path: path.read_bytes() for path in run_folder.glob('stages/*.json')}
  for path in sorted(run_folder.rglob('*')):
    inside = path.relative_to(run_folder)
    if not path.is_file() or inside.parts[0] == _MARKERS.name or _is_left_behind(inside):
      continue
    compress = path.suffix == '.jsonl'
    target = carry / (f'{inside}.gz' if compress else inside)
    if not target.exists() or target.stat().st_mtime_ns < path.stat().st_mtime_ns:
      data = path.read_bytes()
      files.write_bytes(target, gzip.compress(data, mtime=0) if compress else data)
  for path, data in markers.items():
    files.write_bytes(carry / path.relative_to(run_folder), data)


def restore(carry: pathlib.Path, run_folder: pathlib.Path) -> None:
  """Makes a run folder that `launch.train` resumes.

  Raises:
    UserError: a carried file is damaged, or the run folder cannot be written.
  """
  paths = [path for path in sorted(carry.rglob('*')) if path.is_file()]
  # The configuration last: a folder without it was not restored to the end.
  for path in sorted(paths, key=lambda path: path == carry / 'config.json'):
    inside, data = path.relative_to(carry), path.read_bytes()
    if path.suffix == '.gz':
      inside = inside.with_suffix('')
      try:
        data = gzip.decompress(data)
      except (OSError, EOFError) as error:
        raise UserError(f'{path} is damaged ({error}); delete {carry} to run the unit anew.') from error
    files.write_bytes(run_folder / inside, data)


def _is_left_behind(inside: pathlib.PurePath) -> bool:
  hidden = inside.name.startswith('.') or '.tmp-' in inside.name
  return hidden or any(_under(inside, pattern) for pattern in _LEFT_BEHIND)


def _under(inside: pathlib.PurePath, pattern: str) -> bool:
  """Whether the path or a folder that it is in matches."""
  return any(place.match(pattern) for place in (inside, *inside.parents))
