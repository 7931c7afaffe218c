"""Question sets by name or file: the built-in world, public sets in their official files, own files."""

import csv
import io
import itertools
import json
from collections.abc import Iterable, Iterator

from etils import epath

from acesearch_jax import files
from acesearch_jax.data import question_rows
from acesearch_jax.data.question_rows import Row
from acesearch_jax.data.tasks import Passage, Task
from acesearch_jax.errors import UsageError, UserError

WORLD = 'world'

# Official files by set and split, the default split first.
_FILES: dict[str, dict[str, tuple[str, ...]]] = {
    'hotpotqa': {'dev': ('hotpot_dev_distractor_v1.json',), 'train': ('hotpot_train_v1.1.json',)},
    '2wikimultihopqa': {'dev': ('dev.json',), 'train': ('train.json',)},
    'musique': {'dev': ('musique_ans_v1.0_dev.jsonl',), 'train': ('musique_ans_v1.0_train.jsonl',)},
    'bamboogle': {
        'test': ('bamboogle.json', 'bamboogle.jsonl', 'bamboogle.csv', 'Bamboogle Prerelease - Sheet1.csv')
    },
}
NAMES = (WORLD, *_FILES)


def load_tasks(
    name_or_file: str,
    split: str | None = None,
    data_dir: epath.PathLike | None = None,
    limit: int | None = None,
    world_seed: int = 0,
) -> tuple[list[Task], list[Passage] | None]:
  """Reads a question set.

  Args:
    name_or_file: one of `NAMES`, or a file: JSON lines or a JSON list of rows in the task schema, in
      the common form (`answers`, `passages`, `supporting`, `decomposition`), or in the official form of
      HotpotQA, 2WikiMultiHopQA, MuSiQue or Bamboogle (CSV too).
    split: of a named set ('dev' unless given, 'test' for Bamboogle); of a file: keeps the rows of that
      split and those that name none, all where None.
    data_dir: folder with the official files of a named set.
    limit: greatest number of tasks, the first ones; all where None.
    world_seed: of the built-in world.

  Returns:
    The tasks, and the corpus to search: the world's, or every passage of the kept rows once. None where
    the rows have no passages.

  Raises:
    UsageError: unknown name or split, or no `data_dir` for a set that needs it.
    UserError: a file is missing, a row is broken (the message has its number), or nothing is left.
  """
  if name_or_file == WORLD:
    return _world(split or 'dev', limit, world_seed)
  path = _path(name_or_file, split, data_dir)
  tasks = list(itertools.islice(_tasks(path, split), limit))
  if not tasks:
    rows = f'rows of split {split!r}' if split else 'rows'
    raise UserError(f'{path} has no {rows}; give another file or split.')
  return _with_corpus(tasks)


def _world(split: str, limit: int | None, seed: int) -> tuple[list[Task], list[Passage]]:
  from acesearch_jax.data.world import build_world  # Data packages load only for those who use the world.

  world = build_world(seed)
  if split not in world.tasks:
    raise UsageError(f"'world' has no split '{split}'; it has {', '.join(world.tasks)}.")
  return list(world.tasks[split])[:limit], list(world.passages)


def _path(name_or_file: str, split: str | None, data_dir: epath.PathLike | None) -> epath.Path:
  if name_or_file not in _FILES:
    path = epath.Path(name_or_file)
    if path.exists() or path.suffix in ('.json', '.jsonl', '.csv'):
      return path
    raise UsageError(
        f"No question set or file is called '{name_or_file}'; the sets are {', '.join(NAMES)}."
    )
  splits = _FILES[name_or_file]
  split = split or next(iter(splits))
  if split not in splits:
    raise UsageError(f"'{name_or_file}' has no split '{split}'; it has {', '.join(splits)}.")
  if data_dir is None:
    raise UsageError(
        f"'{name_or_file}' needs the folder of its official files: give --data_dir, with "
        f'{splits[split][0]} in it.'
    )
  candidates = [epath.Path(data_dir) / name for name in (*splits[split], f'{name_or_file}_{split}.jsonl')]
  for path in candidates:
    if path.exists():
      return path
  raise UserError(f"'{name_or_file}' needs {candidates[0]}; download the set's official files.")


def _tasks(path: epath.Path, split: str | None) -> Iterator[Task]:
  for number, row in enumerate(_rows(path), start=1):
    try:
      task = question_rows.task_from_row(row)
    except KeyError as error:
      raise _broken(path, number, f'field {error} is missing') from error
    except (TypeError, ValueError, AttributeError, IndexError) as error:
      raise _broken(path, number, str(error)) from error
    if task and (not split or task.split in ('', split)):
      yield task


def _rows(path: epath.Path) -> Iterable[Row]:
  if not path.is_file():
    raise UserError(f'No such file: {path}; check the path.')
  if path.suffix == '.jsonl':
    return files.read_jsonl(path)
  try:
    text = path.read_text()
    if path.suffix == '.csv':
      return csv.DictReader(io.StringIO(text), strict=True)
    if not text.lstrip().startswith('['):
      return files.read_jsonl(path)
    rows = json.loads(text)
  except (UnicodeDecodeError, json.JSONDecodeError) as error:
    raise UserError(f'{path} is not valid JSON ({error}); fetch the file again.') from error
  for number, row in enumerate(rows, start=1):
    if not isinstance(row, dict):
      raise _broken(path, number, 'it is not a JSON object')
  return rows


def _with_corpus(tasks: list[Task]) -> tuple[list[Task], list[Passage] | None]:
  """The union of the tasks' passages; their ids are made unique by content where rows reuse them."""
  corpus: dict[str, Passage] = {}
  for task in tasks:
    for passage in task.context:
      if corpus.setdefault(passage.id, passage) != passage:
        return _with_corpus([question_rows.keyed_by_content(task) for task in tasks])
  return tasks, list(corpus.values()) or None


def _broken(path: epath.Path, number: int, reason: str) -> UserError:
  return UserError(f'{path}, row {number} is broken: {reason}; mend or delete the row.')
