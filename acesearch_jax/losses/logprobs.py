"""Log-probabilities of given tokens, a chunk of the vocabulary product at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def token_logps(
    unembed: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    targets: jax.Array,
    mask: jax.Array,
    chunk: int,
) -> jax.Array:
  """Log-probability of each target under softmax(unembed(hidden)).

  No array of B·T·V elements exists in either pass: logits are made for `chunk` positions of each row
  at a time and made again in the backward pass. Positions outside the mask cost nothing: each row's
  masked positions are moved to its front, and chunks that are empty in every row are skipped. A
  response is often a tenth of its row, and the vocabulary is wide.

  Args:
    unembed: logits [B, C, V] (float32 or wider) of hidden states [B, C, D]; may close over weights.
    hidden: [B, T, D].
    targets: [B, T] int32, the token to score at each position.
    mask: [B, T] bool, the positions to score.
    chunk: positions of a row per step, C; memory is O(B·C·V).

  Returns:
    [B, T] in nats, 0 outside the mask, in the logits' dtype.
  """
  batch, length = targets.shape
  chunk = min(chunk, length)
  steps = -(-length // chunk)
  order = jnp.argsort(~mask, axis=1, stable=True)  # a row's masked positions first, in order

  def front(x: jax.Array) -> jax.Array:
    """[B, T, ...] to [steps, B, chunk, ...], masked positions first."""
    x = jnp.take_along_axis(x, order.reshape(batch, length, *[1] * (x.ndim - 2)), axis=1)
    x = jnp.pad(x, [(0, 0), (0, steps * chunk - length)] + [(0, 0)] * (x.ndim - 2))
    return jnp.moveaxis(x.reshape(batch, steps, chunk, *x.shape[2:]), 1, 0)

  def score(hidden: jax.Array, targets: jax.Array, mask: jax.Array) -> jax.Array:
    # Replaced before the product: whatever stands outside the mask gets a gradient of exactly zero.
    logits = unembed(jnp.where(mask[..., None], hidden, 0))
    # A comparison instead of a gather: it stays local when the vocabulary is split over devices.
    chosen = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2) == targets[..., None]
    logps = jnp.sum(jnp.where(chosen, logits, 0), axis=-1) - jax.nn.logsumexp(logits, axis=-1)
    return jnp.where(mask, logps, 0)

  dtype = jax.eval_shape(unembed, jax.ShapeDtypeStruct((batch, chunk, hidden.shape[-1]), hidden.dtype)).dtype

  @jax.checkpoint
  def score_unless_empty(hidden, targets, mask):
    empty = lambda *_: jnp.zeros((batch, chunk), dtype)  # noqa: E731
    return jax.lax.cond(jnp.any(mask), score, empty, hidden, targets, mask)

  _, logps = jax.lax.scan(
      lambda carry, xs: (carry, score_unless_empty(*xs)), None, (front(hidden), front(targets), front(mask))
  )
  logps = jnp.moveaxis(logps, 0, 1).reshape(batch, steps * chunk)
  return jnp.take_along_axis(logps, jnp.argsort(order, axis=1), axis=1)
