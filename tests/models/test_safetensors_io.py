"""Hugging Face folders: what goes out comes back, and damage is told in one sentence."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from acesearch_jax.errors import UserError
from acesearch_jax.models import layout, safetensors_io, tiny
from acesearch_jax.models.tokenizer import Tokenizer

PARAMS = tiny.params(seed=5)
UNTIED = tiny.CONFIG.replace(tie_embeddings=False, qkv_bias=True, rope_theta=12_345.0, norm_eps=1e-6)


def random_params(config):
  rng = np.random.default_rng(0)
  return layout.build(config, lambda tensor, _: rng.standard_normal(tensor.stored_shape, np.float32))


@pytest.mark.parametrize('config', [tiny.CONFIG, UNTIED], ids=['tied', 'untied'])
def test_round_trip(tmp_path, config):
  params = random_params(config)
  safetensors_io.export_folder(tmp_path / 'out', config, params, tiny.tokenizer())
  assert safetensors_io.read_config(tmp_path / 'out') == config
  jax.tree.map(np.testing.assert_array_equal, safetensors_io.read_weights(tmp_path / 'out', config), params)
  assert Tokenizer.load(tmp_path / 'out').fingerprint == tiny.tokenizer().fingerprint
  assert [path.name for path in tmp_path.iterdir()] == ['out']


def test_stored_orientation(tmp_path):
  """One value of each kind of map, by index: published checkpoints hold [out, in]."""
  safetensors_io.export_folder(tmp_path / 'out', tiny.CONFIG, PARAMS, tiny.tokenizer())
  stored = safetensors.numpy.load_file(tmp_path / 'out' / 'model.safetensors')
  layers = PARAMS['layers']
  assert stored['model.layers.1.self_attn.q_proj.weight'][3 * 8 + 5, 7] == (
      layers['attention']['query']['kernel'][1, 7, 3, 5]
  )
  assert stored['model.layers.0.self_attn.o_proj.weight'][9, 2 * 8 + 6] == (
      layers['attention']['out']['kernel'][0, 2, 6, 9]
  )
  assert stored['model.layers.1.mlp.down_proj.weight'][4, 50] == layers['mlp']['down']['kernel'][1, 50, 4]
  assert stored['model.embed_tokens.weight'].shape == (264, 32)


def test_jax_arrays_in_bfloat16(tmp_path):
  params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), PARAMS)
  safetensors_io.export_folder(tmp_path / 'out', tiny.CONFIG, params, tiny.tokenizer())
  assert json.loads((tmp_path / 'out' / 'config.json').read_text())['dtype'] == 'bfloat16'
  read = safetensors_io.read_weights(tmp_path / 'out', tiny.CONFIG)
  jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, np.asarray(b, np.float32)), read, params)


def test_taken_folder_is_left_alone(tmp_path):
  (tmp_path / 'precious.txt').write_text('x')
  with pytest.raises(UserError, match='already there'):
    safetensors_io.export_folder(tmp_path, tiny.CONFIG, PARAMS, tiny.tokenizer())
  assert [path.name for path in tmp_path.iterdir()] == ['precious.txt']


def test_tree_that_does_not_fit(tmp_path):
  adapted = {**PARAMS, 'embed': {**PARAMS['embed'], 'lora_a': np.zeros((2, 2))}}
  with pytest.raises(UserError, match='embed/lora_a .* instead of absent; merge adapters'):
    safetensors_io.export_folder(tmp_path / 'out', tiny.CONFIG, adapted, tiny.tokenizer())
  with pytest.raises(UserError, match='embed/embedding is .*264, 32.* instead of .*300, 32'):
    wrong = tiny.CONFIG.replace(vocab_size=300)
    safetensors_io.export_folder(tmp_path / 'out', wrong, PARAMS, tiny.tokenizer())
  assert not list(tmp_path.iterdir())


def test_no_space(tmp_path):
  """A limit on the size of files stands in for a full disk."""
  script = (
      'import resource, signal, sys\n'
      'signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n'
      'resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n'
      'from acesearch_jax.errors import UserError\n'
      'from acesearch_jax.models import safetensors_io, tiny\n'
      'try:\n'
      '  safetensors_io.export_folder(sys.argv[1], tiny.CONFIG, tiny.params(), tiny.tokenizer())\n'
      'except UserError as error:\n'
      '  print(error)\n'
  )
  result = subprocess.run(
      [sys.executable, '-c', script, str(tmp_path / 'out')],
      env={**os.environ, 'PYTHONDONTWRITEBYTECODE': '1', 'JAX_PLATFORMS': 'cpu'},
      cwd=pathlib.Path(__file__).parents[2], capture_output=True, text=True,
  )
  assert result.stdout.startswith(f'Cannot write {tmp_path / "out"}'), result.stderr
  assert not list(tmp_path.iterdir())


@pytest.fixture
def folder(tmp_path):
  safetensors_io.export_folder(tmp_path / 'model', tiny.CONFIG, PARAMS, tiny.tokenizer())
  return tmp_path / 'model'


@pytest.mark.parametrize('kept', [0, 4, 500, 0.5, 0.999])
def test_truncated_weights(folder, kept):
  path = folder / 'model.safetensors'
  data = path.read_bytes()
  path.write_bytes(data[: kept if isinstance(kept, int) else int(kept * len(data))])
  with pytest.raises(UserError, match='model.safetensors is cut short or corrupt'):
    safetensors_io.read_weights(folder, tiny.CONFIG)


def test_missing_weights(folder):
  with pytest.raises(UserError, match='lacks the tensor lm_head.weight'):
    safetensors_io.read_weights(folder, tiny.CONFIG.replace(tie_embeddings=False))
  with pytest.raises(UserError, match='gate_proj.* has shape .64, 32. where config.json implies .65, 32.'):
    safetensors_io.read_weights(folder, tiny.CONFIG.replace(mlp_width=65))
  (folder / 'model.safetensors').unlink()
  with pytest.raises(UserError, match='No such file: .*model.safetensors'):
    safetensors_io.read_weights(folder, tiny.CONFIG)


def test_missing_shard(tmp_path):
  golden = os.path.join(os.path.dirname(__file__), 'golden', 'qwen2_untied')
  shutil.copytree(golden, tmp_path / 'model')
  (tmp_path / 'model' / 'model-00002-of-00005.safetensors').unlink()
  config = safetensors_io.read_config(tmp_path / 'model')
  with pytest.raises(UserError, match='No such file: .*model-00002'):
    safetensors_io.read_weights(tmp_path / 'model', config)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'model_type': 'gemma3_text'}, "model type 'gemma3_text' .supported: llama, qwen2."),
        ({'hidden_act': 'gelu'}, "activation 'gelu'"),
        ({'rope_parameters': {'rope_type': 'llama3', 'rope_theta': 5e5}}, "rotary scaling 'llama3'"),
        ({'rope_parameters': None, 'rope_scaling': {'type': 'yarn'}}, "rotary scaling 'yarn'"),
        ({'attention_bias': True}, 'attention_bias'),
        ({'mlp_bias': True}, 'mlp_bias'),
        ({'use_sliding_window': True}, 'use_sliding_window'),
        ({'quantization_config': {'quant_method': 'awq'}}, 'quantized weights'),
        ({'hidden_size': None}, "lacks 'hidden_size'"),
    ],
)
def test_unsupported_configurations(folder, changes, message):
  path = folder / 'config.json'
  config = json.loads(path.read_text()) | changes
  path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
  with pytest.raises(UserError, match=message):
    safetensors_io.read_config(folder)


def test_older_spelling_of_the_rotary_base(folder):
  path = folder / 'config.json'
  config = json.loads(path.read_text()) | {'rope_theta': 777.0, 'rope_scaling': None}
  del config['rope_parameters'], config['head_dim']
  path.write_text(json.dumps(config))
  assert safetensors_io.read_config(folder) == tiny.CONFIG.replace(rope_theta=777.0)
