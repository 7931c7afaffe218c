"""Drawing tokens from logits: penalty, temperature, top-k, top-p, min-p, each row with its own.

Every row's draw depends on that row alone, to the bit: work that only some rows ask for is skipped
when none does, and changes nothing for the others when one does.
"""

import flax.struct
import jax
import jax.numpy as jnp

# The nucleus is looked for among this many best tokens first; rows where it is larger are searched.
CANDIDATES = 512
CHUNK = 128


@flax.struct.dataclass
class Controls:
  """SamplingParams of B rows, as arrays [B]."""

  temperature: jax.Array
  top_p: jax.Array
  top_k: jax.Array
  min_p: jax.Array
  repetition_penalty: jax.Array


def sample(
    logits: jax.Array, uniform: jax.Array, controls: Controls, seen: jax.Array, active: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Draws one token a row.

  Args:
    logits: [B, V] float32.
    uniform: [B] float32 in [0, 1), the rows' random numbers.
    controls: of the rows.
    seen: [B, V] bool, tokens in the row's prompt or answer so far.
    active: [B] bool; the rest get some token, and cost nothing extra.

  Returns:
    tokens [B] int32, log-probabilities under the model [B] float32, and under the distribution drawn
    from [B] float32.
  """
  penalty = controls.repetition_penalty[:, None]
  penalised = jax.lax.cond(
      jnp.any(active & (controls.repetition_penalty != 1)),
      lambda: jnp.where(seen, jnp.where(logits < 0, logits * penalty, logits / penalty), logits),
      lambda: logits,
  )
  greedy = controls.temperature == 0
  scaled = penalised / jnp.where(greedy, 1.0, controls.temperature)[:, None]
  sorts = active & ~greedy & ((controls.top_k > 0) | (controls.top_p < 1))
  least = jax.lax.cond(
      jnp.any(sorts),
      lambda: jnp.where(sorts, _least_kept(scaled, controls, sorts), -jnp.inf),
      lambda: jnp.full(sorts.shape, -jnp.inf),
  )
  best = jnp.max(scaled, axis=-1)
  least = jnp.maximum(least, best + jnp.log(controls.min_p))
  kept = jnp.where(scaled >= least[:, None], scaled, -jnp.inf)
  weights = jnp.exp(kept - best[:, None])
  drawn, total = _draw(weights, uniform)
  tokens = jnp.where(greedy, jnp.argmax(penalised, axis=-1), drawn).astype(jnp.int32)

  def at_token(x):
    return jnp.take_along_axis(x, tokens[:, None], axis=-1)[:, 0]

  logps = at_token(logits) - jax.nn.logsumexp(logits, axis=-1)
  behaviour = jnp.where(greedy, 0.0, at_token(kept) - best - jnp.log(total))
  return tokens, logps, behaviour


def _draw(weights: jax.Array, uniform: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Inverts the cumulative distribution, first over chunks of the vocabulary, then inside one.

  One random number a row instead of one a token (Gumbel), which would cost more than the softmax.

  Args:
    weights: [B, V], not normalised, not negative.
    uniform: [B].

  Returns:
    Token ids [B] and total weights [B].
  """
  chunks = _chunks(weights)
  masses = chunks.sum(-1)
  chunk, before, total = _invert(masses, uniform * masses.sum(-1))
  inside = jnp.take_along_axis(chunks, chunk[:, None, None], axis=1)[:, 0]
  offset, _, _ = _invert(inside, uniform * total - before)
  return chunk * CHUNK + offset, total


def _invert(masses: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
  """First entry of masses [B, n] whose cumulative sum exceeds target [B], never one of mass 0.

  Returns:
    Its index [B], the sum before it [B], and the sum of all [B].
  """
  ends = jnp.cumsum(masses, axis=-1)
  positive = masses > 0
  hit = positive & (ends > target[:, None])
  last = masses.shape[-1] - 1 - jnp.argmax(positive[:, ::-1], axis=-1)  # where rounding leaves no hit
  index = jnp.where(hit.any(-1), jnp.argmax(hit, axis=-1), last)
  before = jnp.where(index > 0, jnp.take_along_axis(ends, jnp.maximum(index - 1, 0)[:, None], -1)[:, 0], 0.0)
  return index, before, ends[:, -1]


def _least_kept(scaled: jax.Array, controls: Controls, sorts: jax.Array) -> jax.Array:
  """The smallest logit [B] that top-k and top-p keep, of scaled logits [B, V]; ties are kept."""
  count = min(CANDIDATES, scaled.shape[-1])
  best = scaled.max(-1, keepdims=True)  # not a slice of `top`: XLA's CPU backend would sort everything
  top = jax.lax.top_k(scaled, count)[0]
  top_k = jnp.where(controls.top_k > 0, controls.top_k, scaled.shape[-1])
  limited = top_k <= count
  weights = jnp.where(jnp.arange(count) < top_k[:, None], jnp.exp(top - best), 0.0)
  ends = jnp.cumsum(weights, axis=-1)
  total = jnp.where(limited, ends[:, -1], jnp.exp(scaled - best).sum(-1))
  wanted = jnp.where(controls.top_p < 1, controls.top_p * total, jnp.inf)
  # A token stays when the mass before it is short of what is wanted; the best always stays.
  stays = (ends - weights < wanted[:, None]) & (weights > 0)
  last = jnp.maximum(jnp.sum(stays, axis=-1) - 1, 0)
  least = jnp.take_along_axis(top, last[:, None], axis=-1)[:, 0]
  found = limited | ((controls.top_k == 0) & (ends[:, -1] >= wanted))
  searched = jax.lax.cond(
      jnp.any(sorts & ~found), lambda: _search(scaled, top_k, controls.top_p), lambda: least
  )
  return jnp.where(found, least, searched)


def _search(scaled: jax.Array, top_k: jax.Array, top_p: jax.Array) -> jax.Array:
  """What `_least_kept` returns, for sets of any size: bisection over the bits of a float32 weight."""
  weights = _chunks(jnp.exp(scaled - scaled.max(-1, keepdims=True)))  # in [0, 1], 1 for the best

  def at_least(threshold):
    return weights >= jax.lax.bitcast_convert_type(threshold, jnp.float32)[:, None, None]

  def largest(keeps_enough):
    """Bits of the largest weight that `keeps_enough`, which holds at 0 and gets rarer above."""

    def step(_, bounds):
      low, high = bounds
      middle = low + (high - low) // 2
      holds = keeps_enough(middle)
      return jnp.where(holds, middle, low), jnp.where(holds, high, middle)

    above_one = jax.lax.bitcast_convert_type(jnp.float32(1), jnp.int32) + 1
    bounds = jnp.zeros(top_k.shape, jnp.int32), jnp.full(top_k.shape, above_one)
    return jax.lax.fori_loop(0, 30, step, bounds)[0]

  by_rank = jax.lax.cond(
      jnp.any((top_k > CANDIDATES) & (top_k < scaled.shape[-1])),
      lambda: largest(lambda t: at_least(t).sum(1).sum(-1) >= top_k),
      lambda: jnp.zeros(top_k.shape, jnp.int32),
  )
  weights = jnp.where(at_least(by_rank), weights, 0.0)
  wanted = jnp.where(top_p < 1, top_p * weights.sum(1).sum(-1), jnp.inf)
  by_mass = largest(lambda t: jnp.where(at_least(t), weights, 0.0).sum(1).sum(-1) >= wanted)
  least = jnp.maximum(by_rank, by_mass)
  kept = at_least(least) & (weights > 0)
  return jnp.where(kept, _chunks(scaled), jnp.inf).min((1, 2))


def _chunks(weights: jax.Array) -> jax.Array:
  """[B, V] as [B, n, CHUNK], filled up with zeros."""
  rows, vocab = weights.shape
  return jnp.pad(weights, ((0, 0), (0, -vocab % CHUNK))).reshape(rows, -1, CHUNK)
