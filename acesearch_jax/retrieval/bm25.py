"""BM25 over titles and texts, in memory or memory-mapped from a folder."""

import contextlib
import json
import logging
import os
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from acesearch_jax import files
from acesearch_jax.data.tasks import Passage
from acesearch_jax.errors import UserError
from acesearch_jax.retrieval.base import Hit
from acesearch_jax.retrieval.passage_file import PassageFile
from acesearch_jax.retrieval.words import words

_MANIFEST = 'index.json'
_FORMAT = 1  # Raised with every change of the files or of `words`.


class BM25Retriever:
  """Lucene's BM25 (idf = ln(1 + (N - df + 0.5) / (df + 0.5)), never negative) through bm25s.

  A query scores by the words it shares with a passage. One that shares none, an empty one say, finds
  nothing.
  """

  def __init__(self, passages: Sequence[Passage], k1: float = 0.9, b: float = 0.4):
    """Indexes `passages` in memory.

    Args:
      passages: the corpus; equal scores rank in its order.
      k1: how fast repeated words saturate.
      b: how much long passages are discounted, from 0 to 1.

    Raises:
      UserError: there is no passage, or no word in any.
    """
    # Titles apart, so that one of stop words alone ('The Who') is still found.
    tokens = [words(passage.title) + words(passage.text) for passage in passages]
    vocabulary: dict[str, int] = {}
    ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in passage] for passage in tokens]
    if not vocabulary:
      raise UserError('The corpus is empty; give at least one passage with words in it.')
    self._index = _bm25s().BM25(k1=k1, b=b, method='lucene', backend='numpy')
    self._index.index((ids, vocabulary), show_progress=False)
    self._passages = passages

  @property
  def passages(self) -> Sequence[Passage]:
    """The corpus."""
    return self._passages

  def retrieve(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
    """At most `k` hits for each query, best first, equal scores in corpus order.

    Raises:
      ValueError: `k` is less than 1.
    """
    if k < 1:
      raise ValueError(f'k is {k}, must be at least 1')
    return [self._retrieve(query, k) for query in queries]

  def save(self, directory: os.PathLike | str) -> None:
    """Writes index and passages into a local folder; an index that is there is replaced.

    Raises:
      UserError: the folder holds something else, or cannot be written.
    """
    target = pathlib.Path(directory)
    if not _may_replace(target):
      raise UserError(f'{target} is there and is no index; choose a new or empty folder.')
    temporary = target.with_name(f'{target.name}.tmp-{os.getpid()}')
    try:
      temporary.mkdir(parents=True)
      self._index.save(temporary, show_progress=False)
      PassageFile.write(temporary, self._passages)
      sizes = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
      # Last, so that a folder with a manifest is complete.
      files.write_json(
          temporary / _MANIFEST, {'format': _FORMAT, 'passages': len(self._passages), 'files': sizes}
      )
      shutil.rmtree(target, ignore_errors=True)
      temporary.rename(target)
    except OSError as error:
      raise UserError(
          f'Cannot write the index {target}: {error.strerror or error}; free some space or choose another '
          'folder.'
      ) from error
    finally:
      shutil.rmtree(temporary, ignore_errors=True)

  @classmethod
  def load(cls, directory: os.PathLike | str) -> 'BM25Retriever':
    """Opens a saved index through memory maps.

    Raises:
      UserError: there is no index, it is damaged, or another version wrote it.
    """
    directory = pathlib.Path(directory)
    if not (directory / _MANIFEST).is_file():
      raise UserError(f'{directory} holds no index; build one with python -m launch.index.')
    manifest = files.read_json(directory / _MANIFEST)
    retriever = cls.__new__(cls)
    with _damage_reported(directory):
      if manifest['format'] != _FORMAT:
        raise ValueError(f'format {manifest["format"]} instead of {_FORMAT}')
      for name, size in manifest['files'].items():
        if (found := (directory / name).stat().st_size) != size:
          raise ValueError(f'{name} has {found} bytes instead of {size}')
      index = _bm25s().BM25.load(directory, mmap=True, allow_pickle=False, show_progress=False)
      passages = PassageFile(directory)
      if not len(passages) == manifest['passages'] == index.scores['num_docs']:
        raise ValueError('passages and postings differ in number')
      retriever._index, retriever._passages = index, passages
    return retriever

  def _retrieve(self, query: str, k: int) -> list[Hit]:
    known = [word for word in words(query) if word in self._index.vocab_dict]
    if not known:
      return []
    scores = self._index.get_scores(known)  # [N] float32
    found = np.flatnonzero(scores > 0)
    if len(found) > k:
      least = -np.partition(-scores[found], k - 1)[k - 1]
      found = found[scores[found] >= least]
    best = found[np.argsort(-scores[found], kind='stable')][:k]
    return [Hit(self._passages[int(i)], float(scores[i])) for i in best]


def _may_replace(target: pathlib.Path) -> bool:
  """Whether `target` is absent, an index (perhaps a damaged one), or an empty folder."""
  if not target.exists() or any((target / name).is_file() for name in (_MANIFEST, 'params.index.json')):
    return True
  return target.is_dir() and not any(target.iterdir())


def _bm25s() -> Any:
  """bm25s, imported late: its import starts JAX's backend, which must come after distributed set-up."""
  import bm25s

  logging.getLogger('bm25s').setLevel(logging.WARNING)  # It narrates every step otherwise.
  return bm25s


@contextlib.contextmanager
def _damage_reported(directory: pathlib.Path):
  """Turns whatever a broken file raises into one sentence."""
  try:
    yield
  except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, json.JSONDecodeError) as error:
    reason = f'{error.filename} is missing' if isinstance(error, FileNotFoundError) else error
    raise UserError(
        f'The index {directory} is damaged ({reason}); build it again with python -m launch.index.'
    ) from error
