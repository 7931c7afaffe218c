"""The loop: resumed equals uninterrupted to the bit, early stopping, held-out loss, reference log-probs."""

import jax
import numpy as np
import numpy_decoder
import pytest
import small

from acesearch_jax.errors import UserError
from acesearch_jax.training.batching import batch_indices, make_micro_batches
from acesearch_jax.training.checkpoints import Checkpoints
from acesearch_jax.training.loop import LoopConfig, begin, evaluate_loss, reference_logps, train

LORA = small.CONFIG.replace(lora_rank=2)


def batches_for(name):
  examples = small.data(name, 10)
  return lambda i: make_micro_batches([examples[j] for j in batch_indices(0, i, 10, 4)], small.SHAPES)


def train_once(name, config, folder=None, until=None, evaluate=None):
  """Trains to the end, or is stopped dead after step `until`; returns (run, logged values)."""
  state, step = small.run(name, LORA)
  checkpoints = Checkpoints(folder) if folder else None
  logged = {}

  def log(number, values):
    logged[number] = values
    if number == until:
      raise KeyboardInterrupt

  try:
    run = begin(state, config, checkpoints)
    run = train(run, step, batches_for(name), config, checkpoints, log, evaluate)
  except KeyboardInterrupt:
    run = None
  if checkpoints:
    checkpoints.close()
  return run, logged


@pytest.mark.parametrize('name, until', [('sft', 3), ('sft', 4), ('dpo', 5)])
def test_resumed_equals_uninterrupted(tmp_path, name, until):
  config = LoopConfig(name, num_steps=6, checkpoint_every=2)
  whole, whole_log = train_once(name, config)
  train_once(name, config, tmp_path, until)
  resumed, resumed_log = train_once(name, config, tmp_path)
  assert min(resumed_log) == (until - 1) // 2 * 2 + 1  # the checkpoint of a step follows its log
  jax.tree.map(np.testing.assert_array_equal, resumed.state, whole.state)
  assert resumed.counters == whole.counters
  for step, values in resumed_log.items():
    for timeless in ('loss', 'grad_norm', 'learning_rate', 'tokens'):
      assert values[timeless] == whole_log[step][timeless]


def test_tokens_are_counted_without_padding():
  run, logged = train_once('sft', LoopConfig('sft', num_steps=3, checkpoint_every=9))
  total = sum(example.length for example in small.examples(10))  # three steps of 4, 4 and 2 are one epoch
  assert run.counters['tokens'] == logged[3]['tokens'] == total
  assert 'mfu' not in logged[3]


def test_early_stopping_keeps_the_best_weights_also_when_resumed(tmp_path):
  losses = {1: 3.0, 2: 1.0, 3: 2.0, 4: 1.5, 5: 0.5}

  def evaluate(state):
    return {'heldout_loss': losses[int(state.step)]}

  config = LoopConfig('sft', num_steps=6, checkpoint_every=1, evaluate_every=1, patience=2)
  whole, log = train_once('sft', config, evaluate=evaluate)
  assert max(log) == 4 and whole.counters['best_step'] == 2
  train_once('sft', config, tmp_path, until=4, evaluate=evaluate)
  resumed, _ = train_once('sft', config, tmp_path, evaluate=evaluate)
  two_steps, _ = train_once('sft', LoopConfig('sft', num_steps=2, checkpoint_every=9))
  for run in (whole, resumed):
    jax.tree.map(np.testing.assert_array_equal, run.state.trainable, two_steps.state.trainable)


def test_a_loss_that_is_not_finite_names_stage_and_step():
  state, step = small.run('sft')
  state = state.replace(trainable=jax.tree.map(lambda leaf: leaf * np.nan, state.trainable))
  config = LoopConfig('dpo_1', num_steps=2, checkpoint_every=1)
  with pytest.raises(UserError, match='dpo_1, step 1: loss is nan'):
    train(begin(state, config), step, batches_for('sft'), config)


def test_heldout_loss_equals_numpy():
  state, step = small.run('sft', LORA)
  examples = small.examples(9, seed=5)
  values = evaluate_loss(state, step, make_micro_batches(examples, small.SHAPES))
  want = numpy_decoder.sft_loss(jax.tree.map(np.asarray, state.params), LORA, examples)
  assert values['loss'] == pytest.approx(want, rel=1e-5)


def test_reference_logps_equal_numpy_and_start_dpo_at_log_two():
  pairs = reference_logps(small.params(), small.CONFIG, small.pairs(7), small.SHAPES, small.MESH)
  params = jax.tree.map(np.asarray, small.params())
  for before, pair in zip(small.pairs(7), pairs, strict=True):
    assert (pair.prompt, pair.chosen, pair.rejected) == (before.prompt, before.chosen, before.rejected)
    chosen = numpy_decoder.response_logp(params, small.CONFIG, pair.prompt, pair.chosen)
    rejected = numpy_decoder.response_logp(params, small.CONFIG, pair.prompt, pair.rejected)
    assert pair.reference_chosen_logp == pytest.approx(chosen, rel=1e-5)
    assert pair.reference_rejected_logp == pytest.approx(rejected, rel=1e-5)
  state, step = small.run('dpo')
  values = evaluate_loss(state, step, make_micro_batches(pairs, small.SHAPES))
  assert values['loss'] == pytest.approx(np.log(2) + small.GAMMA * values['chosen_nll'], rel=1e-4)
  assert values['margin'] == pytest.approx(0, abs=1e-4)
