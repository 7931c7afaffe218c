"""The device mesh: four named axes, always present, each of size 1 unless asked for."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from acesearch_jax.errors import UsageError

# data: replicas of the weights. fsdp: weights and batch both split. tensor: heads, MLP width and
# vocabulary split. sequence: the time axis of activations split.
AXES = ('data', 'fsdp', 'tensor', 'sequence')


def parse_mesh(text: str, num_devices: int) -> dict[str, int]:
  """Parses `data:1,fsdp:4,tensor:2,sequence:1`; axes left out are 1, one size may be -1.

  Args:
    text: the flag's value; empty means all devices on fsdp.
    num_devices: devices to lay out.

  Returns:
    The size of every axis in `AXES`; their product is at most `num_devices`.

  Raises:
    UsageError: an unknown axis, a size that is no integer, or sizes that do not fit the devices.
  """
  sizes = dict.fromkeys(AXES, 1)
  for part in filter(None, (text or 'fsdp:-1').split(',')):
    name, _, size = part.strip().partition(':')
    if name not in AXES:
      raise UsageError(f"--mesh: unknown axis '{name}'; use {', '.join(AXES)}.")
    try:
      sizes[name] = int(size)
    except ValueError:
      raise UsageError(f"--mesh: the size of '{name}' is '{size}', must be an integer.") from None
    if sizes[name] < 1 and sizes[name] != -1:
      raise UsageError(f"--mesh: the size of '{name}' is {size}, must be positive or -1.")
  free = [name for name, size in sizes.items() if size == -1]
  if len(free) > 1:
    raise UsageError('--mesh: only one axis may have size -1.')
  fixed = math.prod(size for size in sizes.values() if size != -1)
  if free:
    if num_devices % fixed:
      raise UsageError(f'--mesh: {fixed} does not divide the {num_devices} devices.')
    sizes[free[0]] = num_devices // fixed
  elif fixed > num_devices:
    raise UsageError(f'--mesh asks for {fixed} devices, only {num_devices} are there.')
  return sizes


def make_mesh(text: str = '', devices: Sequence[jax.Device] | None = None) -> Mesh:
  """The mesh that `--mesh=text` describes, over the first devices of `devices` (default: all)."""
  devices = list(jax.devices() if devices is None else devices)
  sizes = parse_mesh(text, len(devices))
  count = math.prod(sizes.values())
  grid = np.asarray(devices[:count], dtype=object).reshape(tuple(sizes.values()))
  # Auto: XLA propagates shardings. JAX's newer default (Explicit) would ask for an out_sharding at
  # every gather and contraction.
  return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))
