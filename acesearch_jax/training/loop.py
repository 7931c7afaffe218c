"""The training loop of one stage: resumable to the same bits, with held-out evaluation and early stopping."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from acesearch_jax.errors import UserError
from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.training import flops
from acesearch_jax.training.batching import (
    BatchShape,
    HostBatch,
    PairExample,
    example_lengths,
    lay_out,
    pack,
)
from acesearch_jax.training.checkpoints import Checkpoints
from acesearch_jax.training.metrics import Progress
from acesearch_jax.training.objectives import pair_logps
from acesearch_jax.training.state import TrainState
from acesearch_jax.training.step import TrainStep, put_batch

Params = Any


@dataclasses.dataclass(frozen=True)
class LoopConfig:
  """How long a stage trains and how often it looks up.

  Attributes:
    stage: name in messages.
    num_steps: optimiser steps, at most.
    checkpoint_every: steps between checkpoints.
    evaluate_every: steps between evaluations, 0 for none; the last step is evaluated too.
    patience: stop after so many evaluations without a lower `heldout_loss` and keep the weights of
      the lowest; 0 to train to the end and keep the last.
    peak_flops: of all devices together, FLOP/s; 0 where unknown, for no MFU.
  """

  stage: str
  num_steps: int
  checkpoint_every: int
  evaluate_every: int = 0
  patience: int = 0
  peak_flops: float = 0.0


@dataclasses.dataclass
class Run:
  """A stage under way: what a checkpoint holds.

  Attributes:
    state: after the last step made.
    best: trainable parameters with the lowest held-out loss; None without early stopping.
    counters: JSON: tokens trained on; with early stopping best_loss, best_step and stale, the
      evaluations since then.
  """

  state: TrainState
  best: Params | None
  counters: dict[str, Any]

  @property
  def step(self) -> int:
    return int(self.state.step)

  def tree(self) -> dict[str, Any]:
    """The arrays of a checkpoint; frozen parameters are not among them."""
    state = self.state
    tree = {'step': state.step, 'trainable': state.trainable, 'opt_state': state.opt_state}
    return tree if self.best is None else tree | {'best': self.best}


def begin(state: TrainState, config: LoopConfig, checkpoints: Checkpoints | None = None) -> Run:
  """A run at the latest checkpoint, or at its start.

  Args:
    state: fresh, at step 0.
    config: of the loop.
    checkpoints: of this stage alone.

  Raises:
    UserError: there are checkpoints and none can be read.
  """
  run = Run(state, _copy(state.trainable) if config.patience else None, {'tokens': 0})
  if config.patience:
    run.counters |= {'best_loss': None, 'best_step': 0, 'stale': 0}
  restored = checkpoints.restore(run.tree()) if checkpoints else None
  if restored is None:
    return run
  tree, run.counters = restored
  run.best = tree.pop('best', None)
  run.state = state.replace(**tree)
  logging.info('%s: resumed at step %d of %d.', config.stage, run.step, config.num_steps)
  return run


def train(
    run: Run,
    step: TrainStep,
    batches_for_step: Callable[[int], Sequence[HostBatch]],
    config: LoopConfig,
    checkpoints: Checkpoints | None = None,
    log: Callable[[int, dict[str, float]], None] | None = None,
    evaluate: Callable[[TrainState], dict[str, float]] | None = None,
) -> Run:
  """Trains until `num_steps` or until the held-out loss has stopped falling.

  Args:
    run: from `begin`; used up.
    step: the compiled step.
    batches_for_step: the micro-batches of optimiser step i (from 0); depends on i alone, so that a
      resumed run sees the same data.
    config: of the loop.
    checkpoints: where to save; None for nowhere.
    log: called after each step with its number (from 1) and values: loss, grad_norm, learning_rate,
      the means of the objective's sums, tokens (so far), tokens_per_second, mfu where the peak is
      known, and what `evaluate` returned.
    evaluate: called every `evaluate_every` steps; `heldout_loss` among its values decides early stopping.

  Returns:
    The run at its end; with early stopping its state has the best parameters.

  Raises:
    UserError: the loss or the gradient is not finite, or a checkpoint cannot be written.
  """
  accumulator = step.init(run.state)
  with Progress(config.stage, config.num_steps, run.step) as progress:
    while run.step < config.num_steps and not _is_stale(run, config):
      start = time.monotonic()
      batches = batches_for_step(run.step)
      sums = []
      for batch in batches:
        accumulator, part = step.accumulate(run.state, accumulator, batch)
        sums.append(part)
      run.state, accumulator, metrics = step.update(run.state, accumulator)
      values = {name: float(value) for name, value in metrics.items()} | reduce_sums(sums)
      _check_finite(values, config.stage, run.step)
      lengths = np.concatenate([example_lengths(batch['segment_ids']) for batch in batches])
      values |= _rates(step.objective.config, lengths, time.monotonic() - start, config.peak_flops)
      run.counters['tokens'] += int(lengths.sum())
      values['tokens'] = run.counters['tokens']
      if evaluate and _is_due(run.step, config.evaluate_every, config.num_steps):
        values |= evaluate(run.state)
        _note_evaluation(run, config, values)
      if log:
        log(run.step, values)
      progress.update(loss=values['loss'], tokens_per_second=values['tokens_per_second'])
      if checkpoints and run.step % config.checkpoint_every == 0 and run.step < config.num_steps:
        checkpoints.save(run.step, run.tree(), run.counters)
  if run.best is not None and run.counters['best_step']:
    logging.info('%s: keeps the weights of step %d.', config.stage, run.counters['best_step'])
    run.state = run.state.replace(trainable=run.best)
  return run


def evaluate_loss(state: TrainState, step: TrainStep, batches: Iterable[HostBatch]) -> dict[str, float]:
  """`loss`, and the means of the objective's sums, over all batches; no gradient."""
  sums = []
  for batch in batches:
    loss_sum, denominator, part = step.evaluate(state, batch)
    sums.append(part | {'loss': (loss_sum, denominator)})
  return reduce_sums(sums)


def reference_logps(
    params: Params,
    config: DecoderConfig,
    pairs: Sequence[PairExample],
    shape: BatchShape,
    mesh: jax.sharding.Mesh,
) -> list[PairExample]:
  """The pairs with their reference log-probabilities, computed once under `params`.

  Args:
    params: of the reference, whole, on the mesh.
    config: of the decoder.
    pairs: none longer than a row.
    shape: of the micro-batches.
    mesh: of `params`.
  """
  score = _pair_scorer(config)
  result: list[PairExample] = list(pairs)
  with Progress('reference', len(pairs), unit='pair') as progress, jax.set_mesh(mesh):
    for packing in pack(pairs, shape):
      chosen, rejected, _ = score(params, put_batch(lay_out(pairs, packing, shape), mesh))
      good, bad = np.asarray(chosen), np.asarray(rejected)
      for row, indices in enumerate(packing):
        for place, i in enumerate(indices):
          result[i] = dataclasses.replace(
              pairs[i],
              reference_chosen_logp=float(good[row, place]),
              reference_rejected_logp=float(bad[row, place]),
          )
        progress.update(len(indices))
  return result


def reduce_sums(parts: Sequence[dict[str, tuple[jax.Array, jax.Array]]]) -> dict[str, float]:
  """Means of named (sum, denominator) over all parts; added in float64 on the host."""
  totals: dict[str, np.ndarray] = {}
  for part in jax.device_get(list(parts)):
    for name, pair in part.items():
      totals[name] = totals.get(name, 0) + np.asarray(pair, np.float64)
  return {name: float(total / max(denominator, 1)) for name, (total, denominator) in totals.items()}


@functools.lru_cache(maxsize=8)
def _pair_scorer(config: DecoderConfig):
  return jax.jit(lambda params, batch: pair_logps(params, config, batch))


def _copy(tree: Params) -> Params:
  return jax.tree.map(jnp.copy, tree)


def _is_due(step: int, every: int, last: int) -> bool:
  return bool(every) and (step % every == 0 or step == last)


def _is_stale(run: Run, config: LoopConfig) -> bool:
  return bool(config.patience) and run.counters['stale'] >= config.patience


def _note_evaluation(run: Run, config: LoopConfig, values: dict[str, float]) -> None:
  if not config.patience:
    return
  best = run.counters['best_loss']
  if best is None or values['heldout_loss'] < best:
    run.best = _copy(run.state.trainable)
    run.counters |= {'best_loss': values['heldout_loss'], 'best_step': run.step, 'stale': 0}
  else:
    run.counters['stale'] += 1


def _check_finite(values: dict[str, float], stage: str, step: int) -> None:
  for name in ('loss', 'grad_norm'):
    if not math.isfinite(values[name]):
      raise UserError(
          f'Stage {stage}, step {step}: {name} is {values[name]}; lower the learning rate, or look at the '
          'rows with --dry_run.'
      )


def _rates(config: DecoderConfig, lengths: np.ndarray, seconds: float, peak_flops: float) -> dict[str, float]:
  values = {'tokens_per_second': float(lengths.sum()) / seconds}
  if peak_flops:
    values['mfu'] = flops.training_flops(config, lengths) / (seconds * peak_flops)
  return values
