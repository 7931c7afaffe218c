"""Reductions over the positions that count.

Values outside a mask are replaced, never multiplied by zero, so that an infinity or a NaN there
reaches neither a result nor a gradient; denominators are clamped, so that an empty mask gives 0.
"""

import jax
import jax.numpy as jnp

Axis = int | tuple[int, ...] | None


def masked_sum(values: jax.Array, mask: jax.Array, axis: Axis = None) -> jax.Array:
  """Sum of `values` where `mask` (bool, broadcast with them) holds, over `axis` (default: all)."""
  return jnp.sum(jnp.where(mask, values, 0), axis=axis)


def masked_mean(values: jax.Array, mask: jax.Array, axis: Axis = None) -> jax.Array:
  """Mean of `values` where `mask` holds, over `axis`; 0 where it holds nowhere."""
  return masked_sum(values, mask, axis) / jnp.maximum(jnp.sum(mask, axis=axis), 1)
