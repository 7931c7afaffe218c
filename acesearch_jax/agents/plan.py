"""The plan grammar of AceSearcher: lines `### Q1: ...` in which `#1` stands for an earlier answer."""

import dataclasses
import re
from collections.abc import Sequence

from acesearch_jax.agents.untrusted import clean_answer

MAX_STEPS = 6

_LINE = re.compile(r'### Q([1-9][0-9]?): (\S.*)')
_REFERENCE = re.compile(r'#([0-9]+)')
# A reference in words ('the answer to question 1') cannot be resolved.
_WORDY_REFERENCE = re.compile(r'sub-?\s?questions?\b|\bquestion\s+[0-9]', re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Plan:
  """A parsed decomposition.

  Attributes:
    steps: sub-questions with `#k` references, in order; empty where the text was no plan.
    reason: why the text was no plan, '' where it was one.
  """

  steps: tuple[str, ...]
  reason: str = ''

  @property
  def valid(self) -> bool:
    return not self.reason


def parse_plan(text: str) -> Plan:
  """Reads a plan strictly; see AceSearcher's format check f.

  A plan is 1 to 6 lines `### Q<k>: <text>` with k counting from 1, blank lines and spaces around a line
  aside. Every `#<j>` in line k has 1 <= j < k. No two texts are equal, and none refers to an earlier
  answer in words ('question 1') instead of `#1`.

  Args:
    text: what the policy wrote.

  Returns:
    The plan; `reason` says what is wrong where it is not one.
  """
  steps: list[str] = []
  seen = set()
  for line in filter(None, map(str.strip, text.split('\n'))):
    match = _LINE.fullmatch(line)
    if not match:
      return Plan((), f'line {_quoted(line)} is not of the form ### Q1: text')
    position, step = len(steps) + 1, match[2]
    if int(match[1]) != position:
      return Plan((), f'Q{match[1]} stands where Q{position} should')
    if position > MAX_STEPS:
      return Plan((), f'more than {MAX_STEPS} steps')
    reason = _fault(step, position)
    if reason:
      return Plan((), reason)
    key = ' '.join(step.casefold().split())
    if key in seen:
      return Plan((), f'Q{position} repeats an earlier step')
    seen.add(key)
    steps.append(step)
  return Plan(tuple(steps)) if steps else Plan((), 'no steps')


def format_plan(steps: Sequence[str]) -> str:
  """The canonical text of a plan, one line a step."""
  return '\n'.join(f'### Q{position}: {step}' for position, step in enumerate(steps, start=1))


def references(step: str) -> tuple[int, ...]:
  """The step numbers that `step` refers to, in order; 0 stands for a number no plan can have."""
  return tuple(map(_index, _REFERENCE.finditer(step)))


def resolve(step: str, answers: Sequence[str]) -> str:
  """`step` with every `#j` replaced by answer j.

  One pass, so inserted text is never read again; `#10` is not `#1`; a number without an answer stays as
  it is. Answers are the policy's text, which may repeat what a passage said, so each goes in as one
  clean line.

  Args:
    step: a sub-question of a valid plan.
    answers: those of the steps before it, in order.
  """

  def answer(match: re.Match[str]) -> str:
    index = _index(match)
    return clean_answer(answers[index - 1]) if 1 <= index <= len(answers) else match[0]

  return _REFERENCE.sub(answer, step)


def _fault(step: str, position: int) -> str:
  if '##' in step:
    return f'Q{position} holds a second ###'
  if any(not 1 <= index < position for index in references(step)):
    return f'Q{position} refers to a step that is not before it'
  if '#' not in step and _WORDY_REFERENCE.search(step):
    return f'Q{position} refers to a question in words instead of by #'
  return ''


def _index(match: re.Match[str]) -> int:
  return int(match[1]) if len(match[1]) <= 2 and match[1][0] != '0' else 0


def _quoted(line: str) -> str:
  return repr(line if len(line) <= 40 else line[:40] + '…')
