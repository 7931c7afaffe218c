"""What goes into the sampler and what comes out: requests and completions, in token ids."""

import dataclasses
import hashlib

import numpy as np

from acesearch_jax.errors import UsageError


@dataclasses.dataclass(frozen=True)
class SamplingParams:
  """How to draw tokens. Filters apply in Hugging Face's order: penalty, temperature, top-k, top-p, min-p.

  Attributes:
    temperature: divides the logits; 0 takes the best token.
    top_p: keep the most likely tokens up to this mass (arXiv 1904.09751).
    top_k: keep this many most likely tokens, 0 for all.
    min_p: drop tokens less likely than this fraction of the best (arXiv 2407.01082).
    repetition_penalty: divides (multiplies, if negative) logits of tokens already in prompt or
      answer (arXiv 1909.05858).
    max_tokens: longest answer.
    stop: token sequences that end the answer; an end-of-sequence id is a sequence of one.
  """

  temperature: float = 1.0
  top_p: float = 1.0
  top_k: int = 0
  min_p: float = 0.0
  repetition_penalty: float = 1.0
  max_tokens: int = 128
  stop: tuple[tuple[int, ...], ...] = ()

  def __post_init__(self):
    checks = {
        f'temperature is {self.temperature}, must be 0 or more': self.temperature >= 0,
        f'top_p is {self.top_p}, must be in (0, 1]': 0 < self.top_p <= 1,
        f'top_k is {self.top_k}, must be 0 or more': self.top_k >= 0,
        f'min_p is {self.min_p}, must be in [0, 1]': 0 <= self.min_p <= 1,
        f'repetition_penalty is {self.repetition_penalty}, must be positive': self.repetition_penalty > 0,
        f'max_tokens is {self.max_tokens}, must be at least 1': self.max_tokens >= 1,
        f'stop is {self.stop}, must be token sequences, none empty': all(
            isinstance(sequence, tuple) and sequence for sequence in self.stop
        ),
    }
    for message, holds in checks.items():
      if not holds:
        raise UsageError(f'Sampling: {message}.')


@dataclasses.dataclass(frozen=True)
class Request:
  """One continuation to sample.

  Attributes:
    prompt: token ids.
    identity: names the draw, e.g. (seed, iteration, task id, 'plan', 0). Random numbers come from it
      alone, so the same request gives the same tokens in any batch.
    params: how to draw.
  """

  prompt: tuple[int, ...]
  identity: tuple[int | str, ...]
  params: SamplingParams = SamplingParams()

  def key_data(self) -> np.ndarray:
    """The request's random key, [2] uint32, from the SHA-256 of its identity."""
    digest = hashlib.sha256(repr(tuple(self.identity)).encode()).digest()
    return np.frombuffer(digest[:8], '<u4').astype(np.uint32)


@dataclasses.dataclass(frozen=True)
class Completion:
  """A sampled continuation of N tokens.

  Attributes:
    tokens: [N] int32, the terminating stop sequence included.
    logps: [N] float32, log-probabilities under the model: temperature 1, no filter.
    behaviour_logps: [N] float32, under the distribution drawn from (0 when greedy).
    finish: 'stop', 'length' (max_tokens or the context is full) or 'refused'.
    message: why it was refused.
  """

  tokens: np.ndarray
  logps: np.ndarray
  behaviour_logps: np.ndarray
  finish: str
  message: str = ''


def refused(message: str) -> Completion:
  nothing = np.zeros((0,), np.float32)
  return Completion(nothing.astype(np.int32), nothing, nothing, 'refused', message)
