"""Micro-batches: nothing lost, nothing invented, few shapes, an order that an index decides."""

import numpy as np
import pytest
import small
from hypothesis import given, settings
from hypothesis import strategies as st

from acesearch_jax.training.batching import (
    BatchShapes,
    Example,
    PairExample,
    batch_indices,
    make_micro_batches,
    row_order,
    select_usable,
    steps_per_epoch,
)
from acesearch_jax.training.flops import row_lengths, training_flops


def test_a_row_by_hand():
  (batch,) = make_micro_batches([Example((7, 8), (9, 0))], BatchShapes(8, (6,)))
  np.testing.assert_array_equal(batch['tokens'], [[7, 8, 9, 0, 0, 0]])
  # The response ends with id 0, which is also what fills the row: masks go by position.
  np.testing.assert_array_equal(batch['loss_mask'], [[0, 0, 1, 1, 0, 0]])
  np.testing.assert_array_equal(batch['positions'], [[0, 1, 2, 3, 4, 5]])


def test_a_pair_by_hand():
  (batch,) = make_micro_batches([PairExample((5, 6), (1, 2), (3,), -1.5, -2.5)], BatchShapes(8, (8,)))
  np.testing.assert_array_equal(batch['tokens'], [[5, 6, 1, 2, 6, 3, 0, 0]])
  np.testing.assert_array_equal(batch['positions'], [[0, 1, 2, 3, 1, 2, 6, 7]])
  np.testing.assert_array_equal(batch['segment_ids'], [[0, 1, 1, 1, 2, 2, 0, 0]])
  np.testing.assert_array_equal(batch['loss_mask'], [[0, 0, 1, 1, 0, 1, 0, 0]])
  assert (batch['reference_chosen_logps'][0], batch['reference_rejected_logps'][0]) == (-1.5, -2.5)


@settings(deadline=None)
@given(
    count=st.integers(1, 40),
    seed=st.integers(0, 99),
    budget=st.integers(1, 200),
    multiple=st.sampled_from([1, 2, 8]),
    kind=st.sampled_from(['sft', 'dpo']),
)
def test_every_example_is_in_one_row_of_a_fixed_shape(count, seed, budget, multiple, kind):
  examples, shapes = small.data(kind, count, seed), BatchShapes(budget, (12, 20, 32), multiple)
  batches, order = make_micro_batches(examples, shapes), row_order(examples, shapes)
  assert sorted(i for rows in order for i in rows) == list(range(count))
  empty_rows = 0
  for batch, rows in zip(batches, order, strict=True):
    height, length = batch['tokens'].shape
    assert length in shapes.lengths and height == shapes.rows(length) and height % multiple == 0
    empty_rows += bool(height > len(rows))
    np.testing.assert_array_equal(
        row_lengths(batch['loss_mask']), [examples[i].length for i in rows] + [0] * (height - len(rows))
    )
    for row, i in enumerate(rows):
      response = examples[i].response if kind == 'sft' else examples[i].chosen + examples[i].rejected
      assert tuple(batch['tokens'][row][batch['loss_mask'][row]]) == response
  assert empty_rows <= 1


def test_long_and_empty_examples_are_dropped_and_counted():
  good, long = Example((1, 2), (3,)), Example((1,) * 9, (2,))
  kept, dropped = select_usable([long, good, Example((1,), ()), Example((), (1,))], longest=9)
  assert (kept, dropped) == ([good], {'too_long': 1, 'empty': 2})
  with pytest.raises(ValueError, match='10 tokens'):
    make_micro_batches([long], BatchShapes(9, (9,)))


def test_bucket_lengths_must_ascend():
  with pytest.raises(ValueError, match='ascending'):
    BatchShapes(10, (8, 4))


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
