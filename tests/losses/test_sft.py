import jax.numpy as jnp

from acesearch_jax.losses.sft import sft_loss


def test_sums_and_denominators_by_hand():
  logps = jnp.array([[-1.0, -2.0, -7.0], [-0.5, -9.0, -9.0], [-9.0, -9.0, -9.0]])
  mask = jnp.array([[True, True, False], [True, False, False], [False, False, False]])
  (loss, tokens), aux = sft_loss(logps, mask)
  assert (loss, tokens) == (3.5, 3)
  assert aux['sequence_logp'] == (-3.5, 2)


def test_no_response_at_all_is_zero_over_zero_terms():
  (loss, tokens), _ = sft_loss(jnp.full((2, 3), -jnp.inf), jnp.zeros((2, 3), bool))
  assert (loss, tokens) == (0, 0)
