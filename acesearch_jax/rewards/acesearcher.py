"""AceSearcher's outcome reward: exact match, paid only where plan and answer have the required form."""

import dataclasses
from collections.abc import Sequence

from acesearch_jax.agents.plan import parse_plan
from acesearch_jax.data.tasks import Kind
from acesearch_jax.rewards import answers


@dataclasses.dataclass(frozen=True)
class Reward:
  """The reward of one solution and what it is made of.

  Attributes:
    value: the training signal in [0, 1].
    answer: what stood in the answer tags, None where the text breaks the format.
    em: exact match, 0 or 1.
    f1: token F1 in [0, 1].
    acc: a gold answer is contained, 0 or 1.
    format: 1 where plan and final text have the required form, else 0.
    reason: what breaks the format, '' where nothing does.
  """

  value: float
  answer: str | None
  em: float
  f1: float
  acc: float
  format: float
  reason: str

  def scores(self) -> dict[str, float]:
    """The parts by name, as rollout records keep them."""
    return {'em': self.em, 'f1': self.f1, 'acc': self.acc, 'format': self.format}


def check_format(plan_text: str | None, final_text: str, kind: Kind) -> str:
  """AceSearcher's format check f (arXiv 2509.24193 names it in r = EM · f without defining it).

  Args:
    plan_text: what the decomposer wrote; None for an agent that does not plan.
    final_text: what the solver wrote for the whole question; policy text only.
    kind: the task's kind; a claim's answer must be Yes or No.

  Returns:
    '' where f = 1, else the first fault.
  """
  if plan_text is not None and (plan := parse_plan(plan_text)).reason:
    return f'plan: {plan.reason}'
  answer = answers.extract_answer(final_text)
  if answer is None:
    return 'final: not exactly one non-empty <answer>…</answer>'
  if kind == 'claim' and answers.normalise_verdict(answer) is None:
    return 'final: the verdict is neither Yes nor No'
  return ''


def reward(
    plan_text: str | None, final_text: str, golds: Sequence[str], kind: Kind, shaped: bool = False
) -> Reward:
  """Scores one solution.

  Args:
    plan_text: what the decomposer wrote; None for an agent that does not plan.
    final_text: what the solver wrote for the whole question; policy text only.
    golds: accepted answers.
    kind: the task's kind.
    shaped: pay (EM + accuracy + F1) / 3 times f instead of EM times f.
  """
  reason = check_format(plan_text, final_text, kind)
  answer = answers.extract_answer(final_text)
  em = answers.exact_match(answer, golds)
  f1 = answers.f1(answer, golds)
  acc = answers.accuracy(answer, golds)
  value = (em + acc + f1) / 3 if shaped else em
  return Reward(0.0 if reason else value, answer, em, f1, acc, float(not reason), reason)
