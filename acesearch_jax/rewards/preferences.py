"""Preference pairs from rollouts that have final-answer rewards only (AceSearcher, section on D_pref).

Three kinds, one rule: two things the policy said after the *same* prompt, whose downstream rewards
differ.

- `plan`: the decompositions with the highest and the lowest mean reward of their solutions.
- `subanswer`: of all solutions of the task that reached the same sub-question with the same passages,
  the answer after which the mean final reward was highest, and the one after which it was lowest.
- `final`: of all solutions with the same final prompt, a right answer and a wrong one.

Solutions fork from identical prompts, so both sides of a pair always share theirs.
"""

import collections
import dataclasses
import zlib
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from acesearch_jax.agents.rollout import Rollout
from acesearch_jax.agents.transcript import Transcript

PairKind = Literal['plan', 'subanswer', 'final', 'program']


@dataclasses.dataclass(frozen=True)
class PreferencePair:
  """A prompt with a better and a worse response, as token ids.

  Attributes:
    kind: which conversation of the task the pair is from.
    prompt: ids.
    chosen: ids of the better response, its stop token included.
    rejected: ids of the worse response.
    chosen_reward: mean final reward downstream of the chosen response, in [0, 1].
    rejected_reward: the same of the rejected one.
    task_id: the task.
    iteration: self-play round, from 1.
    seed: of the run.
    fingerprint: of the weights that sampled both.
  """

  kind: PairKind
  prompt: tuple[int, ...]
  chosen: tuple[int, ...]
  rejected: tuple[int, ...]
  chosen_reward: float
  rejected_reward: float
  task_id: str
  iteration: int
  seed: int
  fingerprint: str

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, row: dict[str, Any]) -> 'PreferencePair':
    names = [field.name for field in dataclasses.fields(cls)]
    ids = {name: tuple(row[name]) for name in ('prompt', 'chosen', 'rejected')}
    return cls(**{name: row[name] for name in names if name not in ids}, **ids)


@dataclasses.dataclass(frozen=True)
class PairConfig:
  """Which pairs are kept.

  Attributes:
    min_gap: least difference of the two mean rewards; equal rewards never make a pair.
    max_pairs_per_task: of each kind, those with the widest gaps.
    max_pairs: of each kind over a whole iteration, a seeded sample; 0 for all.
    kinds: the kinds to make.
  """

  min_gap: float = 0.25
  max_pairs_per_task: int = 3
  max_pairs: int = 0
  kinds: tuple[str, ...] = ('plan', 'subanswer', 'final')


def mine_pairs(
  rollouts: Iterable[Rollout], config: PairConfig, seed: int, fingerprint: str
) -> list[PreferencePair]:
  """All preference pairs of one iteration, in the order of the rollouts.

  Args:
    rollouts: of one iteration, with rewards.
    config: which to keep.
    seed: of the run; with the task id it decides ties.
    fingerprint: of the weights that sampled the rollouts.
  """
  pairs: list[PreferencePair] = []
  for rollout in rollouts:
    rng = np.random.default_rng((seed, rollout.iteration, zlib.crc32(rollout.task.id.encode())))
    for kind in config.kinds:
      found = []
      for prompt, values in _comparisons(rollout, kind):
        best = _extreme(values, max, rng, finished_only=True)
        worst = _extreme(values, min, rng, finished_only=False)
        if best is None or worst is None or best[1] - worst[1] < max(config.min_gap, 1e-9):
          continue
        found.append(
            PreferencePair(
                kind, prompt, best[0].response, worst[0].response, best[1], worst[1],
                rollout.task.id, rollout.iteration, seed, fingerprint,
            )
        )  # fmt: skip
      found.sort(key=lambda pair: pair.rejected_reward - pair.chosen_reward)  # stable: widest gap first
      pairs.extend(found[: config.max_pairs_per_task])
  return _cap(pairs, config.max_pairs, seed)


Response = tuple[int, ...]
Values = dict[Response, tuple[Transcript, float]]


def _comparisons(rollout: Rollout, kind: str) -> list[tuple[tuple[int, ...], Values]]:
  """Per prompt: every distinct response to it with the mean final reward of what followed."""
  rewards: dict[tuple[int, ...], dict[Response, list[float]]] = collections.defaultdict(dict)
  transcripts: dict[tuple[tuple[int, ...], Response], Transcript] = {}

  def add(transcript: Transcript, values: Iterable[float]) -> None:
    rewards[transcript.prompt].setdefault(transcript.response, []).extend(values)
    transcripts[transcript.prompt, transcript.response] = transcript

  for plan in rollout.plans:
    if kind == 'plan' and plan.transcript is not None:
      add(plan.transcript, [plan.mean_reward])
    for solution in plan.solutions:
      if kind == 'subanswer':
        for step in solution.steps:
          add(step.transcript, [solution.reward])
      elif kind == 'final':
        add(solution.transcript, [solution.reward])
  return [
    (prompt, {r: (transcripts[prompt, r], float(np.mean(v))) for r, v in responses.items()})
    for prompt, responses in rewards.items()
    if len(responses) > 1
  ]


def _extreme(
  values: Values, pick: Any, rng: np.random.Generator, finished_only: bool
) -> tuple[Transcript, float] | None:
  """The response with the highest or lowest value; ties are drawn, not taken in order.

  A response that ran out of tokens never ended; it may be rejected but is never a model to follow.
  """
  options = [v for v in values.values() if v[0].response and (v[0].finish == 'stop' or not finished_only)]
  if not options:
    return None
  target = pick(value for _, value in options)
  tied = [option for option in options if option[1] == target]
  return tied[rng.integers(len(tied))]


def _cap(pairs: list[PreferencePair], most: int, seed: int) -> list[PreferencePair]:
  """At most `most` pairs of each kind, a seeded sample in the original order."""
  if not most:
    return pairs
  kept: list[int] = []
  for kind in dict.fromkeys(pair.kind for pair in pairs):
    places = [i for i, pair in enumerate(pairs) if pair.kind == kind]
    if len(places) > most:
      rng = np.random.default_rng((seed, pairs[places[0]].iteration, zlib.crc32(kind.encode())))
      places = sorted(rng.choice(places, most, replace=False).tolist())
    kept.extend(places)
  return [pairs[i] for i in sorted(kept)]
