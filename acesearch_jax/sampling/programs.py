"""The sampler's device programs: prefill pages, seat a prompt in a slot, decode.

Keys and values live in pages of one pool, those of prompts and those that decoding fills alike. A token's
page and place there follow from its position, so how decoding is cut into calls, who sits in the other
slots and which pages a sequence has do not change its bits.

Rows, slots and pages are split into lanes, one for each share of the batch axes of the mesh: a sequence
stays in its lane, whose pages are on the same devices.

Dimension letters as in `models.attention`, and: B slots, R rows of a prefill, all lanes together.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from acesearch_jax.models.attention import Past
from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.models.decoder import Decoder, abstract_params, unembed, unstack_layers
from acesearch_jax.sampling.distribution import Controls, sample
from acesearch_jax.sharding.rules import named_shardings, partition_spec

State = dict[str, Any]
Pool = tuple[jax.Array, jax.Array]


def num_lanes(mesh: Mesh) -> int:
  """E: into how many parts a batch is split over `mesh`."""
  return mesh.shape['data'] * mesh.shape['fsdp']


@functools.lru_cache
def programs(
    config: DecoderConfig,
    mesh: Mesh,
    num_slots: int,
    page_size: int,
    num_pages: int,
    decode_steps: int,
    stop_shape: tuple[int, int],
) -> 'Programs':
  """`Programs` of these sizes, the same ones each time: a second engine compiles nothing again."""
  return Programs(config, mesh, num_slots, page_size, num_pages, decode_steps, stop_shape)


class Programs:
  """Jitted functions over one model, mesh and set of fixed sizes.

  A pool is (keys, values), [E, L, P, K, S, H] each. Pool and state are donated: every program returns
  their successors.
  """

  def __init__(
      self,
      config: DecoderConfig,
      mesh: Mesh,
      num_slots: int,
      page_size: int,
      num_pages: int,
      decode_steps: int,
      stop_shape: tuple[int, int],
  ):
    """Args:
      config: of the model; `scan_layers` and `tie_embeddings` say how layers and head are held here.
      mesh: where everything lives.
      num_slots: B, a multiple of the lanes.
      page_size: S, also the tokens a prefill row takes.
      num_pages: P, of one lane.
      decode_steps: most tokens a slot gets in one call.
      stop_shape: stop sequences a request may have, tokens each.
    """
    self.config = config
    self.mesh = mesh
    self._decoder = Decoder(config)
    self._num_slots = num_slots
    self._num_pages = num_pages
    self._decode_steps = decode_steps
    self._stop_shape = stop_shape
    self._lanes = num_lanes(mesh)
    self._pool_shape = (
        self._lanes, config.num_layers, num_pages, config.num_kv_heads, page_size, config.head_dim
    )  # fmt: skip
    shapes, axes = abstract_params(config)
    self.params_shardings = named_shardings(shapes, axes, mesh)
    spec = partition_spec(('batch', None, None, 'kv_heads', None, None), self._pool_shape, mesh)
    self._pool_shardings = (NamedSharding(mesh, spec),) * 2
    self._state_shardings = self._shardings(jax.eval_shape(self._make_state))
    self._jitted: list[Any] = []
    pool, state = self._pool_shardings, self._state_shardings
    # Weights for decoding from a scanned tree, with or without a head of its own.
    self.load = self._jit(self._load, out=self.params_shardings)
    self.make_pool = self._jit(self._make_pool, out=pool)
    self.make_state = self._jit(self._make_state, out=state)
    self.prefill = self._jit(self._prefill, out=pool, donate=(1,))
    self.seat = self._jit(self._seat, out=(state, pool), donate=(0, 1))
    self.decode = self._jit(self._decode, out=(state, pool, None), donate=(1, 2))
    self.cancel = self._jit(self._cancel, out=state, donate=(0,))

  def abstract_decode(self, context: int) -> tuple[Any, tuple[Any, ...]]:
    """The jitted decode function and its arguments as shapes with shardings, to compile ahead of time.

    Args:
      context: longest sequence in tokens.
    """
    scanned, _ = abstract_params(self.config.replace(scan_layers=True))

    def place(shape, sharding):
      return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    params = jax.tree.map(place, jax.eval_shape(self._load, scanned), self.params_shardings)
    state = jax.tree.map(place, jax.eval_shape(self._make_state), self._state_shardings)
    pool = jax.tree.map(place, jax.eval_shape(self._make_pool), self._pool_shardings)
    table = jax.ShapeDtypeStruct((self._num_slots, -(-context // self._pool_shape[4])), jnp.int32)
    return self.decode.jitted, (params, state, pool, table, jax.ShapeDtypeStruct((), jnp.bool_))

  @property
  def compilations(self) -> int:
    return sum(function._cache_size() for function in self._jitted)

  def _jit(self, function: Callable, out: Any, donate: tuple[int, ...] = ()) -> Callable:
    jitted = jax.jit(function, donate_argnums=donate, out_shardings=out)
    self._jitted.append(jitted)

    def call(*arguments):
      with jax.set_mesh(self.mesh):
        return jitted(*arguments)

    call.jitted = jitted
    return functools.update_wrapper(call, function)

  def _shardings(self, state: State) -> State:
    shardings = {}
    for name, value in state.items():
      rest = ('vocab',) if name == 'seen' else (None,) * (value.ndim - 1)
      shardings[name] = NamedSharding(self.mesh, partition_spec(('batch', *rest), value.shape, self.mesh))
    return shardings

  # The programs.

  def _load(self, params: Any) -> Any:
    """The weights as decoding reads them: what enters products is rounded once, not at every step."""
    tied = self.config.tie_embeddings
    if not tied and 'head' not in params:
      params = params | {'head': {'kernel': params['embed']['embedding'].T}}

    def rounded(path, leaf):
      operand = path[-1].key == 'kernel' or (path[-1].key == 'embedding' and tied)
      return leaf.astype(self.config.operand_dtype) if operand else leaf

    params = jax.tree_util.tree_map_with_path(rounded, params)
    return params if self.config.scan_layers else unstack_layers(params, self.config.num_layers)

  def _make_pool(self) -> Pool:
    """Pages without content."""
    return tuple(jnp.zeros(self._pool_shape, self.config.dtype) for _ in range(2))

  def _make_state(self) -> State:
    """Empty slots."""
    slots = self._num_slots
    return {
        'length': jnp.zeros(slots, jnp.int32),  # tokens in the slot's pages
        'token': jnp.zeros(slots, jnp.int32),  # the one after them, not computed yet
        'active': jnp.zeros(slots, bool),
        'key': jnp.zeros((slots, 2), jnp.uint32),
        'drawn': jnp.zeros(slots, jnp.int32),  # tokens of the answer so far
        'limit': jnp.zeros(slots, jnp.int32),  # and at most
        'stops': jnp.full((slots, *self._stop_shape), -1, jnp.int32),  # right-aligned
        'tail': jnp.full((slots, self._stop_shape[1]), -1, jnp.int32),  # the answer's last tokens
        'temperature': jnp.ones(slots, jnp.float32),
        'top_p': jnp.ones(slots, jnp.float32),
        'top_k': jnp.zeros(slots, jnp.int32),
        'min_p': jnp.zeros(slots, jnp.float32),
        'repetition_penalty': jnp.ones(slots, jnp.float32),
        'seen': jnp.zeros((slots, self.config.vocab_size), bool),
    }

  def _apply(self, params, tokens, pool, table, lengths):
    """Hidden states [B, T, D] of tokens [B, T] that come after `lengths` [B], and their keys and values."""
    positions = lengths[:, None] + jnp.arange(tokens.shape[1])
    past = Past(*pool, table, lengths)
    return self._decoder.apply({'params': params}, tokens, positions, past=past)

  def _by_lane(self, x: jax.Array) -> jax.Array:
    return x.reshape(self._lanes, -1, *x.shape[1:])

  def _prefill(self, params, pool, tokens, starts, table, write):
    """Computes R pages.

    Args:
      params: the model.
      pool: of pages.
      tokens: [R, S] int32.
      starts: [R] int32, tokens before the page.
      table: [R, n] int32, the pages before.
      write: [R] int32, where the result goes; P for rows without work.
    """
    _, new = self._apply(params, tokens, pool, table, starts)

    def put(lane, fresh, write):  # [L, P, K, S, H], [R / E, L, K, S, H], [R / E]
      return lane.at[:, write].set(fresh.swapaxes(0, 1), mode='drop')

    def scatter(pool, fresh):  # fresh: [L, R, S, K, H]
      return jax.vmap(put)(pool, self._by_lane(fresh.transpose(1, 0, 3, 2, 4)), self._by_lane(write))

    return tuple(scatter(*pair) for pair in zip(pool, new, strict=True))

  def _seat(self, state, pool, slot, row, source, target):
    """Seats at most one sequence a lane.

    Args:
      state: the slots.
      pool: of pages.
      slot: [E] int32 of the lane's; too large for a lane that seats none.
      row: what `state` holds a slot, [E, ...].
      source: [E] int32, a page that the sequence shares and will go on writing.
      target: [E] int32, its own copy; P for none.
    """

    def put(old, slot, new):
      return old.at[slot].set(new, mode='drop')

    def copy(lane, source, target):  # [L, P, K, S, H]
      return lane.at[:, target].set(lane[:, source], mode='drop')

    changed = {
        name: jax.vmap(put)(self._by_lane(state[name]), slot, value).reshape(state[name].shape)
        for name, value in row.items()
    }
    return state | changed, tuple(jax.vmap(copy)(half, source, target) for half in pool)

  def _cancel(self, state, slot):
    """Makes a slot, [] int32 of all, inactive."""
    return {**state, 'active': state['active'].at[slot].set(False)}

  def _decode(self, params, state, pool, table, leave_early):
    """Samples up to `decode_steps` tokens a slot.

    Args:
      params: the model.
      state: the slots.
      pool: of pages.
      table: [B, n] int32, each slot's pages, for the tokens to come too.
      leave_early: bool; return as soon as a slot is free.

    Returns:
      The state, the pool, and arrays: 'tokens', 'logps', 'behaviour_logps' [B, decode_steps], 'counts'
      [B] (how many of them), 'stopped' [B] (a stop sequence came), 'active' [B] (goes on).
    """
    shape = (self._num_slots, self._decode_steps)
    out = {
        'tokens': jnp.zeros(shape, jnp.int32),
        'logps': jnp.zeros(shape, jnp.float32),
        'behaviour_logps': jnp.zeros(shape, jnp.float32),
        'stopped': jnp.zeros(shape[:1], bool),
    }
    started = state['active']

    def go_on(carry):
      i, state, _, _ = carry
      active = state['active']
      freed = jnp.any(started & ~active)
      return (i < self._decode_steps) & jnp.any(active) & ~(leave_early & freed)

    def step(carry):
      i, state, pool, out = carry
      state, pool, drawn, stopped = self._decode_one(params, state, pool, table)
      for name, column in drawn.items():
        out[name] = jax.lax.dynamic_update_slice_in_dim(out[name], column[:, None], i, axis=1)
      return i + 1, state, pool, out | {'stopped': out['stopped'] | stopped}

    before = state['drawn']
    _, state, pool, out = jax.lax.while_loop(go_on, step, (0, state, pool, out))
    return state, pool, out | {'counts': state['drawn'] - before, 'active': state['active']}

  def _decode_one(self, params, state, pool, table):
    """One token for every active slot: computes the one before, draws the next, looks for a stop."""
    active, length = state['active'], state['length']
    lengths = jnp.where(active, length, 0)
    hidden, new = self._apply(params, state['token'][:, None], pool, table, lengths)
    slots = jnp.arange(self._num_slots)

    logits = unembed(params, self.config, hidden)[:, 0]
    keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(state['key']), state['drawn'])
    uniform = jax.vmap(jax.random.uniform)(keys)
    controls = Controls(**{name: state[name] for name in Controls.__dataclass_fields__})
    token, logps, behaviour = sample(logits, uniform, controls, state['seen'], active)

    size = self._pool_shape[4]
    page = table[slots, length // size]
    # Out of range is dropped. The token's sign is no news, but makes the write wait for the last layer's
    # reads: without that dependency XLA's CPU backend copies the whole pool first.
    page = jnp.where(active & (token >= 0), page, self._num_pages)

    def put(lane, fresh, page, place):  # [L, P, K, S, H], [B / E, L, K, H], [B / E]
      return lane.at[:, page, :, place].set(fresh, mode='drop')

    def append(pool, fresh):  # fresh: [L, B, 1, K, H]
      fresh = self._by_lane(fresh[:, :, 0].swapaxes(0, 1))
      return jax.vmap(put)(pool, fresh, self._by_lane(page), self._by_lane(length % size))

    pool = tuple(append(*pair) for pair in zip(pool, new, strict=True))
    tail = jnp.concatenate([state['tail'][:, 1:], token[:, None]], axis=1)
    stops = state['stops']
    stopped = jnp.any(
        jnp.all((stops == tail[:, None]) | (stops < 0), axis=-1) & jnp.any(stops >= 0, axis=-1), axis=-1
    )
    stopped &= active
    drawn = state['drawn'] + active
    changed = {
        'length': length + active,
        'token': token,
        'drawn': drawn,
        'tail': tail,
        'seen': state['seen'].at[slots, token].set(True),
        'active': active & ~stopped & (drawn < state['limit']),
    }
    return state | changed, pool, {'tokens': token, 'logps': logps, 'behaviour_logps': behaviour}, stopped
