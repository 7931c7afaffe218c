"""The jitted training step: gradients of loss sums accumulated over micro-batches, then one update.

A step's loss is (sum of all losses) / (sum of all denominators), whatever the split into
micro-batches: means of means would weigh a short micro-batch like a long one.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from acesearch_jax.models import lora
from acesearch_jax.sharding.rules import batch_sharding, replicated
from acesearch_jax.training.objectives import Batch, Objective, Sums
from acesearch_jax.training.optimizer import Optimizer
from acesearch_jax.training.state import TrainState, state_shardings, trainable_shardings


@flax.struct.dataclass
class Accumulator:
  """Sums over the micro-batches of one step.

  Attributes:
    grads: gradient of the loss sum, like `TrainState.trainable`.
    loss_sum: [].
    denominator: [], tokens (SFT) or pairs (DPO).
  """

  grads: Any
  loss_sum: jax.Array
  denominator: jax.Array


@dataclasses.dataclass(frozen=True)
class TrainStep:
  """Compiled functions of one run; each compiles once for each shape of batch.

  Attributes:
    objective: what is minimised.
    init: (state) -> a zero Accumulator.
    accumulate: (state, accumulator, batch) -> (accumulator, sums). Donates the accumulator. The batch
      is on the host or already on the mesh; sums are {name: (sum, denominator)} of the micro-batch.
    update: (state, accumulator) -> (state, zero accumulator, metrics). Donates both, except the frozen
      parameters, which others may share. Metrics: loss, denominator, grad_norm (before clipping),
      learning_rate.
    evaluate: (state, batch) -> (loss_sum, denominator, sums), no gradient.
    jitted: the functions underneath by name, for ahead-of-time compilation and counting compiles.
  """

  objective: Objective
  init: Callable[[TrainState], Accumulator]
  accumulate: Callable[[TrainState, Accumulator, Batch], tuple[Accumulator, Sums]]
  update: Callable[[TrainState, Accumulator], tuple[TrainState, Accumulator, dict[str, jax.Array]]]
  evaluate: Callable[[TrainState, Batch], tuple[jax.Array, jax.Array, Sums]]
  jitted: dict[str, Any]


def put_batch(batch: dict[str, np.ndarray], mesh: jax.sharding.Mesh) -> Batch:
  """A host batch on the mesh: rows over data and fsdp, time over sequence."""
  return {name: jax.device_put(array, batch_sharding(mesh, array.shape)) for name, array in batch.items()}


def make_train_step(objective: Objective, optimizer: Optimizer, mesh: jax.sharding.Mesh) -> TrainStep:
  """Builds the step.

  Args:
    objective: what to minimise; its decoder config decides what trains.
    optimizer: how.
    mesh: of the state and the batches.
  """
  jitted = _gradient_functions(objective, mesh) | {'update': _update_function(objective, optimizer, mesh)}

  def init(state):
    return jitted['init'](state.trainable)

  def accumulate(state, accumulator, batch):
    with jax.set_mesh(mesh):
      return jitted['accumulate'](state.trainable, state.frozen, accumulator, put_batch(batch, mesh))

  def update(state, accumulator):
    with jax.set_mesh(mesh):
      step, trainable, opt_state, accumulator, metrics = jitted['update'](
          state.step, state.trainable, state.opt_state, accumulator
      )
    state = TrainState(step=step, trainable=trainable, frozen=state.frozen, opt_state=opt_state)
    return state, accumulator, metrics

  def evaluate(state, batch):
    with jax.set_mesh(mesh):
      return jitted['evaluate'](state.trainable, state.frozen, put_batch(batch, mesh))

  return TrainStep(objective, init, accumulate, update, evaluate, jitted)


def _accumulator_shardings(objective: Objective, mesh: jax.sharding.Mesh) -> Accumulator:
  scalar = replicated(mesh)
  return Accumulator(trainable_shardings(objective.config, mesh), scalar, scalar)


@functools.lru_cache(maxsize=16)  # stages that share an objective share its compiled programs
def _gradient_functions(objective: Objective, mesh: jax.sharding.Mesh) -> dict[str, Any]:
  shardings, scalar = _accumulator_shardings(objective, mesh), replicated(mesh)

  def init(trainable) -> Accumulator:
    zero = jnp.zeros((), jnp.result_type(*jax.tree.leaves(trainable)))
    return Accumulator(jax.tree.map(jnp.zeros_like, trainable), zero, zero)

  def accumulate(trainable, frozen, accumulator: Accumulator, batch: Batch):
    def loss(trainable):
      (loss_sum, denominator), sums = objective(lora.join(trainable, frozen), batch)
      return loss_sum, (denominator, sums)

    (loss_sum, (denominator, sums)), grads = jax.value_and_grad(loss, has_aux=True)(trainable)
    new = Accumulator(grads, loss_sum, denominator)
    return jax.tree.map(lambda total, part: total + part.astype(total.dtype), accumulator, new), sums

  def evaluate(trainable, frozen, batch: Batch):
    (loss_sum, denominator), sums = objective(lora.join(trainable, frozen), batch)
    return loss_sum, denominator, sums

  return {
      'init': jax.jit(init, out_shardings=shardings),
      'accumulate': jax.jit(accumulate, donate_argnums=2, out_shardings=(shardings, scalar)),
      'evaluate': jax.jit(evaluate, out_shardings=scalar),
  }


def _update_function(objective: Objective, optimizer: Optimizer, mesh: jax.sharding.Mesh) -> Any:
  state, scalar = state_shardings(objective.config, optimizer, mesh), replicated(mesh)

  def update(step, trainable, opt_state, accumulator: Accumulator):
    denominator = jnp.maximum(accumulator.denominator, 1)
    grads = jax.tree.map(lambda grad: grad / denominator, accumulator.grads)
    metrics = {
        'loss': accumulator.loss_sum / denominator,
        'denominator': accumulator.denominator,
        'grad_norm': optax.tree.norm(grads),
        'learning_rate': optimizer.schedule(step),
    }
    updates, opt_state = optimizer.transformation.update(grads, opt_state, trainable)
    trainable = optax.apply_updates(trainable, updates)
    return step + 1, trainable, opt_state, jax.tree.map(jnp.zeros_like, accumulator), metrics

  shardings = (state.step, state.trainable, state.opt_state, _accumulator_shardings(objective, mesh), scalar)
  return jax.jit(update, donate_argnums=(0, 1, 2, 3), out_shardings=shardings)
