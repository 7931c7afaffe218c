"""Transcripts: token ids as they were read and sampled, never decoded and encoded again.

A transcript is append-only. Each segment says who wrote it, so that the loss mask is read off the
segment kinds and retrieved text can never pass for the policy's.
"""

import dataclasses
from typing import Any, Literal

import numpy as np

from acesearch_jax.sampling.request import Completion

SegmentKind = Literal['prompt', 'policy', 'environment']


@dataclasses.dataclass(frozen=True)
class Segment:
  """A run of tokens from one writer.

  Attributes:
    kind: 'prompt' (given), 'policy' (sampled) or 'environment' (tool output between turns).
    tokens: ids.
    logps: for 'policy', the sampler's log-probability of each token under the model (temperature 1,
      nats); empty otherwise.
  """

  kind: SegmentKind
  tokens: tuple[int, ...]
  logps: tuple[float, ...] = ()

  def __post_init__(self):
    if self.kind == 'policy' and len(self.logps) != len(self.tokens):
      raise ValueError(f'{len(self.tokens)} policy tokens with {len(self.logps)} log-probabilities')


@dataclasses.dataclass(frozen=True)
class Transcript:
  """One conversation with the policy.

  Attributes:
    segments: in order.
    finish: how the last policy segment ended: 'stop', 'length' or 'refused'.
  """

  segments: tuple[Segment, ...]
  finish: str = 'stop'

  @classmethod
  def single_turn(cls, prompt: tuple[int, ...], completion: Completion) -> 'Transcript':
    """A prompt and what the policy sampled after it."""
    policy = Segment('policy', tuple(completion.tokens.tolist()), tuple(completion.logps.tolist()))
    return cls((Segment('prompt', tuple(prompt)), policy), completion.finish)

  @property
  def prompt(self) -> tuple[int, ...]:
    """Ids before the last policy segment."""
    return tuple(token for segment in self.segments[:-1] for token in segment.tokens)

  @property
  def response(self) -> tuple[int, ...]:
    """Ids of the last policy segment, its stop token included."""
    return self.segments[-1].tokens

  @property
  def tokens(self) -> np.ndarray:
    """[T] int32, every segment in order."""
    return np.asarray([token for segment in self.segments for token in segment.tokens], np.int32)

  @property
  def loss_mask(self) -> np.ndarray:
    """[T] bool, True at policy tokens."""
    return np.concatenate(
      [np.full(len(segment.tokens), segment.kind == 'policy') for segment in self.segments]
    )

  def to_json(self) -> dict[str, Any]:
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, row: dict[str, Any]) -> 'Transcript':
    segments = tuple(Segment(s['kind'], tuple(s['tokens']), tuple(s['logps'])) for s in row['segments'])
    return cls(segments, row['finish'])
