"""AceSearcher's self-play: one model decomposes, searches, answers the parts and the whole.

z ~ p(·|q); for each step i: resolve its references with earlier answers, retrieve D_i,
w_i ~ p(·|z_i, D_i); then a' ~ p(·|q, z, w, D) (arXiv 2509.24193, section 3). In training m plans of each
question and m' solutions of each plan; at inference one of each, greedy.
"""

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

from acesearch_jax.agents import prompts
from acesearch_jax.agents.conversation import Conversation
from acesearch_jax.agents.driver import Episode, Sample, Search
from acesearch_jax.agents.plan import parse_plan, resolve
from acesearch_jax.agents.rollout import PlanRollout, Rollout, Solution, Step
from acesearch_jax.data.tasks import Task
from acesearch_jax.retrieval.base import Hit
from acesearch_jax.rewards.answers import extract_answer
from acesearch_jax.sampling.request import SamplingParams

Identity = tuple[int | str, ...]

# Self-play; one retrieval with the question; the question alone.
AGENTS = ('acesearcher', 'rag', 'direct')


@dataclasses.dataclass(frozen=True)
class SelfPlayConfig:
  """How wide and how long.

  Attributes:
    num_plans: distinct plans wanted (m).
    max_plan_draws: draws to find them.
    num_solutions: solutions a plan (m').
    passages_per_step: passages retrieved for a sub-question.
    final_passages: passages of the final prompt over all steps.
    plan, subanswer, answer: how each conversation is sampled.
    answer_invalid_plans: take the question itself as the only step where the plan cannot be parsed
      (inference), instead of leaving the plan without solutions (training: reward 0).
  """

  num_plans: int = 3
  max_plan_draws: int = 8
  num_solutions: int = 4
  passages_per_step: int = 10
  final_passages: int = 15
  plan: SamplingParams = SamplingParams()
  subanswer: SamplingParams = SamplingParams()
  answer: SamplingParams = SamplingParams()
  answer_invalid_plans: bool = False

  def greedy(self) -> 'SelfPlayConfig':
    """The same for inference: one path, the likeliest token each time, and always an answer."""
    return dataclasses.replace(
      self,
      num_plans=1,
      max_plan_draws=1,
      num_solutions=1,
      plan=dataclasses.replace(self.plan, temperature=0.0),
      subanswer=dataclasses.replace(self.subanswer, temperature=0.0),
      answer=dataclasses.replace(self.answer, temperature=0.0),
      answer_invalid_plans=True,
    )


@dataclasses.dataclass
class _Path:
  """A solution on its way.

  Attributes:
    plan: index of its plan.
    templates: the plan's sub-questions.
    identity: names its draws.
    steps: those answered so far.
  """

  plan: int
  templates: tuple[str, ...]
  identity: Identity
  steps: list[Step] = dataclasses.field(default_factory=list)

  @property
  def waits(self) -> bool:
    return len(self.steps) < len(self.templates)

  def next_question(self) -> tuple[str, str]:
    """The next sub-question as planned, and with earlier answers in place."""
    template = self.templates[len(self.steps)]
    return template, resolve(template, [step.answer for step in self.steps])


def self_play(
  task: Task, conversation: Conversation, config: SelfPlayConfig, seed: int, iteration: int
) -> Episode[Rollout]:
  """One task's tree of plans, solutions and steps, without rewards.

  Args:
    task: the question or claim.
    conversation: renders prompts for the policy.
    config: width and sampling.
    seed: of the run.
    iteration: self-play round; 0 for evaluation.

  Returns:
    An episode for `run_episodes`.
  """
  identity = (seed, iteration, task.id)
  plans = yield from _draw_plans(task, conversation, config, identity)
  paths = [
    _Path(i, plan.steps or (task.question,), (*identity, i, j))
    for i, plan in enumerate(plans)
    if plan.valid or config.answer_invalid_plans
    for j in range(config.num_solutions)
  ]
  while any(path.waits for path in paths):
    yield from _advance([path for path in paths if path.waits], task, conversation, config)
  solutions = yield from _conclude(paths, task, conversation, config)
  return Rollout(
    task,
    iteration,
    tuple(
      dataclasses.replace(
        plan, solutions=tuple(s for path, s in zip(paths, solutions, strict=True) if path.plan == i)
      )
      for i, plan in enumerate(plans)
    ),
  )


def _draw_plans(
  task: Task, conversation: Conversation, config: SelfPlayConfig, identity: Identity
) -> Generator[Sample, Any, list[PlanRollout]]:
  """Draws until there are `num_plans` distinct plans or the draws are spent; unparsed ones count."""
  prompt = conversation.prompt('decompose', task.kind, prompts.decompose(task.question, task.kind))
  plans: dict[str, PlanRollout] = {}
  draws = 0
  while len(plans) < config.num_plans and draws < config.max_plan_draws:
    count = min(config.num_plans - len(plans), config.max_plan_draws - draws)
    identities = [(*identity, 'plan', draw) for draw in range(draws, draws + count)]
    requests = conversation.requests(prompt, identities, config.plan)
    draws += count
    completions = yield Sample(tuple(requests))
    for request, completion in zip(requests, completions, strict=True):
      transcript, text = conversation.read(request, completion)
      plan = parse_plan(text)
      reason = plan.reason or ('' if completion.finish == 'stop' else f'it ended by {completion.finish}')
      steps = () if reason else plan.steps
      plans.setdefault('\n'.join(steps) or text, PlanRollout(transcript, text, steps, reason))
  return list(plans.values())


def _advance(
  paths: Sequence[_Path], task: Task, conversation: Conversation, config: SelfPlayConfig
) -> Generator[Sample | Search, Any, None]:
  """Answers the next sub-question of every path."""
  questions = [path.next_question() for path in paths]
  hits = yield Search(tuple(question for _, question in questions), config.passages_per_step)
  requests = []
  for path, (template, question), found in zip(paths, questions, hits, strict=True):
    kind = prompts.step_kind(template, task.kind)
    text = prompts.step(question, prompts.zigzag([hit.passage for hit in found]), kind)
    identity = (*path.identity, 'step', len(path.steps))
    requests += conversation.requests(conversation.prompt('step', kind, text), [identity], config.subanswer)
  completions = yield Sample(tuple(requests))
  for path, (template, question), found, request, completion in zip(
    paths, questions, hits, requests, completions, strict=True
  ):
    transcript, text = conversation.read(request, completion)
    path.steps.append(Step(template, question, tuple(found), transcript, prompts.clean_answer(text)))


def _conclude(
  paths: Sequence[_Path], task: Task, conversation: Conversation, config: SelfPlayConfig
) -> Generator[Sample, Any, list[Solution]]:
  """The final answer of every path."""
  requests = []
  for path in paths:
    passages = prompts.final_passages(
      [[hit.passage for hit in step.hits] for step in path.steps], config.final_passages
    )
    answered = [(step.question, step.answer) for step in path.steps]
    text = prompts.final(task.question, passages, answered, task.kind)
    prompt = conversation.prompt('final', task.kind, text)
    requests += conversation.requests(prompt, [(*path.identity, 'final')], config.answer)
  completions = yield Sample(tuple(requests))
  solutions = []
  for path, request, completion in zip(paths, requests, completions, strict=True):
    transcript, text = conversation.read(request, completion)
    solutions.append(Solution(tuple(path.steps), transcript, text, extract_answer(text)))
  return solutions


def answer_episode(
  agent: str, task: Task, conversation: Conversation, config: SelfPlayConfig, seed: int
) -> Episode[Rollout]:
  """The greedy episode of an agent of `AGENTS`."""
  config = config.greedy()
  if agent == 'acesearcher':
    return self_play(task, conversation, config, seed, iteration=0)
  return baseline(task, conversation, config, seed, retrieve=agent == 'rag')


def baseline(
  task: Task, conversation: Conversation, config: SelfPlayConfig, seed: int, retrieve: bool
) -> Episode[Rollout]:
  """The same policy without self-play: the question alone, or over one retrieval with the question.

  Args:
    task: the question or claim.
    conversation: renders prompts for the policy.
    config: sampling of the answer, and as many passages as self-play's final prompt has.
    seed: of the run.
    retrieve: search first (`rag`), or not (`direct`).
  """
  hits: list[Hit] = []
  if retrieve:
    [hits] = yield Search((task.question,), config.final_passages)
    text = prompts.retrieved(task.question, [hit.passage for hit in hits], task.kind)
    prompt = conversation.prompt('retrieved', task.kind, text)
  else:
    prompt = conversation.prompt('direct', task.kind, prompts.direct(task.question, task.kind))
  [request] = conversation.requests(prompt, [(seed, 0, task.id, 'baseline')], config.answer)
  [completion] = yield Sample((request,))
  transcript, text = conversation.read(request, completion)
  solution = Solution((), transcript, text, extract_answer(text), tuple(hits))
  return Rollout(task, 0, (PlanRollout(None, '', (), '', (solution,)),))
