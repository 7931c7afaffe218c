"""Supervised fine-tuning: next-token cross-entropy on the response."""

import jax
import jax.numpy as jnp

from acesearch_jax.losses.masked import masked_sum

Sums = dict[str, tuple[jax.Array, jax.Array]]


def sft_loss(logps: jax.Array, mask: jax.Array) -> tuple[tuple[jax.Array, jax.Array], Sums]:
  """-sum of log p(token | before) over the masked positions.

  Args:
    logps: [B, T] log-probability of each target, nats.
    mask: [B, T] bool, the response's positions.

  Returns:
    ((loss_sum in nats, token count), aux), aux as name: (sum, denominator): `sequence_logp`, a
    response's summed log-probability, over responses. Each is a run of masked positions.
  """
  total = masked_sum(logps, mask)
  before = jnp.pad(mask[:, :-1], ((0, 0), (1, 0)))
  sequences = jnp.sum(mask & ~before).astype(logps.dtype)
  return (-total, jnp.sum(mask).astype(logps.dtype)), {'sequence_logp': (total, sequences)}
