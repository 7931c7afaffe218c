"""Model FLOPs of training, for MFU.

MFU = (6 · N · tokens + attention) / (seconds · peak), where N are the parameters that multiply a token
(the head counted, the embedding table not), attention is taken at its causal half, and padding and
recomputation do not count. It is the same for adapters, which need fewer: a definition, not a tally.
"""

import numpy as np

from acesearch_jax.models.config import DecoderConfig

DEFINITION = '(6·N·tokens + causal attention) / (seconds·peak), N with the head, without the embedding table'


def training_flops(config: DecoderConfig, lengths: np.ndarray) -> float:
  """FLOPs of a forward and a backward pass over sequences of the given lengths.

  Scores and their product with the values take 4 · T² · heads · head_dim each layer forwards; half
  of that is causal, and the backward pass takes twice the forward one.
  """
  lengths = np.asarray(lengths, np.float64)
  attention = 6 * config.num_layers * config.num_heads * config.head_dim * np.sum(lengths**2)
  return float(6 * config.matmul_params * np.sum(lengths) + attention)
