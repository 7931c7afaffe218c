"""A tiny decoder with random weights, shared by the sampler's tests."""

import jax
import pytest

from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.models.decoder import init_params
from acesearch_jax.sharding.mesh import make_mesh

CONFIG = DecoderConfig(
    vocab_size=61,
    width=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_width=48,
    max_length=512,
)


@pytest.fixture(scope='session')
def mesh():
  return make_mesh('', jax.devices()[:1])


@pytest.fixture(scope='session')
def config():
  return CONFIG


@pytest.fixture(scope='session')
def params(mesh):
  params = init_params(CONFIG, jax.random.key(0), mesh)
  # Larger embeddings than the usual initialisation, so that the distributions are far from uniform.
  return {**params, 'embed': {'embedding': params['embed']['embedding'] * 20}}
