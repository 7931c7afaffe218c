"""GGUF files: shape, weights and tokenizer of a Llama-architecture model.

Quantised tensors are dequantised to float32. GGUF stores the rows of query and key maps permuted for
the interleaved form of rotary embedding; they are brought back to the half-split form.
"""

import os
from typing import Any

import gguf
import numpy as np

from acesearch_jax.errors import UserError
from acesearch_jax.models import layout
from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.models.tokenizer import Tokenizer, byte_level_bpe

# Pre-tokenizers by GGUF's name, and whether they split digits one by one.
_SPLITS_DIGITS = {'smollm': True, 'gpt-2': False}


def read_gguf(path: str | os.PathLike) -> tuple[DecoderConfig, layout.Params, Tokenizer]:
  """Reads a whole model.

  Returns:
    The config, a float32 NumPy tree and the tokenizer.

  Raises:
    UserError: the file is missing, cut short, corrupt, or of an architecture, tokenizer or rotary
      scaling that is not supported.
  """
  if not os.path.isfile(path):
    raise UserError(f'No such file: {path}; check the path.')
  try:
    reader = gguf.GGUFReader(path)
    metadata = {
        name: field.contents() for name, field in reader.fields.items() if not name.startswith('GGUF.')
    }
    stored = {tensor.name: tensor for tensor in reader.tensors}
  except Exception as error:  # A broken header makes the library fail in any way at all.
    raise UserError(
        f'{path} is not a GGUF file, or is cut short or corrupt ({error}); fetch it again.'
    ) from error
  try:
    config = _config(path, metadata, stored)
    tokenizer = _tokenizer(path, metadata)
  except KeyError as error:
    raise UserError(f'{path} lacks the metadata {error}; it is no complete language model.') from error
  except UserError:
    raise
  except Exception as error:  # Values of the wrong type or size.
    raise UserError(f'{path} is corrupt: {error} in its metadata; fetch it again.') from error

  def read(tensor: layout.Tensor, i: int) -> np.ndarray:
    return _read_tensor(path, stored, tensor, tensor.gguf.format(i=i))

  return config, layout.build(config, read), tokenizer


def unpermute(array: np.ndarray, heads: int) -> np.ndarray:
  """Rows [heads · (H/2 · 2), in] from interleaved rotary order to half-split order, same shape."""
  rows, columns = array.shape
  return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _read_tensor(path: Any, stored: dict[str, Any], tensor: layout.Tensor, name: str) -> np.ndarray:
  if name not in stored:
    raise UserError(f'{path} lacks the tensor {name}; fetch it again.')
  source = stored[name]
  shape = tuple(int(size) for size in reversed(source.shape))
  if shape != tensor.stored_shape:
    raise UserError(
        f'{path}: {name} has shape {shape} where the metadata implies {tensor.stored_shape}; fetch it again.'
    )
  try:
    array = gguf.dequantize(source.data, source.tensor_type).astype(np.float32).reshape(shape)
  except (ValueError, NotImplementedError, KeyError) as error:
    raise UserError(f'{path}: cannot dequantise {name} ({error}); use another quantisation.') from error
  if not np.isfinite(array).all():
    raise UserError(f'{path} is corrupt: {name} has values that are not finite; fetch it again.')
  return unpermute(array, tensor.rotary_heads) if tensor.rotary_heads else array


def _config(path: Any, metadata: dict[str, Any], stored: dict[str, Any]) -> DecoderConfig:
  architecture = metadata['general.architecture']
  if architecture != 'llama':
    raise UserError(f'{path} has the architecture {architecture!r}; of GGUF files only llama can be read.')
  heads = metadata['llama.attention.head_count']
  width = metadata['llama.embedding_length']
  head_dim = metadata.get('llama.attention.key_length', width // heads)
  scaling = metadata.get('llama.rope.scaling.type', 'none')
  unsupported = [
      (scaling != 'none' or 'rope_freqs.weight' in stored, 'rotary scaling'),
      (metadata.get('llama.rope.dimension_count', head_dim) != head_dim, 'partial rotary embedding'),
      (metadata.get('llama.expert_count', 0) > 0, 'a mixture of experts'),
  ]
  for wrong, what in unsupported:
    if wrong:
      raise UserError(f'{path} has {what}, which is not supported; choose another model.')
  return DecoderConfig(
      vocab_size=len(metadata['tokenizer.ggml.tokens']),
      width=width,
      num_layers=metadata['llama.block_count'],
      num_heads=heads,
      num_kv_heads=metadata.get('llama.attention.head_count_kv', heads),
      head_dim=head_dim,
      mlp_width=metadata['llama.feed_forward_length'],
      rope_theta=float(metadata.get('llama.rope.freq_base', 10_000.0)),
      # Seven digits: stored in float32, 1e-5 reads as 9.999999747378752e-06.
      norm_eps=float(f'{metadata["llama.attention.layer_norm_rms_epsilon"]:.7g}'),
      max_length=metadata['llama.context_length'],
      tie_embeddings='output.weight' not in stored,
  )


def _tokenizer(path: Any, metadata: dict[str, Any]) -> Tokenizer:
  kind, splitter = metadata['tokenizer.ggml.model'], metadata.get('tokenizer.ggml.pre', '')
  if kind != 'gpt2' or splitter not in _SPLITS_DIGITS:
    raise UserError(
        f'{path} has the tokenizer {kind}/{splitter}; of GGUF files only gpt2 with '
        f'{" or ".join(_SPLITS_DIGITS)} can be read, so use the Hugging Face folder of the model.'
    )
  tokens = metadata['tokenizer.ggml.tokens']
  # Ordinary tokens have type 1, bytes 6; control and user-defined ones are matched whole.
  types = metadata['tokenizer.ggml.token_type']
  control = [token for token, type_ in zip(tokens, types, strict=True) if type_ not in (1, 6)]
  merges = [tuple(merge.split(' ')) for merge in metadata['tokenizer.ggml.merges']]
  return Tokenizer(
      byte_level_bpe(tokens, merges, control, split_digits=_SPLITS_DIGITS[splitter]),
      metadata.get('tokenizer.chat_template', ''),
      eos_id=metadata['tokenizer.ggml.eos_token_id'],
      bos_id=metadata.get('tokenizer.ggml.bos_token_id'),
      pad_id=metadata.get('tokenizer.ggml.padding_token_id'),
  )
