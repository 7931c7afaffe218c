"""AceSearcher (arXiv 2509.24193): one model learns to decompose, search and solve by playing with itself.

1. Fine-tune on demonstrations of both roles.
2. Round after round: sample m plans of every question and m' solutions of every plan; pay a solution
   whose answer is right and well formed; mine pairs of plans, sub-answers and answers; optimise the
   preferences by DPO against the weights that the round began with.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from absl import logging
from etils import epath

from acesearch_jax import files
from acesearch_jax.agents.conversation import Conversation
from acesearch_jax.agents.demonstrations import Demonstration, DemonstrationConfig, demonstrations
from acesearch_jax.agents.driver import Episode
from acesearch_jax.agents.rollout import Rollout
from acesearch_jax.agents.selfplay import answer_episode, self_play
from acesearch_jax.agents.transcript import Transcript
from acesearch_jax.data.tasks import Task
from acesearch_jax.errors import UserError
from acesearch_jax.evaluation.report import write_report
from acesearch_jax.recipes.config import AceSearcherConfig, SelfPlayOptions
from acesearch_jax.recipes.system import SearchSystem
from acesearch_jax.recipes.workbench import Training, Workbench
from acesearch_jax.rewards.preferences import PairConfig, PreferencePair, mine_pairs
from acesearch_jax.sharding.mesh import make_mesh
from acesearch_jax.training.batching import Example
from acesearch_jax.training.optimizer import OptimizerConfig
from acesearch_jax.training.policy import Policy
from acesearch_jax.training.run_folder import RunFolder


class AceSearcher:
  """One run of the recipe."""

  def __init__(self, config: AceSearcherConfig, bench: Workbench):
    self.config = config
    self.bench = bench
    self.self_play = config.self_play()

  def run(self) -> None:
    """All stages in the paper's order, and the controls that were asked for."""
    config, bench = self.config, self.bench
    shown = self.examples(training_tasks(config, bench.system, 0), 'train')
    heldout = self.examples(bench.system.tasks('dev')[-config.sft_heldout_tasks :], 'dev')
    self.evaluate('base', bench.system.base, few_shot=config.few_shot_base)
    fine_tuned = policy = best_of = bench.fine_tune('sft', bench.system.base, shown, self.sft(), heldout)
    self.evaluate('sft', fine_tuned)
    preference_steps = 0
    for iteration in range(1, config.iterations + 1):
      rollouts = list(self.rollouts(iteration, policy))
      pairs = self.pairs(iteration, rollouts, policy)
      reference = policy if config.reference == 'previous' else fine_tuned
      policy = bench.optimise_preferences(
          f'dpo_{iteration}', policy, reference, pairs, self.dpo(), config.dpo_beta, config.dpo_gamma
      )
      preference_steps += bench.steps(f'dpo_{iteration}')
      self.evaluate(f'dpo_{iteration}', policy)
      if 'raft' in config.controls:
        best_of = bench.fine_tune(f'raft_{iteration}', best_of, best_responses(rollouts), self.raft())
    self.evaluate_baselines(f'dpo_{config.iterations}' if config.iterations else 'sft', policy)
    if 'raft' in config.controls:
      self.evaluate('raft', best_of)
    if 'sft_more' in config.controls:
      more = bench.fine_tune('sft_more', fine_tuned, shown, self.sft(preference_steps), heldout)
      self.evaluate('sft_more', more)

  # How the stages train.

  def sft(self, num_steps: int | None = None) -> Training:
    """Until the held-out loss has stopped falling, or for exactly `num_steps`."""
    config = self.config
    patience = config.sft_patience if num_steps is None else 0
    return Training(
        optimizer_config(config, config.sft_learning_rate), config.sft_batch_size, config.sft_epochs,
        num_steps, config.sft_eval_every, patience,
    )  # fmt: skip

  def dpo(self) -> Training:
    config = self.config
    return Training(
        optimizer_config(config, config.dpo_learning_rate), config.dpo_batch_size, config.dpo_epochs
    )

  def raft(self) -> Training:
    config = self.config
    return Training(
        optimizer_config(config, config.raft_learning_rate), config.sft_batch_size, config.raft_epochs
    )

  # The steps of the algorithm.

  def examples(self, tasks: Sequence[Task], split: str) -> list[Example]:
    """Token ids of every demonstration of the tasks, which are from `split`."""
    system = self.bench.system
    shown = demonstrate(self.config, system, tasks, split)
    return [to_example(system.conversation, demonstration) for demonstration in shown]

  def rollouts(self, iteration: int, policy: Policy) -> Iterator[Rollout]:
    """m plans of every question of the round, m' solutions of every plan, with rewards."""
    config = self.config

    def episode(task: Task) -> Episode[Rollout]:
      return self_play(task, self.bench.system.conversation, self.self_play, config.seed, iteration)

    tasks = training_tasks(self.config, self.bench.system, iteration)
    return self.bench.rollouts(iteration, tasks, policy, episode, config.reward == 'shaped')

  def pairs(self, iteration: int, rollouts: Sequence[Rollout], policy: Policy) -> list[PreferencePair]:
    """Preference pairs of a round, written to `preferences/` for people too."""
    config, decode = self.config, self.bench.system.model.tokenizer.decode
    wanted = PairConfig(config.min_gap, config.max_pairs_per_task, config.max_pairs, config.pair_kinds)
    pairs = mine_pairs(rollouts, wanted, config.seed, policy.fingerprint)
    rows = [
        pair.to_json()
        | {f'{name}_text': decode(getattr(pair, name)) for name in ('prompt', 'chosen', 'rejected')}
        for pair in pairs
    ]
    files.write_jsonl(self.bench.folder.path / 'preferences' / f'{iteration}.jsonl', rows)
    report_round(iteration, rollouts, pairs)
    return pairs

  # Evaluation.

  def evaluate(self, stage: str, policy: Policy, few_shot: bool = False) -> None:
    """Greedy self-play, one plan and one solution a question."""
    conversation = Conversation(self.bench.system.model.tokenizer, few_shot)
    self._evaluate(stage, policy, 'acesearcher', conversation)

  def evaluate_baselines(self, stage: str, policy: Policy) -> None:
    """The same weights without self-play: the question alone, or over one retrieval."""
    for agent in self.config.eval_agents:
      self._evaluate(stage, policy, agent, self.bench.system.conversation)

  def _evaluate(self, stage: str, policy: Policy, agent: str, conversation: Conversation) -> None:
    if self.config.eval_stages and stage not in self.config.eval_stages:
      return

    def episode(task: Task) -> Episode[Rollout]:
      return answer_episode(agent, task, conversation, self.self_play, self.config.seed)

    trained = f'raft_{self.config.iterations}' if stage == 'raft' else stage
    step = 0 if stage == 'base' else self.bench.steps(trained)
    self.bench.evaluate(stage, policy, episode, '' if agent == 'acesearcher' else agent, step)
    self.write_results()

  def write_results(self) -> None:
    """`results.json` and `report.html`, from what is committed so far."""
    self.bench.folder.write_results('acesearcher', committed_stages(self.config))
    write_report(self.bench.folder.path)


def training_tasks(config: AceSearcherConfig, system: SearchSystem, iteration: int) -> list[Task]:
  """Questions of a round; round 0 is fine-tuning. Rounds share none as long as there are enough."""
  tasks = system.tasks('train')
  if not iteration:
    return tasks[: config.sft_tasks]
  rest = tasks[config.sft_tasks :] or tasks
  start = (iteration - 1) * config.rollout_tasks
  return [rest[i % len(rest)] for i in range(start, start + min(config.rollout_tasks, len(rest)))]


def demonstrate(
    config: AceSearcherConfig, system: SearchSystem, tasks: Sequence[Task], split: str
) -> list[Demonstration]:
  """Every demonstration of the tasks.

  Args:
    config: how many passages are shown.
    system: finds them.
    tasks: to demonstrate.
    split: that they are from.

  Raises:
    UserError: none of the tasks has sub-questions.
  """
  shown = demonstrations(
      tasks,
      system.retriever,
      system.passages_by_id,
      DemonstrationConfig(config.passages_per_step, config.final_passages),
  )
  if not shown and config.sft_epochs:
    raise UserError(
        f"--dataset={config.dataset} has no decompositions in its split '{split}' to learn from; give a "
        'set whose tasks have sub-questions, or --sft_epochs=0 and a fine-tuned --model.'
    )
  return shown


def to_example(conversation: Conversation, shown: Demonstration) -> Example:
  """The token ids of a demonstration."""
  prompt = conversation.prompt(shown.role, shown.kind, shown.prompt)
  return Example(prompt, conversation.response(shown.reply))


def training_stages(config: AceSearcherConfig) -> list[str]:
  """Names of the stages that train, in order."""
  rounds = [(f'dpo_{k}', f'raft_{k}') for k in range(1, config.iterations + 1)]
  return ['sft', *itertools.chain(*rounds), 'sft_more']


def committed_stages(config: AceSearcherConfig) -> list[str]:
  """Markers of everything that `results.json` is made of, in order."""
  rounds = [(f'rollout_{k}', f'dpo_{k}', f'raft_{k}') for k in range(1, config.iterations + 1)]
  stages = ['base', 'sft', *itertools.chain(*rounds), 'raft', 'sft_more']
  agents = ('', *(f'.{agent}' for agent in config.eval_agents))
  return [marker for stage in stages for marker in (stage, *(f'evaluate_{stage}{agent}' for agent in agents))]


def optimizer_config(config: AceSearcherConfig, learning_rate: float) -> OptimizerConfig:
  return OptimizerConfig(
      learning_rate,
      config.schedule,
      config.warmup_share,
      b2=config.adam_b2,
      weight_decay=config.weight_decay,
      max_grad_norm=config.clip_norm,
  )


def best_responses(rollouts: Iterable[Rollout]) -> list[Example]:
  """RAFT's data (arXiv 2304.06767): every conversation of the best solution of each question, if right.

  The best plan is the one with the highest mean reward, the first of equals; the solution its first
  with the full reward.
  """
  examples = []
  for rollout in rollouts:
    plan = max(rollout.plans, key=lambda plan: plan.mean_reward, default=None)
    solution = plan and max(plan.solutions, key=lambda solution: solution.reward, default=None)
    if solution and solution.reward >= 1:
      examples += [plan.transcript, *(step.transcript for step in solution.steps), solution.transcript]
  return [_example(transcript) for transcript in examples if transcript.finish == 'stop']


def _example(transcript: Transcript) -> Example:
  return Example(transcript.prompt, transcript.response)


def report_round(iteration: int, rollouts: Sequence[Rollout], pairs: Sequence[PreferencePair]) -> None:
  """Logs what a round had to learn from: reward, its variance over plans and solutions, pairs by kind."""
  plans = [plan for rollout in rollouts for plan in rollout.plans]
  rewards = [[s.reward for plan in rollout.plans for s in plan.solutions] for rollout in rollouts]
  mixed = sum(len(set(values)) > 1 for values in rewards)
  mean = np.mean([r for values in rewards for r in values]) if any(rewards) else 0.0
  counts = {kind: sum(pair.kind == kind for pair in pairs) for kind in ('plan', 'subanswer', 'final')}
  logging.info(
      'Round %d: %d questions, %d plans (%d unparsed), mean reward %.3f, %d questions with mixed rewards; '
      'pairs: %s',
      iteration, len(rollouts), len(plans), sum(not plan.valid for plan in plans), mean, mixed,
      ', '.join(f'{count} {kind}' for kind, count in counts.items()),
  )  # fmt: skip


def run(config: AceSearcherConfig, workdir: epath.PathLike, flags: dict, harmless: frozenset[str]) -> None:
  """Runs or resumes the recipe in `workdir`.

  Args:
    config: its options.
    workdir: the run folder.
    flags: every flag as resolved, for `config.json`.
    harmless: flags that may differ on resume.

  Raises:
    UserError: the folder is in use, was started with other flags, or something that the run needs is
      missing; what is committed stays and the run can be resumed.
  """
  with RunFolder(workdir) as folder:
    folder.configure(flags, dict(make_mesh(config.mesh).shape), harmless)
    ratio = config.dpo_learning_rate / config.sft_learning_rate if config.sft_learning_rate else float('inf')
    logging.info('DPO rate / SFT rate = %.3g (guidance: 0.5 to 1.0).', ratio)
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(SelfPlayOptions)}
    AceSearcher(config, Workbench(config, folder, training_stages(config), options)).run()
