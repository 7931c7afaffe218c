"""Demonstrations for supervised fine-tuning, made from tasks whose decomposition is known.

They use the very prompts of rollouts and inference, with passages from the very retriever, so that the
model is trained on what it will read.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from acesearch_jax.agents import prompts
from acesearch_jax.agents.plan import format_plan, resolve
from acesearch_jax.data.tasks import Passage, SubQuestion, Task
from acesearch_jax.retrieval.base import Retriever


@dataclasses.dataclass(frozen=True)
class Demonstration:
  """A user turn and the reply to learn."""

  role: prompts.Role
  kind: str
  prompt: str
  reply: str


@dataclasses.dataclass(frozen=True)
class DemonstrationConfig:
  """What is shown.

  Attributes:
    passages_per_step: as in self-play.
    final_passages: as in self-play.
    retrieved_every: every so-manieth task also gives one single-retrieval demonstration.
    direct_every: and one without passages. Both keep the baseline agents of the same weights honest.
  """

  passages_per_step: int = 10
  final_passages: int = 15
  retrieved_every: int = 4
  direct_every: int = 8


def demonstrations(
  tasks: Sequence[Task],
  retriever: Retriever,
  passages: Mapping[str, Passage],
  config: DemonstrationConfig,
) -> list[Demonstration]:
  """Demonstrations of every role for tasks with gold sub-questions; other tasks give none.

  Args:
    tasks: training tasks.
    retriever: finds the passages shown.
    passages: the corpus by id, for gold passages that the retriever missed.
    config: what is shown.
  """
  tasks = [task for task in tasks if task.subquestions]
  steps = [(task, *step) for task in tasks for step in resolved_steps(task)]
  found = retriever.retrieve([question for _, _, question in steps], config.passages_per_step)
  shown: dict[str, list[list[Passage]]] = {task.id: [] for task in tasks}
  result = []
  for (task, step, question), hits in zip(steps, found, strict=True):
    seen = _with_gold([hit.passage for hit in hits], step.passages, passages, config.passages_per_step)
    shown[task.id].append(seen)
    kind = prompts.step_kind(step.question, task.kind)
    text = prompts.step(question, prompts.zigzag(seen), kind)
    result.append(Demonstration('step', kind, text, step.answer))
  whole = retriever.retrieve([task.question for task in tasks], config.final_passages)
  for i, (task, hits) in enumerate(zip(tasks, whole, strict=True)):
    result.extend(_whole_task(task, shown[task.id], config))
    if i % config.retrieved_every == 0:
      seen = _with_gold([hit.passage for hit in hits], task.passages, passages, config.final_passages)
      text = prompts.retrieved(task.question, seen, task.kind)
      result.append(Demonstration('retrieved', task.kind, text, _tagged(task)))
    if i % config.direct_every == 0:
      text = prompts.direct(task.question, task.kind)
      result.append(Demonstration('direct', task.kind, text, _tagged(task)))
  return result


def resolved_steps(task: Task) -> Iterator[tuple[SubQuestion, str]]:
  """Every gold step with its references resolved by the gold answers."""
  answers = [step.answer for step in task.subquestions]
  for i, step in enumerate(task.subquestions):
    yield step, resolve(step.question, answers[:i])


def _whole_task(
  task: Task, shown: Sequence[Sequence[Passage]], config: DemonstrationConfig
) -> Iterator[Demonstration]:
  """The plan and the final answer."""
  plan = format_plan([step.question for step in task.subquestions])
  yield Demonstration('decompose', task.kind, prompts.decompose(task.question, task.kind), plan)
  answered = [(question, step.answer) for step, question in resolved_steps(task)]
  seen = prompts.final_passages(shown, config.final_passages)
  yield Demonstration(
    'final', task.kind, prompts.final(task.question, seen, answered, task.kind), _tagged(task)
  )


def _tagged(task: Task) -> str:
  return f'<answer>{task.answers[0]}</answer>'


def _with_gold(
  seen: list[Passage], gold: Sequence[str], passages: Mapping[str, Passage], most: int
) -> list[Passage]:
  """`seen` with missing gold passages in place of the last ones: an answer must be there to be read."""
  ids = {passage.id for passage in seen}
  missing = [passages[id_] for id_ in gold if id_ not in ids and id_ in passages][:most]
  return seen[: most - len(missing)] + missing
