"""Hugging Face folders: read one into a parameter tree, write a tree as one."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from absl import logging

from acesearch_jax import files
from acesearch_jax.errors import UserError
from acesearch_jax.models import layout
from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.models.tokenizer import Tokenizer

WEIGHTS = 'model.safetensors'
_INDEX = 'model.safetensors.index.json'
_FAMILIES = ('llama', 'qwen2')


def read_config(directory: str | os.PathLike) -> DecoderConfig:
  """The shape of the model in a Hugging Face folder.

  Raises:
    UserError: config.json is missing or broken, or asks for something that the decoder lacks.
  """
  path = Path(directory) / 'config.json'
  hf = files.read_json(path)
  if not isinstance(hf, dict):
    raise UserError(f'{path} is not a model configuration; fetch it again.')
  family = hf.get('model_type')
  rope = hf.get('rope_parameters') or hf.get('rope_scaling') or {}
  rope_type = rope.get('rope_type', rope.get('type', 'default'))
  unsupported = [
      (family not in _FAMILIES, f'model type {family!r} (supported: {", ".join(_FAMILIES)})'),
      (hf.get('hidden_act', 'silu') != 'silu', f'activation {hf.get("hidden_act")!r}'),
      (rope_type != 'default', f'rotary scaling {rope_type!r}'),
      (family == 'llama' and bool(hf.get('attention_bias')), 'attention_bias'),
      (bool(hf.get('mlp_bias')), 'mlp_bias'),
      (bool(hf.get('use_sliding_window')), 'use_sliding_window'),
      (hf.get('quantization_config') is not None, 'quantized weights'),
  ]
  for wrong, what in unsupported:
    if wrong:
      raise UserError(f'{path}: {what} is not supported; choose another model.')
  try:
    heads = hf['num_attention_heads']
    return DecoderConfig(
        vocab_size=hf['vocab_size'],
        width=hf['hidden_size'],
        num_layers=hf['num_hidden_layers'],
        num_heads=heads,
        num_kv_heads=hf.get('num_key_value_heads') or heads,
        head_dim=hf.get('head_dim') or hf['hidden_size'] // heads,
        mlp_width=hf['intermediate_size'],
        rope_theta=float(rope.get('rope_theta', hf.get('rope_theta', 10_000.0))),
        norm_eps=hf.get('rms_norm_eps', 1e-6),
        max_length=hf.get('max_position_embeddings', 2048),
        tie_embeddings=hf.get('tie_word_embeddings', False),
        qkv_bias=family == 'qwen2',
    )
  except KeyError as error:
    raise UserError(f'{path} lacks {error}; fetch it again.') from error


def read_weights(directory: str | os.PathLike, config: DecoderConfig) -> layout.Params:
  """The weights of a Hugging Face folder, one file or sharded, as a float32 tree.

  Raises:
    UserError: a file or tensor is missing or cut short, or has another shape than the config says.
  """
  directory = Path(directory)
  with contextlib.ExitStack() as stack:
    where: dict[str, Any] = {}
    for path in _weight_files(directory):
      handle = stack.enter_context(_open(path))
      where |= dict.fromkeys(handle.keys(), handle)

    def read(tensor: layout.Tensor, i: int) -> np.ndarray:
      name = tensor.hf.format(i=i)
      if name not in where:
        raise UserError(f'{directory} lacks the tensor {name}; fetch the model again.')
      array = where[name].get_tensor(name)
      if array.shape != tensor.stored_shape:
        raise UserError(
            f'{directory}: {name} has shape {array.shape} where config.json implies {tensor.stored_shape}; '
            'weights and config.json belong to different models.'
        )
      return array

    return layout.build(config, read)


def _weight_files(directory: Path) -> list[Path]:
  index = directory / _INDEX
  if not index.exists():
    return [directory / WEIGHTS]
  names = files.read_json(index).get('weight_map', {}).values()
  return [directory / name for name in sorted(set(names))]


def _open(path: Path) -> Any:
  try:
    return safetensors.safe_open(path, framework='numpy')
  except FileNotFoundError as error:
    raise UserError(f'No such file: {path}; fetch the model again.') from error
  except (safetensors.SafetensorError, OSError) as error:
    raise UserError(f'{path} is cut short or corrupt ({error}); delete it and fetch it again.') from error


def export_folder(
    directory: str | os.PathLike, config: DecoderConfig, params: layout.Params, tokenizer: Tokenizer
) -> None:
  """Writes a folder that transformers and `loading.load_model` read: weights, config and tokenizer.

  The folder appears whole or not at all, and its weights have been read back and compared.

  Args:
    directory: local; must not exist yet, or be empty.
    config: the model's shape.
    params: the tree without adapters, NumPy or JAX arrays; dtypes are kept.
    tokenizer: goes along.

  Raises:
    UserError: the folder is taken, the disk full, or the tree does not fit the config.
  """
  directory = Path(directory)
  if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
    raise UserError(f'{directory} is already there; delete it or choose another folder.')
  stored = dict(layout.flatten(config, params))
  temporary = directory.parent / f'{directory.name}.tmp-{os.getpid()}'
  try:
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    safetensors.numpy.save_file(stored, temporary / WEIGHTS, metadata={'format': 'pt'})
    _check_written(temporary / WEIGHTS, stored)
    dtype = str(stored['model.norm.weight'].dtype)
    files.write_json(temporary / 'config.json', _hf_config(config, tokenizer, dtype))
    tokenizer.save(temporary)
    shutil.copymode(temporary / 'config.json', temporary / WEIGHTS)  # The library makes it private.
    temporary.replace(directory)
  except (OSError, safetensors.SafetensorError) as error:
    raise UserError(
        f'Cannot write {directory} ({error}); free some space or choose another folder.'
    ) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
  logging.info('Wrote %s (%d tensors).', directory, len(stored))


def _check_written(path: Path, stored: dict[str, np.ndarray]) -> None:
  """Bit by bit: a writer that mistakes memory order leaves a file that loads and is wrong."""
  for name, written in _tensors(path):
    if written.dtype != stored[name].dtype or written.tobytes() != stored[name].tobytes():
      raise RuntimeError(f'{path}: {name} was not written as it is in memory.')


def _tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
  with _open(path) as handle:
    for name in handle.keys():
      yield name, handle.get_tensor(name)


def _hf_config(config: DecoderConfig, tokenizer: Tokenizer, dtype: str) -> dict[str, Any]:
  family, architecture = ('qwen2', 'Qwen2ForCausalLM') if config.qkv_bias else ('llama', 'LlamaForCausalLM')
  return {
      'architectures': [architecture],
      'model_type': family,
      'hidden_act': 'silu',
      'vocab_size': config.vocab_size,
      'hidden_size': config.width,
      'num_hidden_layers': config.num_layers,
      'num_attention_heads': config.num_heads,
      'num_key_value_heads': config.num_kv_heads,
      'head_dim': config.head_dim,
      'intermediate_size': config.mlp_width,
      # Both spellings: releases of transformers before and after 5 read different ones.
      'rope_theta': config.rope_theta,
      'rope_parameters': {'rope_type': 'default', 'rope_theta': config.rope_theta},
      'rms_norm_eps': config.norm_eps,
      'max_position_embeddings': config.max_length,
      'tie_word_embeddings': config.tie_embeddings,
      'bos_token_id': tokenizer.bos_id,
      'eos_token_id': tokenizer.eos_id,
      'pad_token_id': tokenizer.pad_id,
      'dtype': dtype,
      'torch_dtype': dtype,
  }
