"""Gradients on several meshes equal those on one device, in float64."""

import jax
import numpy as np
import pytest
import small

from acesearch_jax.sharding.mesh import make_mesh
from acesearch_jax.training.batching import BatchShape, make_micro_batches

MESHES = ['data:8', 'fsdp:4,tensor:2', 'data:2,fsdp:2,tensor:2']
SHAPE = BatchShape(8, 32)


def gradients(name, config, mesh):
  state, step = small.run(name, config, mesh)
  accumulator = small.accumulate(step, state, make_micro_batches(small.data(name, 7), SHAPE))
  wanted = jax.tree.map(lambda leaf: leaf.sharding, state.trainable)
  assert jax.tree.map(lambda leaf: leaf.sharding, accumulator.grads) == wanted
  return jax.tree.map(np.asarray, accumulator)


@pytest.mark.parametrize(
    'name, rank, meshes',
    [('sft', 0, MESHES), ('dpo', 2, MESHES), ('sft', 2, MESHES[2:]), ('dpo', 0, MESHES[2:])],
)
def test_gradients_equal_those_of_one_device(name, rank, meshes):
  with jax.enable_x64(True):
    config = small.CONFIG.replace(lora_rank=rank, dtype='float64', param_dtype='float64')
    want = gradients(name, config, small.MESH)
    for mesh in meshes:
      got = gradients(name, config, make_mesh(mesh))
      for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max(), err_msg=mesh)
