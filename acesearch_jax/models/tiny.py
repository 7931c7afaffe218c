"""A model small enough for any test: two layers over bytes, random weights from a fixed seed."""

import numpy as np
from tokenizers import pre_tokenizers

from acesearch_jax.models import layout
from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.models.tokenizer import Tokenizer, byte_level_bpe

_CONTROL_TOKENS = ('<|endoftext|>', '<|im_start|>', '<|im_end|>', *(f'<|reserved_{i}|>' for i in range(5)))
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CONFIG = DecoderConfig(
    vocab_size=len(_CONTROL_TOKENS) + 256,
    width=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_width=64,
    max_length=8192,
)


def tokenizer() -> Tokenizer:
  """One id a byte after eight control tokens; like SmolLM2 it pads with its end-of-turn token."""
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  backend = byte_level_bpe([*_CONTROL_TOKENS, *alphabet], [], _CONTROL_TOKENS)
  return Tokenizer(backend, _CHAT_TEMPLATE, eos_id=2, bos_id=1, pad_id=2)


def params(seed: int = 0) -> layout.Params:
  """A random float32 tree for CONFIG, the same for the same seed."""

  def draw(tensor: layout.Tensor, i: int) -> np.ndarray:
    if tensor.path[-1] == 'scale':
      return np.ones(tensor.stored_shape, np.float32)
    key = [seed, i, *'/'.join(tensor.path).encode()]
    # Embeddings are drawn wide enough that the logits are visibly uneven.
    scale = tensor.stored_shape[-1] ** -0.5 if tensor.inputs else 0.1
    return scale * np.random.default_rng(key).standard_normal(tensor.stored_shape, np.float32)

  return layout.build(CONFIG, draw)
