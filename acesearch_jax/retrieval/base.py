"""What every retriever offers, and how a corpus file is read."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from etils import epath

from acesearch_jax import files
from acesearch_jax.data.tasks import Passage
from acesearch_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Hit:
  """A retrieved passage and its score (greater is better; the scale is the retriever's own)."""

  passage: Passage
  score: float


class Retriever(Protocol):
  """Finds passages for queries."""

  def retrieve(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
    """At most `k` hits for each query, best first; none where nothing matches."""


def read_corpus(path: epath.PathLike) -> list[Passage]:
  """Reads passages from JSON lines.

  Rows are `{"id", "title", "text"}` or, as Search-R1 has them, `{"id", "contents"}` where the first
  line of `contents` is the quoted title.

  Raises:
    UserError: the file is missing, a row is broken (the message has its number), an id comes twice,
      or no passage is left.
  """
  passages: dict[str, Passage] = {}
  for number, row in enumerate(files.read_jsonl(path), start=1):
    try:
      passage = _passage(row)
    except (KeyError, ValueError) as error:
      reason = f'field {error} is missing' if isinstance(error, KeyError) else str(error)
      raise UserError(f'{path}, row {number} is not a passage: {reason}; mend or delete the row.') from error
    if passage.id in passages:
      raise UserError(f"{path}, row {number} repeats the id '{passage.id}'; give every passage its own id.")
    passages[passage.id] = passage
  if not passages:
    raise UserError(f'{path} is an empty corpus; give a file with at least one passage.')
  return list(passages.values())


def _passage(row: dict[str, Any]) -> Passage:
  if 'text' not in row and 'contents' in row:
    _require_text(row, 'contents')
    title, _, text = row['contents'].partition('\n')
    title = title.strip()
    if len(title) > 1 and title[0] == title[-1] == '"':
      title = title[1:-1]
  else:
    title, text = row.get('title') or '', row['text']
    _require_text({'title': title, 'text': text}, 'title', 'text')
  if not title.strip() and not text.strip():
    raise ValueError('it has no text')
  if isinstance(row['id'], bool) or not isinstance(row['id'], (str, int)) or row['id'] == '':
    raise ValueError("field 'id' must be a string or an integer")
  return Passage(str(row['id']), title, text)


def _require_text(row: dict[str, Any], *fields: str) -> None:
  for field in fields:
    if not isinstance(row[field], str):
      raise ValueError(f"field '{field}' must be a string")
