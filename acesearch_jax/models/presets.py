"""The models known by name: their shapes, and where their weights are published."""

import dataclasses

from acesearch_jax.models import tiny
from acesearch_jax.models.config import DecoderConfig

SMOLLM2 = 'smollm2-135m-instruct'
TINY = 'tiny'


@dataclasses.dataclass(frozen=True)
class Preset:
  """One known model.

  Attributes:
    config: its shape.
    hub_id: where its weights are on the Hugging Face hub; '' for the two that are built in.
  """

  config: DecoderConfig
  hub_id: str = ''


def _qwen2(size: str, vocab_size: int, width: int, layers: int, heads: int, kv_heads: int, mlp_width: int):
  """Qwen2.5 (arXiv 2412.15115)."""
  config = DecoderConfig(
      vocab_size=vocab_size,
      width=width,
      num_layers=layers,
      num_heads=heads,
      num_kv_heads=kv_heads,
      head_dim=width // heads,
      mlp_width=mlp_width,
      rope_theta=1_000_000.0,
      norm_eps=1e-6,
      max_length=32_768,
      tie_embeddings=vocab_size == 151_936,
      qkv_bias=True,
  )
  return Preset(config, f'Qwen/Qwen2.5-{size}-Instruct')


PRESETS: dict[str, Preset] = {
    SMOLLM2: Preset(
        DecoderConfig(
            vocab_size=49_152,
            width=576,
            num_layers=30,
            num_heads=9,
            num_kv_heads=3,
            head_dim=64,
            mlp_width=1_536,
            rope_theta=100_000.0,
            norm_eps=1e-5,
            max_length=8_192,
        )
    ),
    TINY: Preset(tiny.CONFIG),
    'qwen2.5-0.5b-instruct': _qwen2('0.5B', 151_936, 896, 24, 14, 2, 4_864),
    'qwen2.5-1.5b-instruct': _qwen2('1.5B', 151_936, 1_536, 28, 12, 2, 8_960),
    'qwen2.5-3b-instruct': _qwen2('3B', 151_936, 2_048, 36, 16, 2, 11_008),
    'qwen2.5-7b-instruct': _qwen2('7B', 152_064, 3_584, 28, 28, 4, 18_944),
    'qwen2.5-14b-instruct': _qwen2('14B', 152_064, 5_120, 48, 40, 8, 13_824),
    'qwen2.5-32b-instruct': _qwen2('32B', 152_064, 5_120, 64, 40, 8, 27_648),
    # The shape only: its weights need a rotary scaling that the decoder lacks, and loading says so.
    'llama-3.1-8b-instruct': Preset(
        DecoderConfig(
            vocab_size=128_256,
            width=4_096,
            num_layers=32,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            mlp_width=14_336,
            rope_theta=500_000.0,
            norm_eps=1e-5,
            max_length=131_072,
            tie_embeddings=False,
        ),
        'meta-llama/Llama-3.1-8B-Instruct',
    ),
}
