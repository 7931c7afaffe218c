"""The number formats that a model computes in, as `--dtype` names them.

On CPUs that multiply bfloat16 in hardware, XLA still converts whole caches and stacked residuals kept in
it, and loses more than the products gain; with activations and caches in float32 the gain is left.
"""

import jax

from acesearch_jax.models.config import DecoderConfig

# Name: (dtype, product_dtype) of `DecoderConfig`.
PRECISIONS = {'float32': ('float32', ''), 'bfloat16': ('bfloat16', ''), 'mixed': ('float32', 'bfloat16')}
# /proc/cpuinfo's names of what multiplies bfloat16.
_CPU_FLAGS = {'amx_bf16', 'avx512_bf16'}


def resolve(name: str) -> str:
  """What `auto` stands for on this machine: one of `PRECISIONS`; other names as they are."""
  if name != 'auto':
    return name
  if jax.default_backend() != 'cpu':
    return 'bfloat16'
  try:
    with open('/proc/cpuinfo') as file:
      return 'mixed' if _CPU_FLAGS & set(file.read().split()) else 'float32'
  except OSError:
    return 'float32'


def with_precision(config: DecoderConfig, name: str) -> DecoderConfig:
  """`config` computing in the format of that name, `auto` included."""
  dtype, product_dtype = PRECISIONS[resolve(name)]
  return config.replace(dtype=dtype, product_dtype=product_dtype)


def for_sampling(config: DecoderConfig) -> DecoderConfig:
  """The same products, with caches and activations in what the device is fast in."""
  if jax.default_backend() != 'cpu':
    return config
  return config.replace(dtype='float32', product_dtype=config.operand_dtype)
