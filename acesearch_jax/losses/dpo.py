"""Direct preference optimisation (arXiv 2305.18290), with the likelihood term of AceSearcher's runs."""

import jax
import jax.numpy as jnp

from acesearch_jax.losses.masked import masked_sum

Sums = dict[str, tuple[jax.Array, jax.Array]]
LOSS_TYPES = ('sigmoid', 'ipo')


def dpo_loss(
    chosen_logps: jax.Array,
    rejected_logps: jax.Array,
    reference_chosen_logps: jax.Array,
    reference_rejected_logps: jax.Array,
    chosen_tokens: jax.Array,
    valid: jax.Array,
    *,
    beta: float,
    gamma: float = 0.0,
    loss_type: str = 'sigmoid',
    label_smoothing: float = 0.0,
) -> tuple[tuple[jax.Array, jax.Array], Sums]:
  """Preference loss of summed log-probabilities, plus gamma times the chosen answer's mean NLL.

  With h = (log p(chosen) - log ref(chosen)) - (log p(rejected) - log ref(rejected)), not normalised by
  length, a pair's loss is -log sigmoid(beta h) (`sigmoid`, eq. 7 there) or (h - 1 / (2 beta))^2
  (`ipo`, arXiv 2310.12036, eq. 17), plus gamma · (-log p(chosen) / chosen_tokens).

  Args:
    chosen_logps: [...] log-probability of each chosen answer, summed over its tokens, nats.
    rejected_logps: [...], of the rejected answer.
    reference_chosen_logps: [...], under the reference.
    reference_rejected_logps: [...], under the reference.
    chosen_tokens: [...] tokens of the chosen answer.
    valid: [...] bool, False for pairs that only fill the batch.
    beta: inverse strength of the pull towards the reference.
    gamma: weight of the likelihood term.
    loss_type: one of LOSS_TYPES.
    label_smoothing: share of labels taken to be flipped (`sigmoid` only).

  Returns:
    ((loss_sum, number of pairs), aux), aux as name: (sum, number of pairs), with rewards
    beta · (log p - log ref): `margin` their difference, `accuracy` the share with margin > 0,
    `chosen_reward`, `rejected_reward`, `chosen_logp`, `rejected_logp` (nats), `chosen_nll` (nats a token).

  Raises:
    ValueError: an unknown loss type.
  """
  if loss_type not in LOSS_TYPES:
    raise ValueError(f"loss_type '{loss_type}' is none of {', '.join(LOSS_TYPES)}.")
  chosen_ratio = jnp.where(valid, chosen_logps - reference_chosen_logps, 0)
  rejected_ratio = jnp.where(valid, rejected_logps - reference_rejected_logps, 0)
  advantage = chosen_ratio - rejected_ratio
  if loss_type == 'sigmoid':
    right, flipped = jax.nn.log_sigmoid(beta * advantage), jax.nn.log_sigmoid(-beta * advantage)
    preference = -(1 - label_smoothing) * right - label_smoothing * flipped
  else:
    preference = jnp.square(advantage - 1 / (2 * beta))
  nll = -chosen_logps / jnp.maximum(chosen_tokens, 1)
  pairs = jnp.sum(valid).astype(chosen_logps.dtype)
  values = {
      'margin': beta * advantage,
      'accuracy': (advantage > 0).astype(chosen_logps.dtype),
      'chosen_reward': beta * chosen_ratio,
      'rejected_reward': beta * rejected_ratio,
      'chosen_logp': chosen_logps,
      'rejected_logp': rejected_logps,
      'chosen_nll': nll,
  }
  aux = {name: (masked_sum(value, valid), pairs) for name, value in values.items()}
  return (masked_sum(preference + gamma * nll, valid), pairs), aux
