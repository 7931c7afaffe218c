"""Micro-batches: nothing lost, nothing invented, one shape, an order that an index decides."""

import numpy as np
import pytest
import small
from hypothesis import given, settings
from hypothesis import strategies as st

from acesearch_jax.training.batching import (
    BatchShape,
    Example,
    PairExample,
    batch_indices,
    example_lengths,
    make_micro_batches,
    pack,
    select_usable,
    steps_per_epoch,
)
from acesearch_jax.training.flops import training_flops


def test_a_row_by_hand():
  (batch,) = make_micro_batches([Example((3,), (4,)), Example((7, 8), (9, 0))], BatchShape(1, 32))
  np.testing.assert_array_equal(batch['tokens'][0, :7], [7, 8, 9, 0, 3, 4, 0])
  # The first response ends with id 0, which is also what fills the row: masks go by position.
  np.testing.assert_array_equal(batch['loss_mask'][0, :7], [0, 0, 1, 1, 0, 1, 0])
  np.testing.assert_array_equal(batch['positions'][0, :7], [0, 1, 2, 3, 0, 1, 0])
  np.testing.assert_array_equal(batch['segment_ids'][0, :7], [0, 0, 0, 0, 4, 4, -1])
  assert not batch['loss_mask'][0, 7:].any() and np.all(batch['segment_ids'][0, 7:] == -1)


def test_pairs_by_hand():
  pairs = [PairExample((5, 6), (1, 2), (3,), -1.5, -2.5), PairExample((9,), (8,), (7,), -3.5, -4.5)]
  (batch,) = make_micro_batches(pairs, BatchShape(1, 32))
  np.testing.assert_array_equal(batch['tokens'][0, :11], [5, 6, 1, 2, 6, 3, 9, 8, 9, 7, 0])
  np.testing.assert_array_equal(batch['positions'][0, :11], [0, 1, 2, 3, 1, 2, 0, 1, 0, 1, 0])
  np.testing.assert_array_equal(batch['segment_ids'][0, :11], [0, 1, 1, 1, 2, 2, 5, 5, 6, 6, -1])
  np.testing.assert_array_equal(batch['loss_mask'][0, :11], [0, 0, 1, 1, 0, 1, 0, 1, 0, 1, 0])
  np.testing.assert_array_equal(batch['reference_chosen_logps'], [[-1.5, -3.5]])
  np.testing.assert_array_equal(batch['reference_rejected_logps'], [[-2.5, -4.5]])


@settings(deadline=None)
@given(
    count=st.integers(1, 40),
    seed=st.integers(0, 99),
    rows=st.integers(1, 9),
    length=st.integers(25, 70),
    kind=st.sampled_from(['sft', 'dpo']),
)
def test_every_example_lies_whole_in_one_place(count, seed, rows, length, kind):
  examples, shape = small.data(kind, count, seed), BatchShape(rows, length)
  packings = pack(examples, shape)
  assert sorted(i for packing in packings for row in packing for i in row) == list(range(count))
  assert all(len(packing) == rows for packing in packings[:-1])
  for packing, batch in zip(packings, make_micro_batches(examples, shape), strict=True):
    assert batch['tokens'].shape == (rows, length)
    assert all(len(row) <= shape.examples_per_row for row in packing)
    placed = [i for row in packing for i in row]
    np.testing.assert_array_equal(
        example_lengths(batch['segment_ids']), [examples[i].length for i in placed]
    )
    for row, indices in enumerate(packing):
      targets = batch['tokens'][row][batch['loss_mask'][row]]
      chosen = [examples[i] for i in indices]
      responses = [e.response if kind == 'sft' else e.chosen + e.rejected for e in chosen]
      assert tuple(targets) == sum(responses, ())


def test_rows_are_filled():
  """First fit leaves at most one row half empty, as long as rows may hold the examples that fit."""
  examples = [Example((1,) * n, (2,)) for n in np.random.default_rng(0).integers(20, 60, size=200)]
  packings = pack(examples, BatchShape(4, 256))
  filled = [sum(examples[i].length for i in row) for packing in packings for row in packing]
  assert sum(tokens < 128 for tokens in filled) <= 1
  assert sum(filled) > 0.9 * 4 * 256 * len(packings)


def test_long_and_empty_examples_are_dropped_and_counted():
  good, long = Example((1, 2), (3,)), Example((1,) * 9, (2,))
  kept, dropped = select_usable([long, good, Example((1,), ()), Example((), (1,))], longest=9)
  assert (kept, dropped) == ([good], {'too_long': 1, 'empty': 2})
  with pytest.raises(ValueError, match='10 tokens'):
    make_micro_batches([long], BatchShape(1, 9))


@given(seed=st.integers(0, 9), size=st.integers(1, 30), batch_size=st.integers(1, 9))
def test_each_epoch_has_every_example_once_in_an_order_of_its_own(seed, size, batch_size):
  steps = steps_per_epoch(size, batch_size)
  epochs = [
      np.concatenate([batch_indices(seed, e * steps + i, size, batch_size) for i in range(steps)]).tolist()
      for e in range(2)
  ]
  assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(size))
  if size > 12:
    assert epochs[0] != epochs[1]


def test_order_is_the_same_in_every_process():
  assert batch_indices(3, 5, 10, 4).tolist() == np.random.default_rng((3, 1)).permutation(10)[8:].tolist()


def test_flops_by_hand():
  config = small.CONFIG
  matmuls = 2 * (16 * 4 * 2 * (4 + 2) + 3 * 16 * 32) + 16 * 48
  assert config.matmul_params == matmuls
  assert training_flops(config, np.array([3, 0, 5])) == 6 * matmuls * 8 + 6 * 2 * 16 * (9 + 25)
