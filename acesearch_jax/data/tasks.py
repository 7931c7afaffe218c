"""The task schema: what is asked, what counts as right, and what is known about the way there."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

from etils import epath

from acesearch_jax import files
from acesearch_jax.errors import UserError

Kind = Literal['qa', 'claim', 'program']
KINDS: tuple[Kind, ...] = ('qa', 'claim', 'program')


@dataclasses.dataclass(frozen=True)
class Passage:
  """A unit of retrieval.

  Attributes:
    id: unique in its corpus.
    title: a short heading, may be empty.
    text: the body.
  """

  id: str
  title: str
  text: str


@dataclasses.dataclass(frozen=True)
class SubQuestion:
  """One gold step of a decomposition.

  Attributes:
    question: the step in words; `#k` stands for the answer of step k (1-based, earlier steps only).
    answer: the gold intermediate answer.
    passages: ids of the passages that prove it.
  """

  question: str
  answer: str
  passages: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Task:
  """One question, claim or calculation.

  Attributes:
    id: unique in its data set.
    kind: 'qa' (short span), 'claim' (Yes or No) or 'program' (a number, computed).
    question: the question or claim.
    answers: accepted strings; any of them is right. Never empty.
    subquestions: gold decomposition, empty where unknown.
    passages: ids of all gold passages, empty where unknown.
    context: passages that come with the question itself (HotpotQA's ten, say); empty where
      a corpus is searched instead.
    type: the set's own label ('bridge2', 'comparison', ...), '' where it has none.
    split: 'train', 'dev' or 'test', '' where unknown.
    provenance: anything else worth keeping, JSON values only.
  """

  id: str
  kind: Kind
  question: str
  answers: tuple[str, ...]
  subquestions: tuple[SubQuestion, ...] = ()
  passages: tuple[str, ...] = ()
  context: tuple[Passage, ...] = ()
  type: str = ''
  split: str = ''
  provenance: dict[str, Any] = dataclasses.field(default_factory=dict)

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, row: dict[str, Any]) -> 'Task':
    """Builds a task from a JSON object.

    Raises:
      ValueError: a field is missing or has the wrong type; the message names it.
    """
    for field in ('id', 'question', 'answers'):
      if not row.get(field):
        raise ValueError(f"field '{field}' is missing or empty")
    _require_strings(row, 'question', 'type', 'split')
    for name in ('subquestions', 'context'):
      for i, part in enumerate(row.get(name) or ()):
        if not isinstance(part, dict):
          raise ValueError(f"field '{name}' must be a list of objects")
        _require_strings(part, 'question', 'answer', 'title', 'text', where=f' in {name}, item {i + 1},')
    answers = row['answers']
    if isinstance(answers, str) or not all(isinstance(a, str) for a in answers):
      raise ValueError("field 'answers' must be a list of strings")
    kind = row.get('kind', 'qa')
    if kind not in KINDS:
      raise ValueError(f"field 'kind' is {kind!r}, must be one of {', '.join(KINDS)}")
    return cls(
        id=str(row['id']),
        kind=kind,
        question=row['question'],
        answers=tuple(answers),
        subquestions=tuple(
            SubQuestion(s['question'], s['answer'], tuple(s.get('passages', ())))
            for s in row.get('subquestions') or ()
        ),
        passages=tuple(row.get('passages', ())),
        context=tuple(
            Passage(str(p.get('id', i)), p.get('title', ''), p['text'])
            for i, p in enumerate(row.get('context') or ())
        ),
        type=row.get('type', ''),
        split=row.get('split', ''),
        provenance=row.get('provenance', {}),
    )


def _require_strings(row: dict[str, Any], *fields: str, where: str = '') -> None:
  for field in fields:
    if not isinstance(row.get(field, ''), str):
      raise ValueError(f"field '{field}'{where} must be a string")


def read_tasks(path: epath.PathLike) -> list[Task]:
  """Reads tasks from JSON lines.

  Raises:
    UserError: the file is missing, a row is broken, or no row is left; the message has the row.
  """
  tasks = []
  for number, row in enumerate(files.read_jsonl(path), start=1):
    try:
      tasks.append(Task.from_json(row))
    except (KeyError, TypeError, ValueError) as error:
      raise UserError(f'{path}, row {number} is not a task: {error}; mend or delete the row.') from error
  if not tasks:
    raise UserError(f'{path} holds no tasks; give a file with at least one JSON line.')
  return tasks


def write_tasks(path: epath.PathLike, tasks: Iterable[Task]) -> None:
  """Writes tasks as JSON lines."""
  files.write_jsonl(path, (task.to_json() for task in tasks))
