"""What a training run carries from step to step, created sharded and abstract first."""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import optax

from acesearch_jax.models import lora
from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.models.decoder import Decoder, abstract_params
from acesearch_jax.sharding.rules import named_shardings, replicated
from acesearch_jax.training.optimizer import Optimizer

Params = Any


@flax.struct.dataclass
class TrainState:
  """A pytree.

  Attributes:
    step: [] int32, updates made.
    trainable: parameters that train, float32 (or wider): everything, or the adapters.
    frozen: the other parameters, {} when everything trains.
    opt_state: of the optimiser, over `trainable`.
  """

  step: jax.Array
  trainable: Params
  frozen: Params
  opt_state: Any

  @property
  def params(self) -> Params:
    """The whole tree, as the decoder takes it."""
    return lora.join(self.trainable, self.frozen)


def state_shardings(config: DecoderConfig, optimizer: Optimizer, mesh: jax.sharding.Mesh) -> TrainState:
  """The NamedSharding of every leaf; moments live where their parameters do."""
  return jax.tree.map(lambda leaf: leaf.sharding, abstract_state(config, optimizer, mesh))


def trainable_shardings(config: DecoderConfig, mesh: jax.sharding.Mesh) -> Params:
  """The NamedSharding of every parameter that trains, and of its gradient."""
  shapes, axes = abstract_params(config)
  return lora.split_trainable(named_shardings(shapes, axes, mesh), config)[0]


def abstract_state(config: DecoderConfig, optimizer: Optimizer, mesh: jax.sharding.Mesh) -> TrainState:
  """The state as ShapeDtypeStructs, each with its sharding; nothing is allocated."""
  shapes, axes = abstract_params(config)
  shardings = named_shardings(shapes, axes, mesh)
  shapes = jax.tree.map(
      lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
      shapes,
      shardings,
  )
  trainable, frozen = lora.split_trainable(shapes, config)
  trainable = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, _master_dtype(leaf.dtype), sharding=leaf.sharding),
      trainable,
  )
  scalar = replicated(mesh)

  def place(leaf: jax.ShapeDtypeStruct, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

  opt_state = optax.tree_map_params(
      optimizer.transformation,
      lambda leaf, param: place(leaf, param.sharding),
      jax.eval_shape(optimizer.transformation.init, trainable),
      trainable,
      transform_non_params=lambda leaf: place(leaf, scalar),
  )
  step = jax.ShapeDtypeStruct((), jnp.int32, sharding=scalar)
  return TrainState(step=step, trainable=trainable, frozen=frozen, opt_state=opt_state)


def create_state(
    config: DecoderConfig, params: Params, optimizer: Optimizer, mesh: jax.sharding.Mesh
) -> TrainState:
  """A state at step 0.

  The trainable parameters are copied (steps donate them), so `params` stays good; frozen ones are
  shared where they lie on the mesh already.

  Args:
    config: of the decoder; `lora_rank` decides what trains.
    params: the whole tree, adapters included (see `add_adapters`).
    optimizer: whose state to make.
    mesh: where to put it.
  """
  shardings = state_shardings(config, optimizer, mesh)
  trainable, frozen = lora.split_trainable(params, config)
  copy = jax.jit(
      lambda tree: jax.tree.map(lambda leaf: jnp.array(leaf, _master_dtype(leaf.dtype), copy=True), tree),
      out_shardings=shardings.trainable,
  )
  init = jax.jit(optimizer.transformation.init, out_shardings=shardings.opt_state)
  trainable = copy(jax.device_put(trainable, shardings.trainable))
  return TrainState(
      step=jax.device_put(jnp.zeros((), jnp.int32), shardings.step),
      trainable=trainable,
      frozen=jax.device_put(frozen, shardings.frozen),
      opt_state=init(trainable),
  )


def add_adapters(params: Params, config: DecoderConfig, key: jax.Array, mesh: jax.sharding.Mesh) -> Params:
  """`params` with fresh adapters of rank `config.lora_rank`, whose update is zero.

  Args:
    params: a scanned tree without adapters.
    config: of the model with adapters.
    key: decides their values.
    mesh: where to put them.
  """
  shapes, axes = abstract_params(config)
  adapters, _ = lora.split_trainable(shapes, config)
  adapter_axes, _ = lora.split_trainable(axes, config)

  def init(key: jax.Array) -> Params:
    tokens = jnp.zeros((1, 1), jnp.int32)
    whole = nn.unbox(Decoder(config).init(key, tokens, tokens))['params']
    return lora.split_trainable(whole, config)[0]  # XLA drops the rest

  init = jax.jit(init, out_shardings=named_shardings(adapters, adapter_axes, mesh))
  return lora.join(init(key), params)


def _master_dtype(dtype: Any) -> Any:
  """Updates are smaller than bfloat16 can add: what trains is held in float32 at least."""
  return jnp.promote_types(dtype, jnp.float32)
