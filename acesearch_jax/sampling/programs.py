"""The sampler's device programs: prefill a page, admit a prompt to a slot, decode, change capacity.

Prompts are computed into a pool of pages and copied from there to a slot, where decoding appends to
them in place. A slot's keys lie at the place of their token, so how decoding is cut into calls, who
sits in the other slots and how large the slots are does not change the bits of a sequence.

Dimension letters as in `models.decoder`, and: B slots, C capacity of a slot in tokens, P pages in the
pool, S tokens a page, R rows of a prefill.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.models.decoder import Decoder, Past, abstract_params, unembed, unstack_layers
from acesearch_jax.sampling.distribution import Controls, sample
from acesearch_jax.sharding.rules import named_shardings, partition_spec

State = dict[str, Any]


@functools.lru_cache
def programs(
    config: DecoderConfig,
    mesh: Mesh,
    num_slots: int,
    page_size: int,
    decode_steps: int,
    stop_shape: tuple[int, int],
) -> 'Programs':
  """`Programs` of these sizes, the same ones each time: a second engine compiles nothing again."""
  return Programs(config, mesh, num_slots, page_size, decode_steps, stop_shape)


class Programs:
  """Jitted functions over one model, mesh and set of fixed sizes.

  `pages` is a pair (keys, values), per layer [P, K, S, H]; a state's 'keys' and 'values' are per layer
  [B, K, C, H]. Both are donated: every program returns their successors. Layers are a leading axis
  when `config.scan_layers`, else a tuple.
  """

  def __init__(
      self,
      config: DecoderConfig,
      mesh: Mesh,
      num_slots: int,
      page_size: int,
      decode_steps: int,
      stop_shape: tuple[int, int],
  ):
    """Args:
      config: of the model; `scan_layers` says how the layers are held here.
      mesh: where everything lives.
      num_slots: B.
      page_size: S, also the tokens a prefill row takes.
      decode_steps: most tokens a slot gets in one call.
      stop_shape: stop sequences a request may have, tokens each.
    """
    self.config = config
    self.mesh = mesh
    self._decoder = Decoder(config)
    self._num_slots = num_slots
    self._page_size = page_size
    self._decode_steps = decode_steps
    self._stop_shape = stop_shape
    shapes, axes = abstract_params(config)
    self.params_shardings = named_shardings(shapes, axes, mesh)
    page_shape = (1, config.num_kv_heads, page_size, config.head_dim)
    pages = self._cache_shardings((None, 'kv_heads', None, None), page_shape)
    self._jitted: list[Any] = []
    self.prefill = self._jit(self._prefill, donate=(1,), out=(pages, pages))
    self.make_pages = self._jit(self._make_pages, out=(pages, pages), static=(0,))
    self.load = self._jit(self._load, out=self.params_shardings)
    self._by_capacity: dict[int, dict[str, Callable]] = {}

  def make_state(self, capacity: int) -> State:
    """Empty slots."""
    return self._at(capacity)['make']()

  def admit(self, state: State, pages: Any, capacity: int, table: Any, slot: Any, row: State) -> State:
    """Copies a prompt's pages into a slot and sets its row of every other state array.

    Args:
      table: [C / S] int32, the prompt's pages in order, anything after its end.
      slot: int32.
      row: what `state` holds a slot, without keys and values.
    """
    return self._at(capacity)['admit'](state, pages, table, slot, row)

  def decode(self, params: Any, state: State, capacity: int, leave_early: Any) -> tuple[State, State]:
    """Samples up to `decode_steps` tokens a slot.

    Args:
      leave_early: bool; return as soon as a slot is free.

    Returns:
      The state, and arrays: 'tokens', 'logps', 'behaviour_logps' [B, decode_steps], 'counts' [B] (how
      many of them), 'stopped' [B] (a stop sequence came), 'active' [B] (goes on).
    """
    return self._at(capacity)['decode'](params, state, leave_early)

  def resize(self, state: State, capacity: int) -> State:
    """The same slots with another capacity, which must hold every active one."""
    return self._at(capacity)['resize'](state)

  def cancel(self, state: State, capacity: int, slot: Any) -> State:
    """Makes a slot inactive."""
    return self._at(capacity)['cancel'](state, slot)

  def abstract_decode(self, capacity: int) -> tuple[Any, tuple[Any, ...]]:
    """The jitted decode function and its arguments as shapes with shardings, to compile ahead of time."""
    scanned, _ = abstract_params(self.config.replace(scan_layers=True))
    shapes = jax.eval_shape(self._load, scanned)
    state = jax.eval_shape(functools.partial(self._make_state, capacity))

    def place(shape, sharding):
      return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    flag = jax.ShapeDtypeStruct((), jnp.bool_)
    params = jax.tree.map(place, shapes, self.params_shardings)
    return self._at(capacity)['decode'].jitted, (
        params, jax.tree.map(place, state, self._state_shardings(capacity)), flag,
    )  # fmt: skip

  @property
  def compilations(self) -> int:
    return sum(function._cache_size() for function in self._jitted)

  def _jit(
      self, function: Callable, out: Any, donate: tuple[int, ...] = (), static: tuple[int, ...] = ()
  ) -> Callable:
    jitted = jax.jit(function, donate_argnums=donate, out_shardings=out, static_argnums=static)
    self._jitted.append(jitted)

    def call(*arguments):
      with jax.set_mesh(self.mesh):
        return jitted(*arguments)

    call.jitted = jitted
    return call

  def _at(self, capacity: int) -> dict[str, Callable]:
    if capacity not in self._by_capacity:
      out = self._state_shardings(capacity)
      self._by_capacity[capacity] = {
          'make': self._jit(functools.partial(self._make_state, capacity), out),
          'admit': self._jit(self._admit, out, donate=(0,)),
          'decode': self._jit(self._decode, (out, None), donate=(1,)),
          'resize': self._jit(functools.partial(self._resize, capacity), out),
          'cancel': self._jit(self._cancel, out, donate=(0,)),
      }
    return self._by_capacity[capacity]

  # Shapes and shardings.

  def _cache_shardings(self, axes: tuple[str | None, ...], shape: tuple[int, ...]) -> Any:
    spec = partition_spec(axes, shape, self.mesh)
    if self.config.scan_layers:
      return NamedSharding(self.mesh, jax.sharding.PartitionSpec(None, *spec))
    return (NamedSharding(self.mesh, spec),) * self.config.num_layers

  def _state_shardings(self, capacity: int) -> State:
    shapes = jax.eval_shape(functools.partial(self._make_state, capacity))
    shardings = {}
    for name, value in shapes.items():
      if name in ('keys', 'values'):
        shape = (self._num_slots, self.config.num_kv_heads, capacity, self.config.head_dim)
        shardings[name] = self._cache_shardings(('batch', 'kv_heads', None, None), shape)
      else:
        rest = ('vocab',) if name == 'seen' else (None,) * (value.ndim - 1)
        shardings[name] = NamedSharding(self.mesh, partition_spec(('batch', *rest), value.shape, self.mesh))
    return shardings

  def _zeros(self, shape: tuple[int, ...]) -> Any:
    layers = self.config.num_layers
    if self.config.scan_layers:
      return jnp.zeros((layers, *shape), self.config.dtype)
    return tuple(jnp.zeros(shape, self.config.dtype) for _ in range(layers))

  def _make_pages(self, num_pages: int) -> Any:
    shape = (num_pages, self.config.num_kv_heads, self._page_size, self.config.head_dim)
    return self._zeros(shape), self._zeros(shape)

  def _make_state(self, capacity: int) -> State:
    slots = self._num_slots
    cache = (slots, self.config.num_kv_heads, capacity, self.config.head_dim)
    return {
        'keys': self._zeros(cache),
        'values': self._zeros(cache),
        'length': jnp.zeros(slots, jnp.int32),  # tokens in the cache
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

  # The programs.

  def _load(self, params: Any) -> Any:
    """The weights as decoding reads them: what enters products is rounded once, not at every step."""

    def rounded(path, leaf):
      operand = path[-1].key in ('kernel', 'embedding')
      return leaf.astype(self.config.operand_dtype) if operand else leaf

    params = jax.tree_util.tree_map_with_path(rounded, params)
    return params if self.config.scan_layers else unstack_layers(params, self.config.num_layers)

  def _per_layer(self, function: Callable, *caches: Any) -> Any:
    if self.config.scan_layers:
      return jax.vmap(function)(*caches)
    return tuple(function(*layer) for layer in zip(*caches, strict=True))

  def _apply(self, params, tokens, positions, keys, values, lengths):
    """Runs the decoder with past [B, K, C, H] a layer, of which `lengths` [B] tokens are there."""
    capacity = jax.tree.leaves(keys)[0].shape[-2]
    # The decoder wants [B, C, K, H]; XLA folds the transposition into the dots that follow it.
    keys, values = (self._per_layer(lambda x: x.swapaxes(1, 2), cache) for cache in (keys, values))
    past = Past(keys, values, jnp.arange(capacity) < lengths[:, None])
    return self._decoder.apply({'params': params}, tokens, positions, past=(past,))

  def _prefill(self, params, pages, tokens, starts, table, write):
    """Computes R pages.

    Args:
      params: the model.
      pages: the pool.
      tokens: [R, S] int32.
      starts: [R] int32, tokens before the page.
      table: [R, n] int32, the pages before.
      write: [R] int32, where the result goes; P for rows without work.
    """
    rows = tokens.shape[0]

    def gather(pool):  # [P, K, S, H] to [R, K, n·S, H]
      found = pool[table].swapaxes(1, 2)
      return found.reshape(rows, pool.shape[1], -1, pool.shape[-1])

    def scatter(pool, new):  # new: [R, S, K, H]
      return pool.at[write].set(new.swapaxes(1, 2), mode='drop')

    keys, values = (self._per_layer(gather, pool) for pool in pages)
    positions = starts[:, None] + jnp.arange(tokens.shape[1])
    _, new = self._apply(params, tokens, positions, keys, values, starts)
    # The last layer's keys come after every read of the pool; see `append` for why writes wait.
    write = jnp.where(new[0][-1][:, 0, 0, 0] == jnp.inf, pages[0][0].shape[-4], write)
    return tuple(self._per_layer(scatter, pool, fresh) for pool, fresh in zip(pages, new, strict=True))

  def _admit(self, state, pages, table, slot, row):
    def copy(cache, pool):
      found = pool[table].swapaxes(0, 1).reshape(cache.shape[1:])
      return cache.at[slot].set(found)

    state = {name: state[name].at[slot].set(row[name]) if name in row else state[name] for name in state}
    for name, pool in zip(('keys', 'values'), pages, strict=True):
      state[name] = self._per_layer(copy, state[name], pool)
    return state

  def _cancel(self, state, slot):
    return {**state, 'active': state['active'].at[slot].set(False)}

  def _resize(self, capacity, state):
    def fit(cache):
      kept = cache[:, :, :capacity]
      return jnp.pad(kept, ((0, 0), (0, 0), (0, capacity - kept.shape[2]), (0, 0)))

    return {**state, **{name: self._per_layer(fit, state[name]) for name in ('keys', 'values')}}

  def _decode(self, params, state, leave_early):
    shape = (self._num_slots, self._decode_steps)
    out = {
        'tokens': jnp.zeros(shape, jnp.int32),
        'logps': jnp.zeros(shape, jnp.float32),
        'behaviour_logps': jnp.zeros(shape, jnp.float32),
        'counts': jnp.zeros(shape[:1], jnp.int32),
        'stopped': jnp.zeros(shape[:1], bool),
    }
    started = state['active']

    def go_on(carry):
      i, state, _ = carry
      active = state['active']
      freed = jnp.any(started & ~active)
      return (i < self._decode_steps) & jnp.any(active) & ~(leave_early & freed)

    def step(carry):
      i, state, out = carry
      state, drawn, stopped = self._decode_one(params, state)
      for name, column in drawn.items():
        out[name] = jax.lax.dynamic_update_slice_in_dim(out[name], column[:, None], i, axis=1)
      return i + 1, state, out | {'stopped': out['stopped'] | stopped}

    before = state['drawn']
    _, state, out = jax.lax.while_loop(go_on, step, (0, state, out))
    return state, out | {'counts': state['drawn'] - before, 'active': state['active']}

  def _decode_one(self, params, state):
    """One token for every active slot: computes the one before, draws the next, looks for a stop."""
    active, length = state['active'], state['length']
    hidden, new = self._apply(
        params, state['token'][:, None], length[:, None], state['keys'], state['values'], length
    )
    slots = jnp.arange(self._num_slots)

    logits = unembed(params, self.config, hidden)[:, 0]
    keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(state['key']), state['drawn'])
    uniform = jax.vmap(jax.random.uniform)(keys)
    controls = Controls(**{name: state[name] for name in Controls.__dataclass_fields__})
    token, logps, behaviour = sample(logits, uniform, controls, state['seen'], active)

    def append(cache, fresh):  # fresh: [B, 1, K, H]
      # Out of range is dropped. The token's sign is no news, but makes the write wait for attention's
      # reads: without that dependency XLA's CPU backend copies the whole cache first.
      place = jnp.where(active & (token >= 0), length, cache.shape[2])
      return cache.at[slots, :, place].set(fresh[:, 0], mode='drop')

    caches = {
        name: self._per_layer(append, state[name], fresh)
        for name, fresh in zip(('keys', 'values'), new, strict=True)
    }
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
    columns = {'tokens': token, 'logps': logps, 'behaviour_logps': behaviour}
    return state | caches | changed, columns, stopped
