import jax
import jax.numpy as jnp
import numpy as np

from acesearch_jax.losses.masked import masked_mean, masked_sum


def test_values_by_hand():
  values = jnp.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
  mask = jnp.array([[True, False, True], [False, False, False]])
  assert masked_sum(values, mask) == 5.0
  np.testing.assert_array_equal(masked_sum(values, mask, axis=1), [5.0, 0.0])
  np.testing.assert_array_equal(masked_mean(values, mask, axis=1), [2.5, 0.0])


def test_what_is_outside_the_mask_reaches_neither_value_nor_gradient():
  values = jnp.array([3.0, jnp.inf, jnp.nan])
  mask = jnp.array([True, False, False])
  value, gradient = jax.value_and_grad(lambda x: masked_mean(x, mask))(values)
  assert value == 3.0
  np.testing.assert_array_equal(gradient, [1.0, 0.0, 0.0])
