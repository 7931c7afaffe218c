"""Scores of finished rollouts: rewards on every solution, and one evaluation record a question."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from acesearch_jax.agents.rollout import PlanRollout, Rollout, Solution
from acesearch_jax.evaluation import intervals
from acesearch_jax.rewards.acesearcher import reward
from acesearch_jax.rewards.answers import normalise


def with_rewards(rollout: Rollout, shaped: bool = False) -> Rollout:
  """The rollout with every solution's reward and scores filled in.

  Args:
    rollout: finished.
    shaped: pay the mean of EM, F1 and accuracy instead of EM.
  """
  task = rollout.task

  def scored(plan: PlanRollout, solution: Solution) -> Solution:
    plan_text = plan.text if plan.transcript else None
    result = reward(plan_text, solution.text, task.answers, task.kind, shaped)
    return dataclasses.replace(solution, reward=result.value, scores=result.scores())

  plans = tuple(
      dataclasses.replace(plan, solutions=tuple(scored(plan, solution) for solution in plan.solutions))
      for plan in rollout.plans
  )
  return dataclasses.replace(rollout, plans=plans)


def evaluation_record(rollout: Rollout) -> dict[str, Any]:
  """One question's record: its scores beside the whole trajectory, token ids left out.

  Metrics are those of the answer itself: a solver that recovers from an unparsed plan is right.
  """
  task, [plan] = rollout.task, rollout.plans
  [solution] = plan.solutions
  return {
      'id': task.id,
      'type': task.type,
      'question': task.question,
      'answers': list(task.answers),
      'prediction': solution.answer,
      'em': solution.scores['em'],
      'f1': solution.scores['f1'],
      'acc': solution.scores['acc'],
      'recall': _recall(rollout),
      'plan_valid': plan.valid,
      'refused': rollout.refused,
      'tokens': rollout.token_counts(),
      **without_tokens(rollout.to_json()),
  }


def without_tokens(row: Any) -> Any:
  """A JSON value without its transcripts: what people look at needs no token ids."""
  if isinstance(row, dict):
    return {name: without_tokens(value) for name, value in row.items() if name != 'transcript'}
  return [without_tokens(value) for value in row] if isinstance(row, list) else row


def summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """`n`, `em`, `f1`, `acc`, `em_ci95`, retrieval recall, rates of failures, tokens a question.

  Failures are questions with an unparsed plan, with no tagged answer, and with a prompt that was refused
  because it did not fit in the context.

  Raises:
    ValueError: there are no records.
  """
  recalls = [record['recall'] for record in records if record['recall'] is not None]
  return intervals.score_row(records) | {
      'retrieval_recall': _mean(recalls) if recalls else None,
      'unparsed_plans': _mean(not record['plan_valid'] for record in records),
      'untagged': _mean(record['prediction'] is None for record in records),
      'refused': _mean(record['refused'] > 0 for record in records),
      'tokens_per_question': {
          name: _mean(record['tokens'][name] for record in records) for name in ('prompted', 'decoded')
      },
  }


def _recall(rollout: Rollout) -> float | None:
  """Share of the gold passages among those retrieved; without gold ones, whether any holds an answer."""
  [plan] = rollout.plans
  [solution] = plan.solutions
  hits = [*solution.hits, *(hit for step in solution.steps for hit in step.hits)]
  if not hits and not solution.steps:
    return None
  if rollout.task.passages:
    found = {hit.passage.id for hit in hits}
    return _mean(passage in found for passage in rollout.task.passages)
  text = f' {normalise(" ".join(f"{hit.passage.title} {hit.passage.text}" for hit in hits))} '
  return float(any(f' {normalise(answer)} ' in text for answer in rollout.task.answers))


def _mean(values: Iterable[float]) -> float:
  values = list(values)
  return sum(map(float, values)) / len(values)
