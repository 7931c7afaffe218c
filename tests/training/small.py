"""A decoder small enough for tests, weights and examples for it, and a step to train it with."""

import functools

import jax
import numpy as np

from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.models.decoder import abstract_params
from acesearch_jax.sharding.mesh import make_mesh
from acesearch_jax.sharding.rules import named_shardings
from acesearch_jax.training.batching import BatchShape, Example, PairExample
from acesearch_jax.training.objectives import DpoObjective, SftObjective
from acesearch_jax.training.optimizer import OptimizerConfig, make_optimizer
from acesearch_jax.training.state import create_state
from acesearch_jax.training.step import make_train_step

CONFIG = DecoderConfig(
    vocab_size=48, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=32
)
MESH = make_mesh('data:1,fsdp:1')
SHAPES = BatchShape(rows=2, length=32)
BETA, GAMMA = 0.3, 0.2


def _ids(rng, low, high):
  return tuple(int(i) for i in rng.integers(CONFIG.vocab_size, size=rng.integers(low, high)))


def examples(count: int, seed: int = 0) -> list[Example]:
  rng = np.random.default_rng(seed)
  return [Example(_ids(rng, 3, 14), _ids(rng, 1, 6)) for _ in range(count)]


def pairs(count: int, seed: int = 0) -> list[PairExample]:
  rng = np.random.default_rng(seed)
  return [
      PairExample(_ids(rng, 3, 14), _ids(rng, 1, 6), _ids(rng, 1, 6), *(-rng.uniform(5, 20, size=2)).tolist())
      for _ in range(count)
  ]


def data(name: str, count: int, seed: int = 0):
  return examples(count, seed) if name == 'sft' else pairs(count, seed)


def objective(name: str, config: DecoderConfig = CONFIG):
  return SftObjective(config) if name == 'sft' else DpoObjective(config, beta=BETA, gamma=GAMMA)


@functools.cache
def params(config: DecoderConfig = CONFIG, mesh: jax.sharding.Mesh = MESH):
  """Random weights, large enough that predictions differ, and adapters that do something."""
  shapes, axes = abstract_params(config)
  rng = np.random.default_rng(0)
  tree = jax.tree.map(lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(leaf.dtype), shapes)
  return jax.device_put(tree, named_shardings(shapes, axes, mesh))


def run(name, config: DecoderConfig = CONFIG, mesh: jax.sharding.Mesh = MESH, learning_rate: float = 1e-2):
  """A fresh state and its step."""
  optimizer, step = _optimizer_and_step(name, config, mesh, learning_rate)
  return create_state(config, params(config, mesh), optimizer, mesh), step


@functools.cache
def _optimizer_and_step(name, config, mesh, learning_rate):
  optimizer = make_optimizer(OptimizerConfig(learning_rate), num_steps=10)
  return optimizer, make_train_step(objective(name, config), optimizer, mesh)


def accumulate(step, state, batches):
  accumulator = step.init(state)
  for batch in batches:
    accumulator, _ = step.accumulate(state, accumulator, batch)
  return accumulator
