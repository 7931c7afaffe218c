"""The training step: values against NumPy, accumulation, masks, donation, compiles."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpy_decoder
import pytest
import small

from acesearch_jax.models import lora
from acesearch_jax.models.decoder import init_params
from acesearch_jax.sharding.mesh import make_mesh
from acesearch_jax.training.batching import BatchShapes, make_micro_batches
from acesearch_jax.training.objectives import dpo_objective, response_logps, sft_objective
from acesearch_jax.training.optimizer import OptimizerConfig, make_optimizer
from acesearch_jax.training.state import add_adapters, create_state, state_shardings
from acesearch_jax.training.step import make_train_step

MESH = make_mesh('data:1,fsdp:1')
SHAPES = BatchShapes(token_budget=64, lengths=(16, 32))
BETA, GAMMA = 0.3, 0.2


def make_params(config, mesh=MESH, seed=0):
  """Random weights, large enough that predictions differ, and adapters that do something."""
  params = init_params(config.replace(lora_rank=0), jax.random.key(seed), mesh)
  params = jax.tree.map(lambda leaf: leaf * 3 if leaf.ndim > 2 else leaf, params)
  params['embed']['embedding'] *= 20
  if config.lora_rank:
    params = add_adapters(params, config, jax.random.key(seed + 1), mesh)
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf + 0.1 if path[-1].key == 'lora_b' else leaf, params
    )
  return params


def make_run(objective, config=small.CONFIG, mesh=MESH, learning_rate=1e-2):
  optimizer = make_optimizer(OptimizerConfig(learning_rate), num_steps=10)
  state = create_state(config, make_params(config, mesh), optimizer, mesh)
  return state, make_train_step(objective, optimizer, mesh, state_shardings(config, optimizer, mesh))


def accumulate(step, state, batches):
  accumulator = step.init(state)
  for batch in batches:
    accumulator, _ = step.accumulate(state, accumulator, batch)
  return accumulator


CASES = {
    'sft': (sft_objective, {}, small.examples(7)),
    'dpo': (dpo_objective, {'beta': BETA, 'gamma': GAMMA}, small.pairs(7)),
}


@pytest.mark.parametrize('rank', [0, 2])
@pytest.mark.parametrize('name', CASES)
def test_loss_equals_numpy_in_float64(name, rank):
  make_objective, options, examples = CASES[name]
  config = small.CONFIG.replace(lora_rank=rank)
  state, step = make_run(make_objective(config, **options), config)
  params = jax.tree.map(np.asarray, state.params)
  accumulator = accumulate(step, state, make_micro_batches(examples, SHAPES))
  want = (
      numpy_decoder.sft_loss(params, config, examples)
      if name == 'sft'
      else numpy_decoder.dpo_loss(params, config, examples, BETA, GAMMA)
  )
  assert float(accumulator.loss_sum / accumulator.denominator) == pytest.approx(want, rel=2e-5)
  _, _, metrics = step.update(state, accumulator)
  assert float(metrics['loss']) == pytest.approx(want, rel=2e-5)


@pytest.mark.parametrize('name', CASES)
def test_gradient_equals_finite_differences_of_numpy(name):
  make_objective, options, examples = CASES[name]
  state, step = make_run(make_objective(small.CONFIG, **options))
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), state.params)
  accumulator = accumulate(step, state, make_micro_batches(examples, SHAPES))
  grads = jax.tree.map(lambda grad: np.asarray(grad / accumulator.denominator), accumulator.grads)
  rng = np.random.default_rng(0)
  direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), params)

  def loss(scale):
    moved = jax.tree.map(lambda leaf, d: leaf + scale * d, params, direction)
    if name == 'sft':
      return numpy_decoder.sft_loss(moved, small.CONFIG, examples)
    return numpy_decoder.dpo_loss(moved, small.CONFIG, examples, BETA, GAMMA)

  slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
  dot = sum(jax.tree.leaves(jax.tree.map(lambda grad, d: float(np.sum(grad * d)), grads, direction)))
  assert dot == pytest.approx(slope, rel=2e-4)


@pytest.mark.parametrize('name', CASES)
def test_any_split_into_micro_batches_gives_the_same_sums(name):
  make_objective, options, examples = CASES[name]
  state, step = make_run(make_objective(small.CONFIG, **options))
  whole = accumulate(step, state, make_micro_batches(examples, BatchShapes(32 * 8, (32,))))
  for shapes in (SHAPES, BatchShapes(32, (32,)), BatchShapes(100, (8, 20, 32))):
    split = accumulate(step, state, make_micro_batches(examples, shapes))
    assert split.denominator == whole.denominator
    for got, want in zip(jax.tree.leaves(split), jax.tree.leaves(whole), strict=True):
      np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


def test_prompt_targets_and_padding_do_not_matter():
  examples = small.examples(4)
  (batch,) = make_micro_batches(examples, BatchShapes(128, (32,)))
  params, config = make_params(small.CONFIG), small.CONFIG
  logps, mask = response_logps(params, config, batch)
  assert int(mask.sum()) == sum(len(e.response) for e in examples)
  # Padding: other ids there change no bit of anything.
  lengths = np.array([[e.length] for e in sorted(examples, key=lambda e: e.num_targets)])
  noisy = dict(batch, tokens=np.where(np.arange(32)[None] >= lengths, 5, batch['tokens']))
  np.testing.assert_array_equal(response_logps(params, config, noisy)[0], logps)


@pytest.mark.parametrize('name', CASES)
def test_gradient_with_respect_to_what_is_not_scored_is_exactly_zero(name):
  make_objective, options, examples = CASES[name]
  (batch,) = make_micro_batches(examples[:3], BatchShapes(128, (32,)))
  after = np.cumsum(batch['loss_mask'][:, ::-1], 1)[:, ::-1] == 0
  # Token 47 stands after each row's last scored token and nowhere else; the head is a table of its own.
  batch['tokens'] = np.where(after, 47, np.minimum(batch['tokens'], 46))
  params = make_params(small.CONFIG.replace(tie_embeddings=False))
  objective = make_objective(small.CONFIG.replace(tie_embeddings=False), **options)
  grads = jax.grad(lambda params: objective(params, batch)[0][0])(params)
  table = np.asarray(grads['embed']['embedding'])
  assert np.all(table[47] == 0)
  assert np.any(table != 0)


def test_only_adapters_train_and_the_callers_weights_stay_good():
  config = small.CONFIG.replace(lora_rank=2)
  optimizer = make_optimizer(OptimizerConfig(1e-2), num_steps=10)
  params = make_params(config)
  before = jax.tree.map(np.array, params)
  state = create_state(config, params, optimizer, MESH)
  step = make_train_step(sft_objective(config), optimizer, MESH, state_shardings(config, optimizer, MESH))
  accumulator = accumulate(step, state, make_micro_batches(small.examples(4), SHAPES))
  old = state
  state, accumulator, _ = step.update(state, accumulator)
  assert all(leaf.is_deleted() for leaf in jax.tree.leaves((old.trainable, old.opt_state)))
  jax.tree.map(np.testing.assert_array_equal, params, before)
  trainable, frozen = lora.split_trainable(before, config)
  jax.tree.map(np.testing.assert_array_equal, state.frozen, frozen)
  assert all(np.any(a != b) for a, b in zip(jax.tree.leaves(state.trainable), jax.tree.leaves(trainable), strict=True))
  assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(accumulator))


def test_one_compilation_a_shape():
  state, step = make_run(sft_objective(small.CONFIG))
  accumulator = step.init(state)
  for seed in range(4):
    for batch in make_micro_batches(small.examples(9, seed), SHAPES):
      accumulator, _ = step.accumulate(state, accumulator, batch)
    state, accumulator, _ = step.update(state, accumulator)
  assert step.jitted['accumulate']._cache_size() == len(SHAPES.lengths)
  assert step.jitted['update']._cache_size() == 1


def test_the_shared_prompt_of_a_pair_changes_nothing():
  """A pair's row scores each answer as a row of its own would."""
  from acesearch_jax.training.batching import CHOSEN, REJECTED, Example

  params, pairs = make_params(small.CONFIG), small.pairs(5)
  (batch,) = make_micro_batches(pairs, BatchShapes(256, (32,)))
  logps, mask = response_logps(params, small.CONFIG, batch)
  order = sorted(range(5), key=lambda i: (pairs[i].num_targets, i))
  for segment, field in ((CHOSEN, 'chosen'), (REJECTED, 'rejected')):
    together = np.where(mask & (batch['segment_ids'] == segment), logps, 0).sum(1)
    for row, i in enumerate(order):
      single = Example(pairs[i].prompt, getattr(pairs[i], field))
      (alone,) = make_micro_batches([single], BatchShapes(32, (32,)))
      assert together[row] == pytest.approx(float(response_logps(params, small.CONFIG, alone)[0].sum()), rel=1e-5)


def test_bfloat16_weights_train_as_float32():
  config = dataclasses.replace(small.CONFIG, param_dtype='bfloat16')
  state, _ = make_run(sft_objective(config), config)
  assert {leaf.dtype for leaf in jax.tree.leaves(state.trainable)} == {jnp.dtype('float32')}
