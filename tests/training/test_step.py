"""The training step: values against NumPy, accumulation, masks, donation, compiles."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpy_decoder
import pytest
import small

from acesearch_jax.models import lora
from acesearch_jax.training.batching import BatchShape, Example, make_micro_batches, pack
from acesearch_jax.training.objectives import pair_logps, response_logps

NAMES = ['sft', 'dpo']
ONE_SHAPE = BatchShape(8, 32)


def numpy_loss(name, params, config, examples):
  if name == 'sft':
    return numpy_decoder.sft_loss(params, config, examples)
  return numpy_decoder.dpo_loss(params, config, examples, small.BETA, small.GAMMA)


@pytest.mark.parametrize('rank', [0, 2])
@pytest.mark.parametrize('name', NAMES)
def test_loss_and_gradient_equal_numpy_in_float64(name, rank):
  config, examples = small.CONFIG.replace(lora_rank=rank), small.data(name, 7)
  state, step = small.run(name, config)
  trainable, frozen = jax.tree.map(lambda x: np.asarray(x, np.float64), (state.trainable, state.frozen))
  want = numpy_loss(name, lora.join(trainable, frozen), config, examples)
  accumulator = small.accumulate(step, state, make_micro_batches(examples, small.SHAPES))
  grads = jax.tree.map(lambda grad: np.asarray(grad / accumulator.denominator), accumulator.grads)
  _, _, metrics = step.update(state, accumulator)
  assert float(metrics['loss']) == pytest.approx(want, rel=2e-5)

  rng = np.random.default_rng(0)
  direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), trainable)

  def moved(scale):
    tree = jax.tree.map(lambda leaf, d: leaf + scale * d, trainable, direction)
    return numpy_loss(name, lora.join(tree, frozen), config, examples)

  slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
  dot = sum(jax.tree.leaves(jax.tree.map(lambda grad, d: float(np.sum(grad * d)), grads, direction)))
  assert dot == pytest.approx(slope, rel=5e-4)


@pytest.mark.parametrize('name', NAMES)
def test_any_split_into_micro_batches_gives_the_same_sums(name):
  examples = small.data(name, 7)
  state, step = small.run(name)
  whole = small.accumulate(step, state, make_micro_batches(examples, ONE_SHAPE))
  for shapes in (small.SHAPES, BatchShape(1, 32), BatchShape(4, 64)):
    split = small.accumulate(step, state, make_micro_batches(examples, shapes))
    assert split.denominator == whole.denominator
    for got, want in zip(jax.tree.leaves(split), jax.tree.leaves(whole), strict=True):
      np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


def test_targets_in_the_prompt_and_padding_do_not_matter():
  examples = small.examples(4)
  (batch,) = make_micro_batches(examples, ONE_SHAPE)
  score = jax.jit(partial(response_logps, small.params(), small.CONFIG))
  logps, mask = score(batch)
  assert int(mask.sum()) == sum(len(e.response) for e in examples)
  after = np.cumsum(batch['loss_mask'][:, ::-1], 1)[:, ::-1] == 0
  noisy = dict(batch, tokens=np.where(after, 5, batch['tokens']))
  np.testing.assert_array_equal(score(noisy)[0], logps)


@pytest.mark.parametrize('name', NAMES)
def test_gradient_with_respect_to_what_is_not_scored_is_exactly_zero(name):
  (batch,) = make_micro_batches(small.data(name, 3), ONE_SHAPE)
  after = np.cumsum(batch['loss_mask'][:, ::-1], 1)[:, ::-1] == 0
  # Token 47 stands after each row's last scored token and nowhere else; the head is a table of its own.
  batch['tokens'] = np.where(after, 47, np.minimum(batch['tokens'], 46))
  config = small.CONFIG.replace(tie_embeddings=False)
  objective = small.objective(name, config)
  grads = jax.jit(jax.grad(lambda params: objective(params, batch)[0][0]))(small.params(config))
  table = np.asarray(grads['embed']['embedding'])
  assert np.all(table[47] == 0)
  assert np.any(table != 0)


def test_only_adapters_train_and_the_callers_weights_stay_good():
  config = small.CONFIG.replace(lora_rank=2)
  before = jax.tree.map(np.array, small.params(config))
  old, step = small.run('sft', config)
  accumulator = small.accumulate(step, old, make_micro_batches(small.examples(4), small.SHAPES))
  state, accumulator, _ = step.update(old, accumulator)
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves((old.trainable, old.opt_state)))
  jax.tree.map(np.testing.assert_array_equal, small.params(config), before)
  trainable, frozen = lora.split_trainable(before, config)
  jax.tree.map(np.testing.assert_array_equal, state.frozen, frozen)
  changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), state.trainable, trainable)
  assert all(jax.tree.leaves(changed))
  assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(accumulator))


def test_accumulator_is_donated():
  state, step = small.run('sft')
  (batch,) = make_micro_batches(small.examples(2), ONE_SHAPE)
  old = step.init(state)
  step.accumulate(state, old, batch)
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old.grads))


@pytest.mark.parametrize('name', NAMES)
def test_one_compilation_in_all(name):
  state, step = small.run(name, small.CONFIG.replace(norm_eps=2e-5))  # a config that no other test uses
  accumulator = step.init(state)
  for seed in range(4):
    for batch in make_micro_batches(small.data(name, 9, seed), small.SHAPES):
      accumulator, _ = step.accumulate(state, accumulator, batch)
    state, accumulator, _ = step.update(state, accumulator)
  assert step.jitted['accumulate']._cache_size() == 1
  assert step.jitted['update']._cache_size() == 1


def test_stages_with_equal_objectives_share_compiled_gradients():
  _, first = small.run('dpo')
  _, second = small.run('dpo', learning_rate=1e-3)
  assert first.jitted['accumulate'] is second.jitted['accumulate']


@pytest.mark.parametrize('length', [32, 64])
def test_pairs_packed_together_score_as_rows_of_their_own(length):
  """Neither the shared prompt of a pair nor what else lies in the row changes an answer's score."""
  pairs, shape = small.pairs(9), BatchShape(2, length)
  score = jax.jit(partial(pair_logps, small.params(), small.CONFIG))
  alone = jax.jit(partial(response_logps, small.params(), small.CONFIG))
  packed = 0
  for packing, batch in zip(pack(pairs, shape), make_micro_batches(pairs, shape), strict=True):
    chosen, rejected, chosen_tokens = score(batch)
    for row, indices in enumerate(packing):
      packed += len(indices) > 1
      assert not np.any(chosen_tokens[row, len(indices) :])
      for place, i in enumerate(indices):
        for got, answer in ((chosen, pairs[i].chosen), (rejected, pairs[i].rejected)):
          (single,) = make_micro_batches([Example(pairs[i].prompt, answer)], BatchShape(1, 32))
          assert got[row, place] == pytest.approx(float(alone(single)[0].sum()), rel=1e-5)
        assert chosen_tokens[row, place] == len(pairs[i].chosen)
  assert packed


def test_bfloat16_weights_train_as_float32():
  state, _ = small.run('sft', small.CONFIG.replace(param_dtype='bfloat16'))
  assert {leaf.dtype for leaf in jax.tree.leaves(state.trainable)} == {jnp.dtype('float32')}
