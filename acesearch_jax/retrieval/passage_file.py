"""Passages on disk, read one at a time through a memory map."""

import dataclasses
import json
import mmap
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from acesearch_jax.data.tasks import Passage

FILES = ('passages.jsonl', 'passages.offsets.npy')


class PassageFile(Sequence[Passage]):
  """The passages that `write` left in a folder; nothing is read before it is asked for."""

  def __init__(self, directory: pathlib.Path):
    """Opens the folder.

    Raises:
      OSError, ValueError: the files are missing, or do not belong together.
    """
    text, offsets = (directory / name for name in FILES)
    self._offsets = np.load(offsets, mmap_mode='r', allow_pickle=False)
    with text.open('rb') as file:
      self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if self._offsets.ndim != 1 or len(self._offsets) < 2 or self._offsets[-1] != len(self._bytes):
      raise ValueError(f'{text.name} is not as long as {offsets.name} says')

  @staticmethod
  def write(directory: pathlib.Path, passages: Iterable[Passage]) -> None:
    """Writes `passages` into an existing folder."""
    text, offsets = (directory / name for name in FILES)
    ends = [0]
    with text.open('wb') as file:
      for passage in passages:
        line = json.dumps(dataclasses.asdict(passage), ensure_ascii=False).encode() + b'\n'
        file.write(line)
        ends.append(ends[-1] + len(line))
    np.save(offsets, np.asarray(ends, np.int64), allow_pickle=False)

  def __len__(self) -> int:
    return len(self._offsets) - 1

  def __getitem__(self, index: int) -> Passage:
    if not 0 <= index < len(self):
      raise IndexError(index)
    return Passage(**json.loads(self._bytes[self._offsets[index] : self._offsets[index + 1]]))
