"""Schedules and AdamW against values by hand."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from acesearch_jax.training.optimizer import OptimizerConfig, learning_rate_schedule, make_optimizer


@pytest.mark.parametrize(
    'schedule, expected',
    [
        ('constant', [0.5, 1, 1, 1, 1, 1]),
        ('linear', [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ('cosine', [0.5, 1, 1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5]),
    ],
)
def test_schedules(schedule, expected):
  rate = learning_rate_schedule(OptimizerConfig(2.0, schedule, warmup_share=1 / 3), num_steps=6)
  np.testing.assert_allclose([rate(i) for i in range(6)], 2 * np.array(expected), rtol=1e-6)


def test_first_update_is_the_rate_times_the_sign_and_only_matrices_decay():
  config = OptimizerConfig(0.1, 'constant', 0.0, weight_decay=0.5, max_grad_norm=0.0)
  transformation = make_optimizer(config, 1).transformation
  params = {'kernel': jnp.array([2.0, 2.0]), 'scale': jnp.array([2.0]), 'bias': jnp.array([2.0])}
  grads = {'kernel': jnp.array([3.0, -1e-3]), 'scale': jnp.array([5.0]), 'bias': jnp.array([-5.0])}
  updates, _ = transformation.update(grads, transformation.init(params), params)
  moved = optax.apply_updates(params, updates)
  np.testing.assert_allclose(moved['kernel'], [2 - 0.1 - 0.1, 2 + 0.1 - 0.1], rtol=1e-5)
  np.testing.assert_allclose([*moved['scale'], *moved['bias']], [1.9, 2.1], rtol=1e-5)


def test_gradients_are_clipped_by_their_global_norm():
  """Adam forgets the size of a single gradient; the second of two different ones shows it."""
  params = {'kernel': jnp.zeros(2)}
  small, unit, large = ({'kernel': scale * jnp.array([0.6, 0.8])} for scale in (0.5, 1, 50))

  def second_update(config, first, second):
    transformation = make_optimizer(config, 2).transformation
    _, state = transformation.update(first, transformation.init(params), params)
    return transformation.update(second, state, params)[0]['kernel']

  clipped, free = OptimizerConfig(0.1), OptimizerConfig(0.1, max_grad_norm=0.0)
  want = second_update(free, small, unit)
  np.testing.assert_allclose(second_update(clipped, small, large), want, rtol=1e-5)
  assert not np.allclose(second_update(free, small, large), want, rtol=1e-2)


def test_unknown_schedule():
  with pytest.raises(ValueError, match='step'):
    OptimizerConfig(0.1, 'step')
