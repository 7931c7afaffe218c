"""Shapes of the presets against the published numbers of parameters."""

import math

import pytest

from acesearch_jax.models import layout, presets


@pytest.mark.parametrize(
    ('name', 'parameters'),
    [
        ('smollm2-135m-instruct', 134_515_008),
        ('qwen2.5-0.5b-instruct', 494_032_768),
        ('qwen2.5-1.5b-instruct', 1_543_714_304),
        ('qwen2.5-3b-instruct', 3_085_938_688),
        ('qwen2.5-7b-instruct', 7_615_616_512),
        ('qwen2.5-14b-instruct', 14_770_033_664),
        ('qwen2.5-32b-instruct', 32_763_876_352),
        ('llama-3.1-8b-instruct', 8_030_261_248),
    ],
)
def test_number_of_parameters(name, parameters):
  config = presets.PRESETS[name].config
  layers = {True: config.num_layers, False: 1}
  assert parameters == sum(
      layers[tensor.layered] * math.prod(tensor.shape) for tensor in layout.tensors(config)
  )
