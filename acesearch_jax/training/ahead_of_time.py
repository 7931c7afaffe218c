"""Compiles the real programs for a TPU topology on any machine, with the compiler that libtpu brings."""

import dataclasses
import math
import os
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from acesearch_jax.errors import UserError
from acesearch_jax.sharding.rules import batch_sharding
from acesearch_jax.training.batching import BatchShape
from acesearch_jax.training.objectives import Objective
from acesearch_jax.training.optimizer import Optimizer
from acesearch_jax.training.state import abstract_state
from acesearch_jax.training.step import Accumulator, make_train_step


@dataclasses.dataclass(frozen=True)
class Program:
  """What the compiler says of one program, per chip.

  Attributes:
    argument_bytes: parameters, optimiser state, batch, ...
    output_bytes: results.
    alias_bytes: of the results, those that take the place of donated arguments.
    temporary_bytes: in between.
    num_aliased: result buffers that alias an argument, by the HLO header.
    num_collectives: collective instructions in the HLO.
    largest_array: elements of the largest array on a chip at any time.
  """

  argument_bytes: int
  output_bytes: int
  alias_bytes: int
  temporary_bytes: int
  num_aliased: int
  num_collectives: int
  largest_array: int

  @property
  def total_bytes(self) -> int:
    """High-water mark."""
    return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temporary_bytes


def topology_devices(name: str) -> list[jax.Device]:
  """Devices of a TPU topology such as 'v5e:2x4', to lay a mesh over; none of them is there.

  Raises:
    UserError: libtpu is not installed, or does not know the topology.
  """
  os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')  # do not ask a metadata server that is not there
  from jax.experimental import topologies  # loads libtpu: only when asked to

  try:
    return list(topologies.get_topology_desc(platform='tpu', topology_name=name).devices)
  except Exception as error:  # the plugin raises what it likes
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise UserError(
        f"Cannot compile for TPU topology '{name}' ({reason}); install libtpu and name it like v5e:2x4."
    ) from error


def compile_program(jitted: Any, mesh: jax.sharding.Mesh, *arguments: Any) -> Program:
  """Compiles a jitted function for abstract arguments that carry their shardings on `mesh`."""
  with jax.set_mesh(mesh):
    compiled = jitted.lower(*arguments).compile()
  memory, text = compiled.memory_analysis(), compiled.as_text()
  header = text.split('\n', 1)[0]
  collectives = ('all-gather', 'all-reduce', 'reduce-scatter', 'all-to-all', 'collective-permute')
  return Program(
      argument_bytes=memory.argument_size_in_bytes,
      output_bytes=memory.output_size_in_bytes,
      alias_bytes=memory.alias_size_in_bytes,
      temporary_bytes=memory.temp_size_in_bytes,
      num_aliased=header.count('may-alias') + header.count('must-alias'),
      num_collectives=sum(text.count(f' {name}(') + text.count(f' {name}-start(') for name in collectives),
      largest_array=max(math.prod(map(int, dims.split(','))) for dims in re.findall(r'\w\[([\d,]+)\]', text)),
  )


def abstract_batch(
    mesh: jax.sharding.Mesh, rows: int, length: int, pairs: bool
) -> dict[str, jax.ShapeDtypeStruct]:
  """A micro-batch's shapes: of Examples, or of pairs."""
  shapes = {name: ((rows, length), jnp.int32) for name in ('tokens', 'positions', 'segment_ids')}
  shapes['loss_mask'] = ((rows, length), jnp.bool_)
  if pairs:
    references = ((rows, BatchShape(rows, length).examples_per_row), jnp.float32)
    shapes |= {f'reference_{which}_logps': references for which in ('chosen', 'rejected')}
  return {
      name: jax.ShapeDtypeStruct(shape, dtype, sharding=batch_sharding(mesh, shape))
      for name, (shape, dtype) in shapes.items()
  }


def compile_training(
    objective: Objective,
    optimizer: Optimizer,
    mesh: jax.sharding.Mesh,
    batch: dict[str, jax.ShapeDtypeStruct],
    names: Sequence[str] = ('accumulate', 'update'),
) -> dict[str, Program]:
  """Compiles the halves of a training step, without a weight in memory.

  Args:
    objective: as for `make_train_step`.
    optimizer: likewise.
    mesh: over `topology_devices`.
    batch: from `abstract_batch`.
    names: which of them.
  """
  step, state = make_train_step(objective, optimizer, mesh), abstract_state(objective.config, optimizer, mesh)
  scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=state.step.sharding)
  accumulator = Accumulator(state.trainable, scalar, scalar)
  arguments = {
      'accumulate': (state.trainable, state.frozen, accumulator, batch),
      'update': (state.step, state.trainable, state.opt_state, accumulator),
  }
  return {name: compile_program(step.jitted[name], mesh, *arguments[name]) for name in names}
