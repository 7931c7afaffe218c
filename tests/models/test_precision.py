"""What `--dtype` stands for, and that mixed precision rounds the operands of products and nothing else."""

import builtins
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from acesearch_jax.models import loading, precision
from acesearch_jax.models.decoder import _einsum


@pytest.mark.parametrize(('flags', 'name'), [
    ('fpu avx2 avx512f', 'float32'),
    ('fpu avx512_bf16 gfni', 'mixed'),
    ('fpu amx_bf16', 'mixed'),
    ('fpu amx_bf16_like', 'float32'),
    (None, 'float32'),
])  # fmt: skip
def test_auto_on_a_cpu(monkeypatch, flags, name):
  def opened(path, *_):
    assert path == '/proc/cpuinfo'
    if flags is None:
      raise FileNotFoundError(path)
    return io.StringIO(f'processor : 0\nflags\t\t: {flags}\n')

  with monkeypatch.context() as patch:
    patch.setattr(builtins, 'open', opened)
    found = precision.resolve('auto')
  assert found == name
  assert precision.resolve('bfloat16') == 'bfloat16'


@pytest.mark.parametrize(('name', 'trained', 'sampled'), [
    ('float32', ('float32', 'float32'), ('float32', 'float32')),
    ('mixed', ('float32', 'bfloat16'), ('float32', 'bfloat16')),
    ('bfloat16', ('bfloat16', 'bfloat16'), ('float32', 'bfloat16')),
])  # fmt: skip
def test_formats(name, trained, sampled):
  config = loading.load_model('tiny', dtype=name).config
  assert (config.dtype, config.operand_dtype) == trained
  if jax.default_backend() == 'cpu':
    config = precision.for_sampling(config)
    assert (config.dtype, config.operand_dtype) == sampled


def test_operands_are_rounded_forwards_and_backwards():
  keys = jax.random.split(jax.random.key(0), 3)
  x, kernel, weights = (
      jax.random.normal(key, shape) for key, shape in zip(keys, ((2, 5, 8), (8, 3), (2, 5, 3)), strict=True)
  )

  def product(x, kernel):
    return _einsum('bti,ik->btk', 'bfloat16', 'float32', x, kernel)

  y, pullback = jax.vjp(product, x, kernel)
  dx, dkernel = pullback(weights)
  x, kernel, weights = (np.asarray(a.astype(jnp.bfloat16), np.float64) for a in (x, kernel, weights))
  wanted = (x @ kernel, weights @ kernel.T, np.einsum('bti,btk->ik', x, weights))
  for found, value in zip((y, dx, dkernel), wanted, strict=True):
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-5)


def test_mixed_logits_stay_close(smollm2, logits):
  tokens = [list(range(1000, 1064))]
  exact = logits(smollm2.config, smollm2.params, tokens)
  mixed = logits(precision.with_precision(smollm2.config, 'mixed'), smollm2.params, tokens)
  assert mixed.dtype == np.float32
  error = np.abs(jax.nn.log_softmax(mixed) - jax.nn.log_softmax(exact))
  assert 1e-4 < error.max() and error.mean() < 0.05, (error.max(), error.mean())
