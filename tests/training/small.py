"""A decoder small enough for tests, and examples for it."""

import numpy as np

from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.training.batching import Example, PairExample

CONFIG = DecoderConfig(
    vocab_size=48, width=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=32, max_length=64
)


def _ids(rng, low, high):
  return tuple(int(i) for i in rng.integers(CONFIG.vocab_size, size=rng.integers(low, high)))


def examples(count: int, seed: int = 0) -> list[Example]:
  rng = np.random.default_rng(seed)
  return [Example(_ids(rng, 3, 14), _ids(rng, 1, 6)) for _ in range(count)]


def pairs(count: int, seed: int = 0) -> list[PairExample]:
  rng = np.random.default_rng(seed)
  return [
      PairExample(_ids(rng, 3, 14), _ids(rng, 1, 6), _ids(rng, 1, 6), -float(rng.uniform(5, 20)), -float(rng.uniform(5, 20)))
      for _ in range(count)
  ]
