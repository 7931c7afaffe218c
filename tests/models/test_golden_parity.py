"""Logits against Hugging Face's PyTorch models; `make_golden.py` made the values."""

import json
import pathlib

import numpy as np
import pytest
import scipy.special

from acesearch_jax.models import safetensors_io

GOLDEN = pathlib.Path(__file__).parent / 'golden'


def test_smollm2_logits(smollm2, logits):
  rows = json.loads((GOLDEN / 'smollm2_tokens.json').read_text())['text_ids']
  golden = np.load(GOLDEN / 'smollm2_logits.npz')
  tokens = np.zeros((len(rows), max(map(len, rows))), np.int32)
  for i, row in enumerate(rows):
    tokens[i, : len(row)] = row
  padded = logits(smollm2.config, smollm2.params, tokens)
  ours = np.concatenate([padded[i, : len(row)] for i, row in enumerate(rows)])
  assert len(ours) == len(golden['argmax']) >= 256
  np.testing.assert_allclose(ours[:, golden['vocab_ids']], golden['subset'], rtol=0, atol=1e-3)
  np.testing.assert_allclose(ours.max(-1), golden['maximum'], rtol=0, atol=1e-3)
  np.testing.assert_allclose(scipy.special.logsumexp(ours, -1), golden['logsumexp'], rtol=0, atol=1e-3)
  np.testing.assert_array_equal(ours.argmax(-1), golden['argmax'])


@pytest.mark.parametrize('name', ['qwen2_untied', 'llama_tied'])
def test_hugging_face_folder(name, logits):
  """Biases, an untied head and shards; tied embeddings and an odd head size."""
  golden = np.load(GOLDEN / 'random_logits.npz')
  config = safetensors_io.read_config(GOLDEN / name)
  assert config.qkv_bias == (name == 'qwen2_untied')
  assert config.tie_embeddings == (name == 'llama_tied')
  params = safetensors_io.read_weights(GOLDEN / name, config)
  ours = logits(config, params, golden['tokens'])
  np.testing.assert_allclose(ours, golden[name], rtol=1e-5, atol=2e-5)
