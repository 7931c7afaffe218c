"""GGUF files: what is read, and what is refused in one sentence."""

import jax
import numpy as np
import pytest
from gguf_files import TOKENS, write_tiny

from acesearch_jax.errors import UserError
from acesearch_jax.models import gguf_reader, presets, tiny

PARAMS = tiny.params(seed=3)


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  return write_tiny(tmp_path_factory.mktemp('gguf') / 'tiny.gguf', PARAMS)


def test_reads_what_was_written(whole):
  config, params, tokenizer = gguf_reader.read_gguf(whole)
  assert config == tiny.CONFIG
  jax.tree.map(np.testing.assert_array_equal, params, PARAMS)
  assert [TOKENS[id_] for id_ in tokenizer.encode('<1>ab12')] == ['<', '1', '>', 'ab', '1', '2']
  prompt = tokenizer.chat_prompt([{'role': 'user', 'content': '<2>'}])
  assert [TOKENS[id_] for id_ in prompt] == ['<1>', '<', '2', '>', '<2>']
  assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, 2)


def test_untied_head(tmp_path):
  head = np.random.default_rng(0).standard_normal((264, 32), np.float32)
  path = write_tiny(tmp_path / 'untied.gguf', PARAMS, tensors={'output.weight': head})
  config, params, _ = gguf_reader.read_gguf(path)
  assert not config.tie_embeddings
  np.testing.assert_array_equal(params['head']['kernel'], head.T)


def test_unpermute_by_hand():
  # Two heads of four rows; the interleaved order alternates between the halves of a head.
  stored = np.array([[0], [2], [1], [3], [10], [12], [11], [13]])
  assert gguf_reader.unpermute(stored, 2).ravel().tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


def test_smollm2_has_the_shape_of_its_preset(smollm2):
  assert smollm2.config == presets.PRESETS[presets.SMOLLM2].config


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'architecture': 'gemma3'}, "architecture 'gemma3'.*only llama"),
        ({'skip': ['llama.block_count']}, 'lacks the metadata .*llama.block_count'),
        ({'skip': ['blk.1.attn_q.weight']}, 'lacks the tensor blk.1.attn_q.weight'),
        ({'metadata': {'llama.feed_forward_length': 63}}, 'ffn_gate.weight has shape'),
        ({'metadata': {'tokenizer.ggml.pre': 'llama-bpe'}}, 'tokenizer gpt2/llama-bpe'),
        ({'metadata': {'llama.rope.scaling.type': 'yarn'}}, 'rotary scaling'),
        ({'metadata': {'llama.expert_count': 4}}, 'mixture of experts'),
        ({'tensors': {'output_norm.weight': np.full(32, np.nan, np.float32)}}, 'output_norm.* not finite'),
        ({'metadata': {'llama.attention.head_count': 0}}, 'corrupt: .*in its metadata'),
        ({'metadata': {'llama.attention.head_count_kv': 2**31}}, 'attn_k.weight has shape'),
        ({'metadata': {'llama.block_count': 2**31}}, 'lacks the tensor blk.2147483647.attn_norm.weight'),
    ],
)
def test_refusals(tmp_path, changes, message):
  with pytest.raises(UserError, match=message):
    gguf_reader.read_gguf(write_tiny(tmp_path / 'bad.gguf', PARAMS, **changes))


@pytest.mark.parametrize('kept', [0, 3, 20, 1000, 0.5, 0.999])
def test_truncated(tmp_path, whole, kept):
  data = whole.read_bytes()
  path = tmp_path / 'cut.gguf'
  path.write_bytes(data[: kept if isinstance(kept, int) else int(kept * len(data))])
  with pytest.raises(UserError, match='cut.gguf.*fetch it again'):
    gguf_reader.read_gguf(path)


def test_flipped_bytes_in_the_header_never_crash(tmp_path, whole):
  data = np.frombuffer(whole.read_bytes(), np.uint8)
  rng = np.random.default_rng(0)
  path = tmp_path / 'flipped.gguf'
  refused = 0
  for _ in range(40):
    broken = data.copy()
    broken[rng.integers(0, 9000, 4)] ^= rng.integers(1, 256, 4, dtype=np.uint8)
    path.write_bytes(broken.tobytes())
    try:
      gguf_reader.read_gguf(path)
    except UserError:
      refused += 1
  assert refused >= 20


def test_missing_file(tmp_path):
  with pytest.raises(UserError, match='No such file'):
    gguf_reader.read_gguf(tmp_path / 'none.gguf')
