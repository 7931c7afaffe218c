"""What one task's self-play leaves: a tree of plans, solutions and steps.

The records hold everything that later stages need (token ids with log-probabilities for training,
texts and passages for people) and serialise as one JSON object a task.
"""

import dataclasses
from typing import Any

from acesearch_jax.agents.transcript import Transcript
from acesearch_jax.data.tasks import Passage, Task
from acesearch_jax.retrieval.base import Hit


@dataclasses.dataclass(frozen=True)
class Step:
  """One answered sub-question of one solution.

  Attributes:
    template: the sub-question as planned, with `#k` references.
    question: the same with earlier answers in place; this is what was searched for.
    hits: retrieved passages, best first.
    transcript: the solver's conversation.
    answer: the solver's answer, one clean line; '' where it gave none.
  """

  template: str
  question: str
  hits: tuple[Hit, ...]
  transcript: Transcript
  answer: str

  def to_json(self) -> dict[str, Any]:
    return {
      'template': self.template,
      'question': self.question,
      'passages': _hits_to_json(self.hits),
      'answer': self.answer,
      'transcript': self.transcript.to_json(),
    }

  @classmethod
  def from_json(cls, row: dict[str, Any]) -> 'Step':
    hits, transcript = _hits_from_json(row['passages']), Transcript.from_json(row['transcript'])
    return cls(row['template'], row['question'], hits, transcript, row['answer'])


@dataclasses.dataclass(frozen=True)
class Solution:
  """One way through a plan, from its first sub-question to the final answer.

  Attributes:
    steps: in the plan's order.
    transcript: the final conversation.
    text: what the policy wrote there.
    answer: the extracted answer, None where the text has none in the required form.
    hits: retrieved for the question itself, by agents that do so; best first.
    reward: the training signal in [0, 1].
    scores: its parts and the evaluation metrics, by name.
  """

  steps: tuple[Step, ...]
  transcript: Transcript
  text: str
  answer: str | None
  hits: tuple[Hit, ...] = ()
  reward: float = 0.0
  scores: dict[str, float] = dataclasses.field(default_factory=dict)

  def to_json(self) -> dict[str, Any]:
    return {
      'steps': [step.to_json() for step in self.steps],
      'final_text': self.text,
      'answer': self.answer,
      'passages': _hits_to_json(self.hits),
      'reward': self.reward,
      'transcript': self.transcript.to_json(),
      'scores': self.scores,
      'em': self.scores.get('em', 0.0),
      'format': self.scores.get('format', 0.0),
    }

  @classmethod
  def from_json(cls, row: dict[str, Any]) -> 'Solution':
    steps = tuple(Step.from_json(step) for step in row['steps'])
    transcript = Transcript.from_json(row['transcript'])
    hits = _hits_from_json(row['passages'])
    return cls(steps, transcript, row['final_text'], row['answer'], hits, row['reward'], row['scores'])


@dataclasses.dataclass(frozen=True)
class PlanRollout:
  """One decomposition and its solutions.

  Attributes:
    transcript: the decomposer's conversation; None for agents that do not plan.
    text: what it wrote.
    steps: the parsed sub-questions; empty where the text is no valid plan.
    reason: why it is not valid, '' where it is.
    solutions: empty for an invalid plan in training; at inference the solver then takes the question
      itself as the only step.
  """

  transcript: Transcript | None
  text: str
  steps: tuple[str, ...]
  reason: str
  solutions: tuple[Solution, ...] = ()

  @property
  def valid(self) -> bool:
    return not self.reason

  @property
  def mean_reward(self) -> float:
    """Mean over the solutions (AceSearcher's r̄(q, z)); 0 for a plan that nobody could follow."""
    return sum(s.reward for s in self.solutions) / len(self.solutions) if self.solutions else 0.0

  def to_json(self) -> dict[str, Any]:
    return {
      'text': self.text,
      'valid': self.valid,
      'reason': self.reason,
      'mean_reward': self.mean_reward,
      'solutions': [solution.to_json() for solution in self.solutions],
      'steps': list(self.steps),
      'transcript': self.transcript and self.transcript.to_json(),
    }

  @classmethod
  def from_json(cls, row: dict[str, Any]) -> 'PlanRollout':
    transcript = row['transcript'] and Transcript.from_json(row['transcript'])
    solutions = tuple(Solution.from_json(solution) for solution in row['solutions'])
    return cls(transcript, row['text'], tuple(row['steps']), row['reason'], solutions)


@dataclasses.dataclass(frozen=True)
class Rollout:
  """Everything that happened for one task in one iteration (iteration 0 is an evaluation)."""

  task: Task
  iteration: int
  plans: tuple[PlanRollout, ...]

  @property
  def transcripts(self) -> list[Transcript]:
    """Every conversation of the tree."""
    found = []
    for plan in self.plans:
      found.extend([plan.transcript] if plan.transcript else [])
      for solution in plan.solutions:
        found.extend(step.transcript for step in solution.steps)
        found.append(solution.transcript)
    return found

  @property
  def refused(self) -> int:
    """Conversations whose prompt did not fit in the context."""
    return sum(transcript.finish == 'refused' for transcript in self.transcripts)

  def token_counts(self) -> dict[str, int]:
    """Tokens, counted so that neither batching nor a restart changes them.

    Returns:
      'prompted': prompt tokens with one prefill a request; 'prefilled': with identical prompts of the
      task prefilled once; 'decoded': sampled tokens.
    """
    transcripts = self.transcripts
    return {
      'prompted': sum(len(t.prompt) for t in transcripts),
      'prefilled': sum(map(len, {t.prompt for t in transcripts})),
      'decoded': sum(len(t.response) for t in transcripts),
    }

  def to_json(self) -> dict[str, Any]:
    plans = [plan.to_json() for plan in self.plans]
    return {'task': self.task.to_json(), 'iteration': self.iteration, 'plans': plans}

  @classmethod
  def from_json(cls, row: dict[str, Any]) -> 'Rollout':
    plans = tuple(PlanRollout.from_json(plan) for plan in row['plans'])
    return cls(Task.from_json(row['task']), row['iteration'], plans)


def _hits_to_json(hits: tuple[Hit, ...]) -> list[dict[str, Any]]:
  return [dataclasses.asdict(hit.passage) | {'score': hit.score} for hit in hits]


def _hits_from_json(rows: list[dict[str, Any]]) -> tuple[Hit, ...]:
  return tuple(Hit(Passage(row['id'], row['title'], row['text']), row['score']) for row in rows)
