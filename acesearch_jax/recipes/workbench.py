"""What the stages of a run share: the model, the data, the retriever, the sampler, the run folder.

Every public method is one stage: it is skipped where its output is complete, goes on where it was
left, and commits its output before it returns.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from absl import logging

from acesearch_jax import files
from acesearch_jax.agents.driver import Episode, run_episodes
from acesearch_jax.agents.rollout import Rollout
from acesearch_jax.data.tasks import Task
from acesearch_jax.errors import UsageError
from acesearch_jax.evaluation import scoring
from acesearch_jax.recipes.config import RunConfig
from acesearch_jax.recipes.system import SearchSystem
from acesearch_jax.rewards.preferences import PreferencePair
from acesearch_jax.sampling.engine import Engine
from acesearch_jax.training.batching import (
    AnyExample,
    BatchShape,
    Example,
    HostBatch,
    PairExample,
    batch_indices,
    make_micro_batches,
    select_usable,
)
from acesearch_jax.training.checkpoints import Checkpoints
from acesearch_jax.training.loop import LoopConfig, begin, evaluate_loss, reference_logps, train
from acesearch_jax.training.metrics import MetricsWriter, Progress
from acesearch_jax.training.objectives import DpoObjective, Objective, SftObjective
from acesearch_jax.training.optimizer import OptimizerConfig, make_optimizer
from acesearch_jax.training.policy import Policy, is_policy_folder, make_policy, restore_policy, save_policy
from acesearch_jax.training.run_folder import RunFolder, Shards, fingerprint
from acesearch_jax.training.state import TrainState, create_state
from acesearch_jax.training.step import make_train_step

TASKS_PER_SHARD = 32

MakeEpisode = Callable[[Task], Episode[Rollout]]


@dataclasses.dataclass(frozen=True)
class Training:
  """How fast and how long a stage trains.

  Attributes:
    optimizer: rate and schedule.
    batch_size: examples a step.
    epochs: passes over the examples, where `num_steps` is None.
    num_steps: optimiser steps, None for what `epochs` makes.
    evaluate_every: steps between held-out losses.
    patience: evaluations without a lower one before training stops; 0 for never.
  """

  optimizer: OptimizerConfig
  batch_size: int
  epochs: float = 1.0
  num_steps: int | None = None
  evaluate_every: int = 0
  patience: int = 0

  def steps(self, num_examples: int) -> int:
    if not num_examples:
      return 0
    if self.num_steps is not None:
      return self.num_steps
    return max(1, round(self.epochs * num_examples / self.batch_size)) if self.epochs else 0


class Workbench:
  """The tools of one run.

  Attributes:
    config: the run's options.
    folder: where everything goes.
    training_stages: names of all stages that train, in order.
    agent_options: saved beside weights, so that the agent can be started again as it was trained.
    system: model, data, retriever and sampler.
  """

  def __init__(
      self,
      config: RunConfig,
      folder: RunFolder,
      training_stages: Sequence[str],
      agent_options: dict[str, Any],
  ):
    if is_policy_folder(config.model):
      raise UsageError(
          f'--model={config.model} is a checkpoint of a stage; training starts from a whole model, such as '
          "the one of that checkpoint's run."
      )
    self.config = config
    self.folder = folder
    self.training_stages = training_stages
    self.agent_options = agent_options
    splits = ('train', config.eval_split)
    self.system = SearchSystem(config, splits, config.lora_rank, config.lora_alpha, config.remat)

  def run_tasks(
      self,
      what: str,
      tasks: Sequence[Task],
      policy: Policy,
      make_episode: MakeEpisode,
      shards: Shards,
      to_row: Callable[[Rollout], dict[str, Any]],
  ) -> None:
    """Runs one episode a task and commits the rows in shards of `TASKS_PER_SHARD`.

    Args:
      what: for progress.
      tasks: in order; a shard holds consecutive ones.
      policy: whose weights sample.
      make_episode: starts the episode of a task.
      shards: where rows go; complete ones are not run again.
      to_row: what is kept of a rollout.
    """
    done = set(shards.complete())
    numbers = [n for n in range(-(-len(tasks) // TASKS_PER_SHARD)) if n not in done]
    if not numbers:
      return
    retriever = self.system.retriever  # Before the sampler compiles: a corpus may be missing.
    groups = {n: tasks[n * TASKS_PER_SHARD : (n + 1) * TASKS_PER_SHARD] for n in numbers}
    places = [(n, place) for n in numbers for place in range(len(groups[n]))]
    rows: dict[int, dict[int, dict[str, Any]]] = {n: {} for n in numbers}
    engine = self.system.sampler(policy)
    engine.reset_stats()
    with Progress(what, len(tasks), len(tasks) - len(places), unit='question') as progress:
      episodes = (make_episode(groups[n][place]) for n, place in places)
      for index, rollout in run_episodes(episodes, engine, retriever, self.config.concurrency):
        n, place = places[index]
        rows[n][place] = to_row(rollout)
        progress.update()
        if len(rows[n]) == len(groups[n]):
          kept = rows.pop(n)
          shards.write(n, [kept[place] for place in range(len(kept))])
    _log_sampling(what, engine)

  # Stages.

  def evaluate(
      self, stage: str, policy: Policy, make_episode: MakeEpisode, agent: str = '', step: int = 0
  ) -> None:
    """Measures a policy on the evaluation questions.

    Args:
      stage: named in `results.json`.
      policy: the weights.
      make_episode: the agent.
      agent: its name where it is not the recipe's own.
      step: optimiser steps behind the weights in their stage.
    """
    config, name = self.config, f'{stage}.{agent}' if agent else stage
    marker, inputs = f'evaluate_{name}', fingerprint(name, policy.fingerprint)
    if self.folder.stage_done(marker, inputs):
      return
    tasks = self.system.tasks(config.eval_split, config.eval_limit)
    shards = self.folder.shards(f'evaluation/shards/{name}', inputs)
    self.run_tasks(
        f'evaluate {name}', tasks, policy, make_episode, shards,
        lambda rollout: scoring.evaluation_record(scoring.with_rewards(rollout)),
    )  # fmt: skip
    records = list(shards.read())
    files.write_jsonl(self.folder.path / 'evaluation' / f'{name}.jsonl', records)
    scores = scoring.summary(records)
    row = {'stage': stage, 'step': step, 'dataset': config.dataset, 'split': config.eval_split}
    row |= ({'agent': agent} if agent else {}) | scores
    self.folder.mark_done(marker, inputs, {'result': row, 'tokens': token_counts(records)})
    low, high = scores['em_ci95']
    logging.info(
        '%s: EM %.3f [%.3f, %.3f], F1 %.3f, n %d, unparsed plans %.1f%%, untagged %.1f%%',
        name, scores['em'], low, high, scores['f1'], scores['n'],
        100 * scores['unparsed_plans'], 100 * scores['untagged'],
    )  # fmt: skip
    _warn_of_refused(name, records)

  def rollouts(
      self, iteration: int, tasks: Sequence[Task], policy: Policy, make_episode: MakeEpisode, shaped: bool
  ) -> Iterator[Rollout]:
    """Samples and scores one rollout a task; yields them in the order of the tasks."""
    marker = f'rollout_{iteration}'
    inputs = fingerprint(marker, policy.fingerprint, [task.id for task in tasks])
    shards = self.folder.shards(f'rollouts/{iteration}', inputs)
    # Does nothing where all shards are whole; one that was damaged later is sampled again.
    self.run_tasks(
        f'rollout {iteration}', tasks, policy, make_episode, shards, functools.partial(_rollout_row, shaped)
    )
    if not self.folder.stage_done(marker, inputs):
      self.folder.mark_done(marker, inputs, {'tokens': token_counts(shards.read())})
      _warn_of_refused(marker, shards.read())
    return map(Rollout.from_json, shards.read())

  def fine_tune(
      self,
      stage: str,
      policy: Policy,
      examples: Sequence[Example],
      training: Training,
      heldout: Sequence[Example] = (),
  ) -> Policy:
    """Supervised fine-tuning: cross-entropy of the responses alone.

    Args:
      stage: its name.
      policy: the weights to begin with.
      examples: to learn.
      training: how fast and how long.
      heldout: what the held-out loss is taken on; none where empty.

    Returns:
      The policy after the stage, with the lowest held-out loss where `training.patience` asks for it.
    """
    inputs = fingerprint(stage, policy.fingerprint, len(examples), dataclasses.asdict(training))
    objective = SftObjective(policy.config)
    return self._train(stage, inputs, policy, objective, lambda: examples, training, heldout)

  def optimise_preferences(
      self,
      stage: str,
      policy: Policy,
      reference: Policy,
      pairs: Sequence[PreferencePair],
      training: Training,
      beta: float,
      gamma: float,
  ) -> Policy:
    """DPO on pairs, with the log-probabilities of `reference` computed once.

    Without pairs the policy stays as it is.
    """
    if not pairs:
      logging.warning(
          '%s: no two answers to one prompt had different rewards, so there is nothing to prefer and the '
          'weights stay; look at the rollouts in report.html, then start another run with more '
          '--rollout_tasks or --num_solutions, a higher --temperature, or longer fine-tuning.', stage,
      )  # fmt: skip
    inputs = fingerprint(stage, policy.fingerprint, reference.fingerprint, dataclasses.asdict(training))
    objective = DpoObjective(policy.config, beta, gamma)
    examples = [PairExample(pair.prompt, pair.chosen, pair.rejected) for pair in pairs]

    def with_reference() -> Sequence[PairExample]:
      usable, _ = select_usable(examples, self._shape.length)
      return reference_logps(reference.params, reference.config, usable, self._shape, self.system.mesh)

    return self._train(stage, inputs, policy, objective, with_reference, training, ())

  def steps(self, stage: str) -> int:
    """Optimiser steps that a complete stage took."""
    return self.folder.stage_outputs(stage)['steps']

  def _train(
      self,
      stage: str,
      inputs: str,
      policy: Policy,
      objective: Objective,
      examples: Callable[[], Sequence[AnyExample]],
      training: Training,
      heldout: Sequence[Example],
  ) -> Policy:
    """One training stage: resumes, trains, saves the weights, commits."""
    folder, mesh, system = self.folder.path / 'checkpoints' / stage, self.system.mesh, self.system
    # Without its weights a stage is not complete: who deletes damaged ones has them trained again.
    if is_policy_folder(folder) and self.folder.stage_done(stage, inputs):
      return restore_policy(folder, system.base, mesh)
    usable, dropped = select_usable(examples(), self._shape.length)
    if any(dropped.values()):
      logging.warning('%s: %d examples are too long, %d empty; dropped.', stage, *dropped.values())
    num_steps = training.steps(len(usable))
    optimizer = make_optimizer(training.optimizer, num_steps)
    config = policy.config
    state = create_state(config, policy.params, optimizer, mesh)
    step = make_train_step(objective, optimizer, mesh)
    loop = LoopConfig(
        stage, num_steps, self.config.checkpoint_every, training.evaluate_every if heldout else 0,
        training.patience, self.config.peak_tflops * 1e12 * mesh.size,
    )  # fmt: skip
    checkpoints = Checkpoints(folder / 'steps')
    run = begin(state, loop, checkpoints)
    seed = zlib.crc32(f'{self.config.seed} {stage}'.encode())

    def batches(number: int) -> list[HostBatch]:
      chosen = batch_indices(seed, number, len(usable), training.batch_size)
      return make_micro_batches([usable[i] for i in chosen], self._shape)

    held_out = make_micro_batches(select_usable(heldout, self._shape.length)[0], self._shape)

    def evaluate(state: TrainState) -> dict[str, float]:
      return {'heldout_loss': evaluate_loss(state, step, held_out)['loss']}

    with MetricsWriter(
        self.folder.path, self.training_stages, stage, run.step, self.folder.seconds
    ) as writer:

      def log(number: int, values: dict[str, float]) -> None:
        if number % self.config.log_every == 0 or number in (1, num_steps) or 'heldout_loss' in values:
          writer.log(stage, number, values)
        self.folder.save_seconds()

      run = train(run, step, batches, loop, checkpoints, log, evaluate if held_out else None)
    checkpoints.close()
    trained = make_policy(config, run.state.trainable, run.state.frozen, policy.base_fingerprint)
    save_policy(folder, trained, system.model, self.agent_options)
    outputs = {'steps': run.step, 'examples': len(usable), 'tokens': {'trained': run.counters['tokens']}}
    self.folder.mark_done(stage, inputs, outputs)
    (folder / 'steps').rmtree(missing_ok=True)
    return trained

  @functools.cached_property
  def _shape(self) -> BatchShape:
    return batch_shape(self.config, self.system.mesh)


def batch_shape(config: RunConfig, mesh: jax.sharding.Mesh) -> BatchShape:
  """The shape of micro-batches: rows for about `micro_batch_tokens`, as many on every device."""
  length, devices = config.train_length or config.max_length, mesh.shape['data'] * mesh.shape['fsdp']
  return BatchShape(max(1, config.micro_batch_tokens // (length * devices)) * devices, length)


def _rollout_row(shaped: bool, rollout: Rollout) -> dict[str, Any]:
  rollout = scoring.with_rewards(rollout, shaped)
  return rollout.to_json() | {'tokens': rollout.token_counts(), 'refused': rollout.refused}


def token_counts(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
  """Counters for `results.json`, from committed rows: restarts do not change them."""
  totals = {'prefilled': 0, 'decoded': 0}
  for row in rows:
    for name in totals:
      totals[name] += row['tokens'][name]
  return totals


def _warn_of_refused(what: str, rows: Iterable[dict[str, Any]]) -> None:
  refused = [row['refused'] > 0 for row in rows]
  if any(refused):
    logging.warning(
        '%s: %d of %d questions had a prompt longer than --max_length, which got no answer.',
        what, sum(refused), len(refused),
    )  # fmt: skip


def _log_sampling(what: str, engine: Engine) -> None:
  stats = engine.stats
  logging.info(
      '%s: %d requests, %d prompt tokens, %d if whole prompts are shared, %d prefilled (%.3f of sharing); '
      '%d tokens decoded; %.1f s prefill, %.1f s decode, %d compilations',
      what, stats.requests, stats.prompt_tokens, stats.distinct_prompt_tokens, stats.prefilled_tokens,
      stats.prefilled_tokens / max(stats.distinct_prompt_tokens, 1), stats.decoded_tokens,
      stats.prefill_seconds, stats.decode_seconds, stats.compilations,
  )  # fmt: skip
