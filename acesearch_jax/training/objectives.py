"""Where the decoder meets a loss: what the training step differentiates."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from acesearch_jax.losses.dpo import dpo_loss
from acesearch_jax.losses.logprobs import token_logps
from acesearch_jax.losses.masked import masked_sum
from acesearch_jax.losses.sft import sft_loss
from acesearch_jax.models.attention import SEGMENT_GROUP
from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.models.decoder import Decoder, unembed
from acesearch_jax.training.batching import CHOSEN, REJECTED

Params = Any
Batch = dict[str, jax.Array]
Sums = dict[str, tuple[jax.Array, jax.Array]]

# Tokens whose logits exist at one time, over all rows: 25 MB in float32 at a vocabulary of 49,152.
LOGIT_TOKENS = 128


def response_logps(
    params: Params, config: DecoderConfig, batch: Batch, logit_tokens: int = LOGIT_TOKENS
) -> tuple[jax.Array, jax.Array]:
  """Log-probability of every response token, at the position that predicts it.

  Args:
    params: the decoder's, whole.
    config: of the decoder.
    batch: tokens, positions, segment_ids and loss_mask [B, T], see `batching.make_micro_batches`.
    logit_tokens: tokens whose logits exist at one time.

  Returns:
    ([B, T] nats, [B, T] bool): entry t is about token t + 1.
  """
  tokens = batch['tokens']
  hidden, _ = Decoder(config).apply({'params': params}, tokens, batch['positions'], batch['segment_ids'])
  targets = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))
  mask = jnp.pad(batch['loss_mask'][:, 1:], ((0, 0), (0, 1)))
  chunk = max(1, logit_tokens // tokens.shape[0])
  return token_logps(partial(unembed, params, config), hidden, targets, mask, chunk), mask


def pair_logps(
    params: Params, config: DecoderConfig, batch: Batch, logit_tokens: int = LOGIT_TOKENS
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Summed log-probabilities of both answers of each pair.

  Returns:
    chosen [B, E] and rejected [B, E] (nats), and chosen_tokens [B, E], 0 where a row has fewer pairs.
  """
  logps, mask = response_logps(params, config, batch, logit_tokens)
  firsts = SEGMENT_GROUP * jnp.arange(batch['reference_chosen_logps'].shape[1])
  # The token before an answer is repeated in the answer's own segment, so the predicting position and
  # the predicted token have the same segment.
  segments = batch['segment_ids'][..., None]
  chosen, rejected = (mask[..., None] & (segments == firsts + which) for which in (CHOSEN, REJECTED))
  logps = logps[..., None]
  return masked_sum(logps, chosen, 1), masked_sum(logps, rejected, 1), jnp.sum(chosen, axis=1)


@dataclasses.dataclass(frozen=True)
class SftObjective:
  """Cross-entropy of the response; the denominator is its tokens."""

  config: DecoderConfig
  logit_tokens: int = LOGIT_TOKENS

  def __call__(self, params: Params, batch: Batch) -> tuple[tuple[jax.Array, jax.Array], Sums]:
    return sft_loss(*response_logps(params, self.config, batch, self.logit_tokens))


@dataclasses.dataclass(frozen=True)
class DpoObjective:
  """`dpo_loss`; the denominator is pairs.

  Batches have reference_chosen_logps and reference_rejected_logps [B, E]. For beta, gamma, loss_type and
  label_smoothing see `dpo_loss`.
  """

  config: DecoderConfig
  beta: float
  gamma: float = 0.0
  loss_type: str = 'sigmoid'
  label_smoothing: float = 0.0
  logit_tokens: int = LOGIT_TOKENS

  def __call__(self, params: Params, batch: Batch) -> tuple[tuple[jax.Array, jax.Array], Sums]:
    chosen, rejected, chosen_tokens = pair_logps(params, self.config, batch, self.logit_tokens)
    return dpo_loss(
        chosen,
        rejected,
        batch['reference_chosen_logps'],
        batch['reference_rejected_logps'],
        chosen_tokens,
        chosen_tokens > 0,
        beta=self.beta,
        gamma=self.gamma,
        loss_type=self.loss_type,
        label_smoothing=self.label_smoothing,
    )


# Frozen and compared by value: the same objective in two stages is compiled once.
Objective = SftObjective | DpoObjective
