"""From token ids to micro-batches of a few fixed shapes, in an order that an index alone decides.

Masks are set by position, never by token id: in many vocabularies padding is the end-of-turn token.
An example longer than the longest bucket is dropped and counted, never cut.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

# Segments of a row that holds a pair: the shared prompt, then both answers, each blind to the other.
PROMPT, CHOSEN, REJECTED = 0, 1, 2

HostBatch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Example:
  """A prompt and the response to learn, as token ids (the response's end-of-turn token included)."""

  prompt: tuple[int, ...]
  response: tuple[int, ...]

  @property
  def length(self) -> int:
    """Tokens in the row."""
    return len(self.prompt) + len(self.response)

  @property
  def num_targets(self) -> int:
    """Tokens the loss is about."""
    return len(self.response)

  @property
  def is_usable(self) -> bool:
    """Whether there is something to learn and something to learn it from."""
    return bool(self.prompt and self.response)


@dataclasses.dataclass(frozen=True)
class PairExample:
  """A prompt, a better and a worse answer, and the reference's summed log-probabilities (nats).

  The row is prompt[:-1], then prompt[-1:] + chosen, then prompt[-1:] + rejected: the prompt is
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


AnyExample = TypeVar('AnyExample', Example, PairExample)


@dataclasses.dataclass(frozen=True)
class BatchShapes:
  """The static shapes of micro-batches: [rows, T] for each T of `lengths`, about `token_budget` each.

  Attributes:
    token_budget: rows · T aimed at.
    lengths: bucket lengths, ascending.
    row_multiple: rows are a multiple of this (the mesh's data · fsdp), at least one multiple.
  """

  token_budget: int
  lengths: tuple[int, ...]
  row_multiple: int = 1

  def __post_init__(self):
    if not self.lengths or sorted(set(self.lengths)) != list(self.lengths) or self.lengths[0] < 1:
      raise ValueError(f'Bucket lengths must be positive and ascending: {self.lengths}.')

  def rows(self, length: int) -> int:
    """Rows of the micro-batch of bucket `length`."""
    return max(1, self.token_budget // (length * self.row_multiple)) * self.row_multiple


def select_usable(
    examples: Sequence[AnyExample], longest: int
) -> tuple[list[AnyExample], dict[str, int]]:
  """The examples that can be trained on, in order, and how many were dropped for which reason.

  Args:
    examples: any.
    longest: the longest bucket, tokens.

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


def make_micro_batches(examples: Sequence[AnyExample], shapes: BatchShapes) -> list[HostBatch]:
  """Lays examples out in rows of a few static shapes, padded on the right.

  Empty rows of a longer bucket are filled with the longest examples of shorter ones, so that at most
  one micro-batch has empty rows. Rows of one micro-batch have similar numbers of targets. Sums over
  all micro-batches do not depend on any of this.

  Args:
    examples: of one kind; none longer than the longest bucket (see `select_usable`).
    shapes: the shapes to use.

  Returns:
    Dicts with tokens [B, T] int32, positions [B, T] int32, loss_mask [B, T] bool over response tokens;
    for pairs also segment_ids [B, T] int32 and reference_chosen_logps, reference_rejected_logps [B]
    float32.

  Raises:
    ValueError: an example is longer than the longest bucket.
  """
  return [
      _fill(rows, shapes.rows(length), length) for length, rows, _ in _assign(examples, shapes)
  ]


def row_order(examples: Sequence[AnyExample], shapes: BatchShapes) -> list[list[int]]:
  """Indices of the examples in the rows of each of `make_micro_batches`' results."""
  return [indices for _, _, indices in _assign(examples, shapes)]


def _assign(examples, shapes):
  """(bucket length, examples, their indices) of each micro-batch, longest bucket first."""
  too_long = max((example.length for example in examples), default=0)
  if too_long > shapes.lengths[-1]:
    raise ValueError(f'An example of {too_long} tokens is longer than the bucket of {shapes.lengths[-1]}.')
  waiting = sorted(range(len(examples)), key=lambda i: (-examples[i].length, i))
  result = []
  floors = (0, *shapes.lengths[:-1])
  for length, floor in zip(reversed(shapes.lengths), reversed(floors), strict=True):
    own = sum(examples[i].length > floor for i in waiting)
    taken = waiting[: -(-own // shapes.rows(length)) * shapes.rows(length)]
    waiting = waiting[len(taken) :]
    taken.sort(key=lambda i: (examples[i].num_targets, i))
    for start in range(0, len(taken), shapes.rows(length)):
      indices = taken[start : start + shapes.rows(length)]
      result.append((length, [examples[i] for i in indices], indices))
  return result


def _fill(examples, rows: int, length: int) -> HostBatch:
  batch = {
      'tokens': np.zeros((rows, length), np.int32),
      'positions': np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
      'loss_mask': np.zeros((rows, length), bool),
  }
  if isinstance(examples[0], PairExample):
    batch['segment_ids'] = np.zeros((rows, length), np.int32)
    batch['reference_chosen_logps'] = np.zeros(rows, np.float32)
    batch['reference_rejected_logps'] = np.zeros(rows, np.float32)
    for row, example in enumerate(examples):
      _fill_pair(batch, row, example)
  else:
    for row, example in enumerate(examples):
      batch['tokens'][row, : example.length] = example.prompt + example.response
      batch['loss_mask'][row, len(example.prompt) : example.length] = True
  return batch


def _fill_pair(batch: HostBatch, row: int, pair: PairExample) -> None:
  shared = len(pair.prompt) - 1
  batch['tokens'][row, :shared] = pair.prompt[:shared]
  start = shared
  for segment, answer in ((CHOSEN, pair.chosen), (REJECTED, pair.rejected)):
    stop = start + 1 + len(answer)
    batch['tokens'][row, start:stop] = (pair.prompt[-1], *answer)
    batch['positions'][row, start:stop] = np.arange(shared, shared + 1 + len(answer))
    batch['segment_ids'][row, start:stop] = segment
    batch['loss_mask'][row, start + 1 : stop] = True
    start = stop
  batch['reference_chosen_logps'][row] = pair.reference_chosen_logp
  batch['reference_rejected_logps'][row] = pair.reference_rejected_logp
