"""From token ids to micro-batches of one fixed shape, in an order that an index alone decides.

Rows are packed: an example lies whole in one row, beside others that it does not see. Masks are set by
position, never by token id: in many vocabularies padding is the end-of-turn token. An example longer
than a row is dropped and counted, never cut.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from acesearch_jax.models.attention import SEGMENT_GROUP

# An example is a group of segments: its prompt (with the response, where it has one), then both answers
# of a pair, each blind to the other. Example i of a row has segments i · SEGMENT_GROUP + these.
PROMPT, CHOSEN, REJECTED = 0, 1, 2
PADDING = -1

HostBatch = dict[str, np.ndarray]

# Segment, position of the first token, tokens, whether the loss is about them.
Piece = tuple[int, int, Sequence[int], bool]


@dataclasses.dataclass(frozen=True)
class Example:
  """A prompt and the response to learn, as token ids (the response's end-of-turn token included)."""

  prompt: tuple[int, ...]
  response: tuple[int, ...]

  @property
  def length(self) -> int:
    """Tokens it takes in a row."""
    return len(self.prompt) + len(self.response)

  @property
  def num_targets(self) -> int:
    """Tokens the loss is about."""
    return len(self.response)

  @property
  def is_usable(self) -> bool:
    """Whether there is something to learn and something to learn it from."""
    return bool(self.prompt and self.response)

  def pieces(self) -> list[Piece]:
    """Its tokens as they lie in a row."""
    return [(PROMPT, 0, self.prompt, False), (PROMPT, len(self.prompt), self.response, True)]


@dataclasses.dataclass(frozen=True)
class PairExample:
  """A prompt, a better and a worse answer, and the reference's summed log-probabilities (nats).

  Its tokens are prompt[:-1], then prompt[-1:] + chosen, then prompt[-1:] + rejected: the prompt is
  computed once for both answers, and each answer's first token has a predicting position of its own.
  """

  prompt: tuple[int, ...]
  chosen: tuple[int, ...]
  rejected: tuple[int, ...]
  reference_chosen_logp: float = 0.0
  reference_rejected_logp: float = 0.0

  @property
  def length(self) -> int:
    return len(self.prompt) + 1 + len(self.chosen) + len(self.rejected)

  @property
  def num_targets(self) -> int:
    return len(self.chosen) + len(self.rejected)

  @property
  def is_usable(self) -> bool:
    return bool(self.prompt and self.chosen and self.rejected)

  def pieces(self) -> list[Piece]:
    last = len(self.prompt) - 1
    return [
        (PROMPT, 0, self.prompt[:-1], False),
        (CHOSEN, last, self.prompt[-1:], False),
        (CHOSEN, last + 1, self.chosen, True),
        (REJECTED, last, self.prompt[-1:], False),
        (REJECTED, last + 1, self.rejected, True),
    ]


AnyExample = TypeVar('AnyExample', Example, PairExample)

# Rows for the examples of a micro-batch: for each row the indices of the examples in it, in order.
Packing = list[list[int]]


@dataclasses.dataclass(frozen=True)
class BatchShape:
  """The static shape of micro-batches.

  Attributes:
    rows: B.
    length: T, tokens a row.
  """

  rows: int
  length: int

  @property
  def examples_per_row(self) -> int:
    """E, the most examples a row may hold; a static bound for sums by example."""
    return max(1, self.length // 16)


def select_usable(
    examples: Sequence[AnyExample], longest: int
) -> tuple[list[AnyExample], dict[str, int]]:
  """The examples that can be trained on, in order, and how many were dropped for which reason.

  Args:
    examples: any.
    longest: tokens of a row.

  Returns:
    Kept examples, and {'too_long': n, 'empty': n}.
  """
  kept = [example for example in examples if example.is_usable and example.length <= longest]
  empty = sum(not example.is_usable for example in examples)
  return kept, {'too_long': len(examples) - len(kept) - empty, 'empty': empty}


@functools.lru_cache(maxsize=8)
def permutation(seed: int, epoch: int, size: int) -> np.ndarray:
  """The order of one epoch, [size] int64 (read-only); depends on nothing but the arguments."""
  order = np.random.default_rng((seed, epoch)).permutation(size)
  order.setflags(write=False)
  return order


def steps_per_epoch(size: int, batch_size: int) -> int:
  """Optimiser steps in an epoch; the last batch may be smaller."""
  return -(-size // batch_size)


def batch_indices(seed: int, step: int, size: int, batch_size: int) -> np.ndarray:
  """Indices of the examples of optimiser step `step`, counted over all epochs.

  A resumed run asks for its step and has its place in the data: there is no iterator to restore.
  """
  epoch, batch = divmod(step, steps_per_epoch(size, batch_size))
  return permutation(seed, epoch, size)[batch * batch_size : (batch + 1) * batch_size]


def pack(examples: Sequence[AnyExample], shape: BatchShape) -> list[Packing]:
  """Which example lies where: the rows of each micro-batch, first fit by falling length.

  Rows of one micro-batch have similar numbers of targets, which is what its logits cost.

  Args:
    examples: of one kind.
    shape: of every micro-batch; the last may have fewer rows than it has room for.

  Raises:
    ValueError: an example is longer than a row.
  """
  rows: Packing = []
  room: list[int] = []
  for i in sorted(range(len(examples)), key=lambda i: (-examples[i].length, i)):
    length = examples[i].length
    if length > shape.length:
      raise ValueError(f'An example of {length} tokens is longer than a row of {shape.length}.')
    fitting = (
        r for r, row in enumerate(rows) if room[r] >= length and len(row) < shape.examples_per_row
    )
    row = next(fitting, len(rows))
    if row == len(rows):
      rows.append([])
      room.append(shape.length)
    rows[row].append(i)
    room[row] -= length
  rows.sort(key=lambda row: (-sum(examples[i].num_targets for i in row), row))
  return [rows[start : start + shape.rows] for start in range(0, len(rows), shape.rows)]


def make_micro_batches(examples: Sequence[AnyExample], shape: BatchShape) -> list[HostBatch]:
  """Lays examples out as `pack` says. Sums over all micro-batches do not depend on how that is.

  Args:
    examples: of one kind; none longer than a row (see `select_usable`).
    shape: of the micro-batches.

  Returns:
    Dicts with tokens, positions and segment_ids [B, T] int32 (segment PADDING after the last example)
    and loss_mask [B, T] bool over response tokens; for pairs also reference_chosen_logps and
    reference_rejected_logps [B, E] float32.

  Raises:
    ValueError: an example is longer than a row.
  """
  return [lay_out(examples, packing, shape) for packing in pack(examples, shape)]


def lay_out(examples: Sequence[AnyExample], packing: Packing, shape: BatchShape) -> HostBatch:
  """One micro-batch of `make_micro_batches`."""
  size = (shape.rows, shape.length)
  batch = {
      'tokens': np.zeros(size, np.int32),
      'positions': np.zeros(size, np.int32),
      'segment_ids': np.full(size, PADDING, np.int32),
      'loss_mask': np.zeros(size, bool),
  }
  if isinstance(examples[packing[0][0]], PairExample):
    references = np.zeros((2, shape.rows, shape.examples_per_row), np.float32)
    batch['reference_chosen_logps'], batch['reference_rejected_logps'] = references
  for row, indices in enumerate(packing):
    start = 0
    for place, i in enumerate(indices):
      for segment, position, tokens, is_target in examples[i].pieces():
        span = slice(start, start + len(tokens))
        batch['tokens'][row, span] = tokens
        batch['positions'][row, span] = position + np.arange(len(tokens))
        batch['segment_ids'][row, span] = place * SEGMENT_GROUP + segment
        batch['loss_mask'][row, span] = is_target
        start += len(tokens)
      if isinstance(examples[i], PairExample):
        batch['reference_chosen_logps'][row, place] = examples[i].reference_chosen_logp
        batch['reference_rejected_logps'][row, place] = examples[i].reference_rejected_logp
  return batch


def example_lengths(segment_ids: np.ndarray) -> np.ndarray:
  """Tokens of every example in segment_ids [B, T], row by row, [n] int64."""
  rows, places = np.nonzero(segment_ids != PADDING)
  groups = segment_ids[rows, places] // SEGMENT_GROUP
  return np.unique(np.stack([rows, groups]), axis=1, return_counts=True)[1]
