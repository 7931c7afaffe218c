"""Answers a question and shows the way there: plan, passages, intermediate answers, answer.

  python -m launch.answer --model=runs/quickstart/checkpoints/dpo_2 "Which currency is used in ...?"

Without a question it asks for one after another. --dataset=world (the default) searches the built-in
world; --corpus or --index searches something else.
"""

import sys
from collections.abc import Iterator

from absl import flags

from acesearch_jax.agents.conversation import Conversation
from acesearch_jax.agents.driver import run_episodes
from acesearch_jax.agents.rollout import Rollout
from acesearch_jax.agents.selfplay import AGENTS, answer_episode
from acesearch_jax.data.tasks import KINDS, Task
from acesearch_jax.recipes.config import SelfPlayOptions, SystemConfig
from acesearch_jax.recipes.system import SearchSystem
from launch import main as launcher
from launch.flags import define, read
from launch.options import self_play_options

_AGENT = flags.DEFINE_enum('agent', 'acesearcher', AGENTS, 'How the question is answered.')
_KIND = flags.DEFINE_enum('kind', 'qa', KINDS[:2], 'A question, or a claim to be judged Yes or No.')
_FEW_SHOT = flags.DEFINE_bool('few_shot', False, 'Show two worked examples: for models that were not tuned.')
define(SystemConfig, num_slots=1)
define(SelfPlayOptions)


def main(argv: list[str]) -> None:
  config = read(SystemConfig)
  launcher.use_compilation_cache()
  options = self_play_options(config.model)
  system, policy = SearchSystem.open(config, ('dev',))
  retriever, sampler = system.retriever, system.sampler(policy)
  conversation = Conversation(system.model.tokenizer, _FEW_SHOT.value)
  for number, question in enumerate(_questions(argv[1:])):
    task = Task(id=str(number), kind=_KIND.value, question=question, answers=('',))
    episode = answer_episode(_AGENT.value, task, conversation, options.self_play(), config.seed)
    [(_, rollout)] = run_episodes([episode], sampler, retriever, 1)
    print(describe(rollout), flush=True)


def describe(rollout: Rollout) -> str:
  """A rollout of one plan and one solution as text for people."""
  [plan] = rollout.plans
  [solution] = plan.solutions
  lines = []
  if plan.transcript:
    lines += ['Plan', *(f'  {line}' for line in plan.text.splitlines())]
    if not plan.valid:
      lines.append(f'  (no plan: {plan.reason}; the question itself is the only step)')
  for number, step in enumerate(solution.steps, start=1):
    lines += [f'Q{number}: {step.question}', *_passages(step.hits), f'  -> {step.answer}']
  lines += [*_passages(solution.hits), f'Answer: {solution.answer or "(none: " + repr(solution.text) + ")"}']
  return '\n'.join(lines)


def _passages(hits) -> list[str]:
  return [f'  [{hit.score:.1f}] {hit.passage.title}: {hit.passage.text}' for hit in hits]


def _questions(given: list[str]) -> Iterator[str]:
  if given:
    yield from given
    return
  while True:
    print('Question (empty line to leave): ', end='', file=sys.stderr, flush=True)
    question = sys.stdin.readline().strip()
    if not question:
      return
    yield question


if __name__ == '__main__':
  launcher.run(main, max_arguments=1)
