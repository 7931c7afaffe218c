"""Writes small GGUF files of the tiny model, for tests."""

import gguf
import numpy as np
from tokenizers import pre_tokenizers

from acesearch_jax.models import layout, tiny

# Byte 0xff, which UTF-8 never uses, makes room for one merged token.
_BYTES = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {'ÿ'})
TOKENS = [*(f'<{i}>' for i in range(8)), *_BYTES, 'ab']


def write_tiny(path, params, architecture='llama', skip=(), metadata=None, tensors=None):
  """Writes a GGUF file with `params` in float32.

  Args:
    path: of the file; returned.
    params: tree for tiny.CONFIG.
    architecture: general.architecture.
    skip: names of tensors and metadata to leave out.
    metadata: further fields, or other values.
    tensors: further tensors, or other values.
  """
  config = tiny.CONFIG
  fields = {
      'llama.block_count': config.num_layers,
      'llama.context_length': config.max_length,
      'llama.embedding_length': config.width,
      'llama.feed_forward_length': config.mlp_width,
      'llama.attention.head_count': config.num_heads,
      'llama.attention.head_count_kv': config.num_kv_heads,
      'llama.rope.freq_base': config.rope_theta,
      'llama.attention.layer_norm_rms_epsilon': config.norm_eps,
      'tokenizer.ggml.model': 'gpt2',
      'tokenizer.ggml.pre': 'smollm',
      'tokenizer.ggml.tokens': TOKENS,
      'tokenizer.ggml.token_type': [3] * 8 + [1] * 256,
      'tokenizer.ggml.merges': ['a b'],
      'tokenizer.ggml.bos_token_id': 1,
      'tokenizer.ggml.eos_token_id': 2,
      'tokenizer.chat_template': "{{ '<1>' + messages[0]['content'] + '<2>' }}",
  } | (metadata or {})
  writer = gguf.GGUFWriter(path, architecture)
  add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
  for name, value in fields.items():
    if name not in skip:
      add[type(value)](name, value)
  for name, array in (_stored(params) | (tensors or {})).items():
    if name not in skip:
      writer.add_tensor(name, array)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def _stored(params):
  """The tree by GGUF's names, query and key rows interleaved as converters to GGUF do it."""
  stored = {}
  arrays = dict(layout.flatten(tiny.CONFIG, params))
  for tensor in layout.tensors(tiny.CONFIG):
    for i in range(tiny.CONFIG.num_layers if tensor.layered else 1):
      array = arrays[tensor.hf.format(i=i)]
      if tensor.rotary_heads:
        halves = array.reshape(tensor.rotary_heads, 2, -1, array.shape[1])
        array = np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(array.shape)
      stored[tensor.gguf.format(i=i)] = array
  return stored
