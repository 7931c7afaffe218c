"""AdamW with a warm-up and a schedule."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

SCHEDULES = ('constant', 'linear', 'cosine')
# Parameters that weight decay leaves alone, by the last name of their path.
NOT_DECAYED = ('scale', 'bias')


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW (arXiv 1711.05101).

  Attributes:
    learning_rate: at the end of the warm-up.
    schedule: 'constant', or down to 0 just after the last step by a 'linear' or 'cosine' curve.
    warmup_share: share of the steps over which the rate rises linearly.
    b1, b2, eps: of Adam.
    weight_decay: decoupled; norms and biases are left alone.
    max_grad_norm: gradients are scaled down to this global norm; 0 for any norm.
  """

  learning_rate: float
  schedule: str = 'cosine'
  warmup_share: float = 0.05
  b1: float = 0.9
  b2: float = 0.999
  eps: float = 1e-8
  weight_decay: float = 0.0
  max_grad_norm: float = 1.0

  def __post_init__(self):
    if self.schedule not in SCHEDULES:
      raise ValueError(f"schedule '{self.schedule}' is none of {', '.join(SCHEDULES)}.")


class Optimizer(NamedTuple):
  """An optax transformation and the schedule inside it, apart for logging."""

  transformation: optax.GradientTransformation
  schedule: optax.Schedule


def learning_rate_schedule(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
  """The learning rate of update `step` (from 0). No step of the run has a rate of 0."""
  warmup = round(config.warmup_share * num_steps)

  def schedule(step: jax.Array) -> jax.Array:
    rising = (step + 1) / max(warmup, 1)
    progress = jnp.clip((step - warmup) / max(num_steps - warmup, 1), 0.0, 1.0)
    if config.schedule == 'constant':
      falling = 1.0
    elif config.schedule == 'linear':
      falling = 1 - progress
    else:
      falling = 0.5 * (1 + jnp.cos(jnp.pi * progress))
    return config.learning_rate * jnp.where(step < warmup, rising, falling)

  return schedule


def make_optimizer(config: OptimizerConfig, num_steps: int) -> Optimizer:
  """Clipping by global norm, then AdamW, for a run of `num_steps` updates."""

  def decayed(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in NOT_DECAYED, params)

  schedule = learning_rate_schedule(config, num_steps)
  clip = optax.clip_by_global_norm(config.max_grad_norm) if config.max_grad_norm else optax.identity()
  transformation = optax.chain(
      clip,
      optax.adamw(
          schedule,
          b1=config.b1,
          b2=config.b2,
          eps=config.eps,
          weight_decay=config.weight_decay,
          mask=decayed,
      ),
  )
  return Optimizer(transformation, schedule)
