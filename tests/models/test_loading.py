"""What a user may call a model, and the command that converts one."""

import os
import pathlib
import subprocess
import sys

import flax.linen as nn
import jax
import numpy as np
import pytest
from gguf_files import write_tiny

from acesearch_jax.errors import UserError
from acesearch_jax.models import loading, safetensors_io, tiny
from acesearch_jax.models.decoder import Decoder


def shapes(tree):
  return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)


def assert_same(model, other):
  assert model.config == other.config
  jax.tree.map(np.testing.assert_array_equal, model.params, other.params)


@pytest.fixture
def tiny_model():
  return loading.load_model('tiny')


@pytest.fixture
def folder(tmp_path, tiny_model):
  safetensors_io.export_folder(
      tmp_path / 'model', tiny_model.config, tiny_model.params, tiny_model.tokenizer
  )
  return tmp_path / 'model'


def test_tiny_is_a_tree_of_the_decoder(tiny_model):
  tokens = np.zeros((1, 4), np.int32)
  abstract = jax.eval_shape(Decoder(tiny_model.config).init, jax.random.key(0), tokens, tokens)
  assert shapes(nn.unbox(abstract)['params']) == shapes(tiny_model.params)
  assert_same(tiny_model, loading.load_model('tiny'))
  assert not np.array_equal(tiny.params(1)['embed']['embedding'], tiny_model.params['embed']['embedding'])


def test_dtype_is_that_of_the_computation(folder, tiny_model):
  model = loading.load_model(folder, dtype='bfloat16')
  assert model.config == tiny_model.config.replace(dtype='bfloat16')
  assert shapes(model.params) == shapes(tiny_model.params)


def test_folder(folder, tiny_model):
  model = loading.load_model(str(folder))
  assert_same(model, tiny_model)
  assert model.tokenizer.fingerprint == tiny_model.tokenizer.fingerprint
  assert model.name == str(folder)


def test_gguf_file(tmp_path, tiny_model):
  assert_same(loading.load_model(write_tiny(tmp_path / 'm.gguf', tiny_model.params)), tiny_model)


def test_hub_id(folder, tmp_path, monkeypatch, tiny_model):
  """The hub client finds a model in its cache without the network."""
  snapshot = tmp_path / 'hub' / 'models--owner--name' / 'snapshots' / ('0' * 40)
  snapshot.parent.mkdir(parents=True)
  folder.rename(snapshot)
  refs = snapshot.parents[1] / 'refs'
  refs.mkdir()
  (refs / 'main').write_text('0' * 40)
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path / 'hub'))
  monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
  assert_same(loading.load_model('owner/name'), tiny_model)
  with pytest.raises(UserError, match='Cannot fetch owner/other from the Hugging Face hub'):
    loading.load_model('owner/other')
  with pytest.raises(UserError, match='There is no model .*owner/na--me'):
    loading.load_model('owner/na--me')


@pytest.mark.parametrize('name', ['qwen-99', '/nowhere/model', './model', 'a/b/c', ''])
def test_unknown_names(name):
  with pytest.raises(UserError, match='No model .*smollm2-135m-instruct, tiny'):
    loading.load_model(name)


def test_things_that_are_no_model(tmp_path):
  (tmp_path / 'notes.txt').write_text('x')
  with pytest.raises(UserError, match='neither a GGUF file'):
    loading.load_model(tmp_path / 'notes.txt')
  with pytest.raises(UserError, match='no config.json'):
    loading.load_model(tmp_path)
  with pytest.raises(UserError, match='No such file'):
    loading.load_model(tmp_path / 'none.gguf')
  with pytest.raises(UserError, match='No such file'):
    loading.load_model(tmp_path / 'none.whl')


def test_tokenizer_of_another_model(tmp_path, tiny_model):
  config = tiny_model.config.replace(vocab_size=200)
  params = {**tiny_model.params, 'embed': {'embedding': tiny_model.params['embed']['embedding'][:200]}}
  safetensors_io.export_folder(tmp_path / 'model', config, params, tiny_model.tokenizer)
  with pytest.raises(UserError, match='264 tokens and the model 200'):
    loading.load_model(tmp_path / 'model')


def test_convert(tmp_path, tiny_model):
  source = write_tiny(tmp_path / 'tiny.gguf', tiny_model.params)
  result = subprocess.run(
      [sys.executable, '-m', 'launch.convert', f'--source={source}', f'--output={tmp_path / "out"}'],
      cwd=pathlib.Path(__file__).parents[2], env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
      capture_output=True, text=True,
  )
  assert result.returncode == 0, result.stderr
  assert_same(loading.load_model(tmp_path / 'out'), tiny_model)
