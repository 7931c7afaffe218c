"""From logical axis names to mesh axes: the one table, and abstract-first initialisation.

Modules name the axes of every parameter and activation ('embed', 'heads', ...); this table alone
says where they live. An axis whose size the mesh axes do not divide is replicated (three KV heads
over a tensor axis of two, say), so that any mesh runs any model.
"""

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# Ordered: a mesh axis is given to the first logical axis of an array that names it.
RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ('batch', ('data', 'fsdp')),
    ('length', ('sequence',)),
    ('vocab', ('tensor',)),
    ('heads', ('tensor',)),
    ('kv_heads', ('tensor',)),
    ('mlp', ('tensor',)),
    ('embed', ('fsdp',)),
    ('layers', ()),
    ('head_dim', ()),
    ('activation', ()),  # the width of activations: replicated, weights are gathered over fsdp
    ('rank', ()),  # LoRA's inner dimension
)

LogicalAxes = tuple[str | None, ...]


def partition_spec(axes: Sequence[str | None], shape: Sequence[int], mesh: Any) -> PartitionSpec:
  """The PartitionSpec of one array.

  Args:
    axes: logical name of each dimension, None for one that is never split.
    shape: size of each dimension.
    mesh: a Mesh or AbstractMesh with the axes of `sharding.mesh.AXES`.

  Raises:
    KeyError: a logical name that the table lacks.
  """
  table = dict(RULES)
  used: set[str] = set()
  spec: list[tuple[str, ...] | str | None] = []
  for name, size in zip(axes, shape, strict=True):
    if name is None:
      spec.append(None)
      continue
    mesh_axes = tuple(a for a in table[name] if mesh.shape[a] > 1 and a not in used)
    # Drop axes from the right until the rest divides the dimension.
    while mesh_axes and size % math.prod(mesh.shape[a] for a in mesh_axes):
      mesh_axes = mesh_axes[:-1]
    used.update(mesh_axes)
    spec.append(mesh_axes[0] if len(mesh_axes) == 1 else (mesh_axes or None))
  return PartitionSpec(*spec)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
  """Constrains an activation inside jit to the table; a no-op outside `jax.set_mesh`."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return x
  return jax.lax.with_sharding_constraint(x, partition_spec(axes, x.shape, mesh))


def logical_axes(boxed: Any) -> Any:
  """The tree of logical axis names of a tree of Flax's boxed parameters (arrays or shapes)."""

  def is_box(leaf: Any) -> bool:
    return isinstance(leaf, nn.LogicallyPartitioned)

  return jax.tree.map(
      lambda leaf: tuple(leaf.names) if is_box(leaf) else (None,) * leaf.ndim, boxed, is_leaf=is_box
  )


def named_shardings(abstract: Any, axes: Any, mesh: Mesh) -> Any:
  """NamedShardings for a tree.

  Args:
    abstract: tree of arrays or ShapeDtypeStructs.
    axes: tree of the same structure with a tuple of logical names at each leaf.
    mesh: where the arrays will live.
  """
  leaves, structure = jax.tree.flatten(abstract)
  names = structure.flatten_up_to(axes)
  specs = [
      NamedSharding(mesh, partition_spec(name, leaf.shape, mesh))
      for name, leaf in zip(names, leaves, strict=True)
  ]
  return jax.tree.unflatten(structure, specs)


def batch_sharding(mesh: Mesh, shape: Sequence[int]) -> NamedSharding:
  """Sharding of a host batch: first dimension over data and fsdp, second ([B, T]) over sequence."""
  axes: LogicalAxes = ('batch', 'length', *([None] * len(shape)))[: len(shape)]
  return NamedSharding(mesh, partition_spec(axes, shape, mesh))


def replicated(mesh: Mesh) -> NamedSharding:
  return NamedSharding(mesh, PartitionSpec())
