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
  # Where each position goes: a row's masked positions first, in order. Counting compiles in a moment,
  # a sort takes the TPU compiler minutes.
  count = jnp.sum(mask, axis=1, keepdims=True)
  place = jnp.where(mask, jnp.cumsum(mask, axis=1), count + jnp.cumsum(~mask, axis=1)) - 1
  order = jnp.zeros_like(place).at[jnp.arange(batch)[:, None], place].set(jnp.arange(length))

  def front(x: jax.Array) -> jax.Array:
    """[B, T, ...] to [steps, B, chunk, ...], masked positions first."""
    x = jnp.take_along_axis(x, order.reshape(batch, length, *[1] * (x.ndim - 2)), axis=1)
    x = jnp.pad(x, [(0, 0), (0, steps * chunk - length)] + [(0, 0)] * (x.ndim - 2))
    return jnp.moveaxis(x.reshape(batch, steps, chunk, *x.shape[2:]), 1, 0)

  # `weights` is what `unembed` closes over and a gradient is asked for, [] where the head is frozen.
  example = jax.ShapeDtypeStruct((batch, chunk, hidden.shape[-1]), hidden.dtype)
  logits_of, weights = jax.closure_convert(unembed, example)
  dtype = jax.eval_shape(unembed, example).dtype

  def score(weights, hidden, targets, mask):
    # Replaced before the product: whatever stands outside the mask gets a gradient of exactly zero.
    logits = logits_of(jnp.where(mask[..., None], hidden, 0), *weights)
    # A comparison instead of a gather: it stays local when the vocabulary is split over devices.
    chosen = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2) == targets[..., None]
    logps = jnp.sum(jnp.where(chosen, logits, 0), axis=-1) - jax.nn.logsumexp(logits, axis=-1)
    return jnp.where(mask, logps, 0)

  def skip(weights, hidden, targets, mask):
    return jnp.zeros((batch, chunk), dtype)

  @jax.custom_vjp
  def scores(weights, *chunks):
    """[steps, B, chunk] log-probabilities."""
    return jax.lax.map(lambda xs: jax.lax.cond(jnp.any(xs[2]), score, skip, weights, *xs), chunks)

  def forward(weights, *chunks):
    return scores(weights, *chunks), (weights, chunks)

  def backward(residuals, cotangents):
    weights, chunks = residuals

    def step(totals, xs):
      hidden, targets, mask, cotangent = xs

      def add(totals):
        _, pull = jax.vjp(lambda weights, hidden: score(weights, hidden, targets, mask), weights, hidden)
        by_weights, by_hidden = pull(cotangent)
        return jax.tree.map(jnp.add, totals, by_weights), by_hidden

      return jax.lax.cond(jnp.any(mask), add, lambda totals: (totals, jnp.zeros_like(hidden)), totals)

    zeros = jax.tree.map(jnp.zeros_like, weights)
    by_weights, by_hidden = jax.lax.scan(step, zeros, (*chunks, cotangents))
    return by_weights, by_hidden, None, None

  scores.defvjp(forward, backward)
  logps = scores(weights, front(hidden), front(targets), front(mask))
  logps = jnp.moveaxis(logps, 0, 1).reshape(batch, steps * chunk)
  return jnp.take_along_axis(logps, place, axis=1)
