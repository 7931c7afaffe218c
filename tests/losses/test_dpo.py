"""The preference loss against values worked out by hand and by the math module."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from acesearch_jax.losses.dpo import dpo_loss

# Two pairs and a row that only fills the batch, whose garbage must not count.
CHOSEN = jnp.array([-4.0, -10.0, jnp.nan])
REJECTED = jnp.array([-6.0, -7.0, jnp.inf])
REFERENCE_CHOSEN = jnp.array([-5.0, -9.0, 0.0])
REFERENCE_REJECTED = jnp.array([-4.0, -8.0, 0.0])
TOKENS = jnp.array([2, 5, 0])
VALID = jnp.array([True, True, False])
# (log p - log ref) of the chosen less that of the rejected: 1 + 2 and -1 - 1.
ADVANTAGES = (3.0, -2.0)


def call(**options):
  return dpo_loss(CHOSEN, REJECTED, REFERENCE_CHOSEN, REFERENCE_REJECTED, TOKENS, VALID, **options)


def minus_log_sigmoid(x: float) -> float:
  return math.log1p(math.exp(-x))


@pytest.mark.parametrize(
    'options, expected',
    [
        ({'beta': 0.1}, sum(minus_log_sigmoid(0.1 * a) for a in ADVANTAGES)),
        (
            {'beta': 0.5, 'gamma': 0.2},
            sum(minus_log_sigmoid(0.5 * a) for a in ADVANTAGES) + 0.2 * (4 / 2 + 10 / 5),
        ),
        (
            {'beta': 0.5, 'label_smoothing': 0.25},
            sum(0.75 * minus_log_sigmoid(0.5 * a) + 0.25 * minus_log_sigmoid(-0.5 * a) for a in ADVANTAGES),
        ),
        ({'beta': 0.5, 'loss_type': 'ipo'}, (3 - 1) ** 2 + (-2 - 1) ** 2),
    ],
)
def test_loss(options, expected):
  (loss, pairs), _ = call(**options)
  assert pairs == 2
  assert loss == pytest.approx(expected, rel=1e-6)


def test_aux():
  _, aux = call(beta=0.5, gamma=0.2)
  sums = {name: float(total) for name, (total, pairs) in aux.items() if pairs == 2}
  assert sums == {
      'margin': 0.5, 'accuracy': 1.0, 'chosen_reward': 0.0, 'rejected_reward': -0.5,
      'chosen_logp': -14.0, 'rejected_logp': -13.0, 'chosen_nll': 4.0,
  }  # fmt: skip


def test_equal_to_the_reference_is_log_two_with_gradient_half_beta():
  def loss(chosen):
    zero = jnp.zeros(1)
    return dpo_loss(chosen, zero, zero, zero, jnp.ones(1), jnp.ones(1, bool), beta=0.3)[0][0]

  value, gradient = jax.value_and_grad(loss)(jnp.zeros(1))
  assert value == pytest.approx(math.log(2))
  np.testing.assert_allclose(gradient, [-0.15], rtol=1e-6)


def test_filling_rows_get_no_gradient():
  def loss(chosen, rejected):
    arrays = (chosen, rejected, REFERENCE_CHOSEN, REFERENCE_REJECTED, TOKENS, VALID)
    return dpo_loss(*arrays, beta=0.1, gamma=1.0)[0][0]

  for gradient in jax.grad(loss, (0, 1))(CHOSEN, REJECTED):
    assert np.all(np.isfinite(gradient)) and gradient[2] == 0


def test_unknown_type():
  with pytest.raises(ValueError, match='hinge'):
    call(beta=0.1, loss_type='hinge')
