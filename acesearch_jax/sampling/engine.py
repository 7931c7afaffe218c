"""The host side of sampling: which request is computed when, in a fixed set of device programs."""

import collections
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from acesearch_jax.errors import UsageError, UserError
from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.sampling.prefix import Page, PrefixTree
from acesearch_jax.sampling.programs import programs
from acesearch_jax.sampling.request import Completion, Request, refused

# Capacities are multiples of so many tokens.
CAPACITY_UNIT = 128


@dataclasses.dataclass(frozen=True)
class EngineConfig:
  """Sizes of the sampler. Bits of a result depend on num_slots, page_size and prefill_rows only.

  Attributes:
    num_slots: sequences decoded together.
    max_length: longest prompt and answer together, in tokens.
    page_size: tokens a page of the prefix cache; shared prefixes are found in whole pages.
    prefill_rows: pages computed together, a quarter of them when no more are wanted.
    cache_bytes: size of the prefix cache. The slots come on top of it.
    decode_steps: tokens decoded between two looks of the host, when no slot becomes free.
    max_stops: stop sequences a request may have.
    max_stop_length: tokens in one.
    min_capacity: tokens of the smallest slot and prefill that are compiled for. Smaller sizes save work
      on short contexts, each costs compilations at the start.
    share_prefixes: keep prompts' pages for later prompts. Equal prefixes of prompts that wait at the
      same time are computed once in any case.
  """

  num_slots: int = 32
  max_length: int = 1024
  page_size: int = 32
  prefill_rows: int = 8
  cache_bytes: int = 1 << 30
  decode_steps: int = 16
  max_stops: int = 4
  max_stop_length: int = 8
  min_capacity: int = 1
  share_prefixes: bool = True

  def __post_init__(self):
    for field in dataclasses.fields(self):
      if getattr(self, field.name) < (field.name != 'share_prefixes'):
        raise UsageError(f'Sampler: {field.name} is {getattr(self, field.name)}, must be at least 1.')
    if CAPACITY_UNIT % self.page_size:
      raise UsageError(f'Sampler: page_size is {self.page_size}, must divide {CAPACITY_UNIT}.')


@dataclasses.dataclass
class EngineStats:
  """Counts since the last reset.

  A prompt's last token is computed as the first step of decoding, so prefill counts leave it out.

  Attributes:
    requests: completed, refused ones not counted.
    prompt_tokens: what one prefill a request would compute.
    distinct_prompt_tokens: what sharing whole identical prompts perfectly would compute.
    prefilled_tokens: computed in fact.
    decoded_tokens: sampled.
    prefill_calls: device calls, of prefill_rows · page_size tokens.
    decode_calls: device calls.
    slot_steps: decode steps times slots, the most tokens those calls could have given.
    compilations: programs compiled.
    peak_pages: most pages of the prefix cache in use.
    prefill_seconds: waiting for prefill.
    decode_seconds: waiting for decoding.
  """

  requests: int = 0
  prompt_tokens: int = 0
  distinct_prompt_tokens: int = 0
  prefilled_tokens: int = 0
  decoded_tokens: int = 0
  prefill_calls: int = 0
  decode_calls: int = 0
  slot_steps: int = 0
  compilations: int = 0
  peak_pages: int = 0
  prefill_seconds: float = 0.0
  decode_seconds: float = 0.0


@dataclasses.dataclass(eq=False)
class _Sequence:
  """A request on its way."""

  id: int
  request: Request
  pages: list[Page] = dataclasses.field(default_factory=list)
  computed: int = 0  # of its pages, known to be ready
  length: int = 0  # tokens in its slot's cache
  parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = dataclasses.field(default_factory=list)

  def next_page(self) -> Page | None:
    """The first of its pages that is still to be computed."""
    while self.computed < len(self.pages) and self.pages[self.computed].ready:
      self.computed += 1
    return self.pages[self.computed] if self.computed < len(self.pages) else None


class Engine:
  """Samples completions of any number of requests with continuous batching and a prefix cache.

  A request waits, then has pages and is computed into them page by page together with others, is
  ready, sits in a slot while it is decoded, and is done. One request gives the same bits whatever
  else is going on.
  """

  def __init__(
      self,
      config: DecoderConfig,
      params: Any,
      mesh: Mesh,
      engine_config: EngineConfig = EngineConfig(),
      unroll_layers: bool | None = None,
  ):
    """Args:
      config: of the model, adapters merged.
      params: scanned tree, on `mesh`; copied, never donated.
      mesh: where to compute.
      engine_config: sizes.
      unroll_layers: hold each layer's weights apart; default on CPU, where a slice is a copy.

    Raises:
      UserError: the prefix cache is too small for one request.
    """
    if unroll_layers is None:
      unroll_layers = mesh.devices.flat[0].platform == 'cpu'
    self.config = config.replace(scan_layers=not unroll_layers, lora_rank=0, remat=False)
    self.engine_config = engine_config
    if engine_config.max_length > config.max_length:
      raise UsageError(
          f'Sampler: max_length is {engine_config.max_length}, the model has {config.max_length}.'
      )
    size = engine_config.page_size
    numbers = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    page_bytes = size * numbers * np.dtype(config.dtype).itemsize
    num_pages = engine_config.cache_bytes // page_bytes
    needed = -(-engine_config.max_length // size)
    if num_pages < needed:
      raise UserError(
          f'Sampler: a cache of {engine_config.cache_bytes} bytes holds {num_pages * size} tokens, one '
          f'request may need {needed * size}: raise --cache_megabytes to {-(-needed * page_bytes >> 20)} or '
          'lower --max_length.'
      )
    self._programs = programs(
        self.config,
        mesh,
        engine_config.num_slots,
        size,
        engine_config.decode_steps,
        (engine_config.max_stops, engine_config.max_stop_length),
    )
    self._params = self._programs.load(params)
    self._pages = self._programs.make_pages(num_pages)
    self._tree = PrefixTree(num_pages, size, engine_config.share_prefixes)
    self._capacities = _capacities(engine_config.min_capacity, engine_config.max_length)
    # A product with few rows takes another path through the matrix library, with other bits: at
    # least two pages, or as many as make 64 rows.
    rows = engine_config.prefill_rows
    self._row_counts = sorted({min(rows, max(2, -(-64 // size), rows // 4)), rows})
    self._capacity = self._capacities[0]
    self._state: Any = None
    self._slots: list[_Sequence | None] = [None] * engine_config.num_slots
    self._waiting: collections.deque[_Sequence] = collections.deque()
    self._planned: dict[_Sequence, None] = {}  # have pages, not all of them computed
    self._ready: collections.deque[_Sequence] = collections.deque()
    self._done: list[tuple[int, Completion]] = []
    self._next_id = 0
    self._prompts: set[tuple[int, ...]] = set()
    self._compiled = self._programs.compilations
    self.stats = EngineStats()

  # The public face.

  def submit(self, request: Request) -> int:
    """Queues a request; its id comes back from `step` with the completion.

    Raises:
      UsageError: more or longer stop sequences than the engine was built for.
    """
    sizes = self.engine_config
    stops = request.params.stop
    if len(stops) > sizes.max_stops or any(len(stop) > sizes.max_stop_length for stop in stops):
      raise UsageError(
          f'Sampler: stop sequences are {stops}, at most {sizes.max_stops} of at most '
          f'{sizes.max_stop_length} tokens fit; raise max_stops or max_stop_length.'
      )
    sequence = _Sequence(self._next_id, request)
    self._next_id += 1
    length = len(request.prompt)
    if not length:
      self._done.append((sequence.id, refused('The prompt is empty.')))
    elif length >= sizes.max_length:
      message = f'The prompt has {length} tokens, the context {sizes.max_length}, the answer needs one.'
      self._done.append((sequence.id, refused(message)))
    elif not 0 <= min(request.prompt) <= max(request.prompt) < self.config.vocab_size:
      message = f'The prompt has token ids outside the vocabulary of {self.config.vocab_size}.'
      self._done.append((sequence.id, refused(message)))
    else:
      self._waiting.append(sequence)
      self.stats.prompt_tokens += length - 1
      if request.prompt not in self._prompts:
        self._prompts.add(request.prompt)
        self.stats.distinct_prompt_tokens += length - 1
    return sequence.id

  def step(self) -> list[tuple[int, Completion]]:
    """Makes some progress: one prefill or one decode call. Returns what has been completed."""
    self._plan()
    self._admit()
    active = sum(sequence is not None for sequence in self._slots)
    rows = self._rows_to_prefill()
    # Prefill ahead of need while that fills the rows of a call; otherwise only for want of sequences.
    target = 2 * len(self._slots) if len(rows) == self.engine_config.prefill_rows else len(self._slots)
    if rows and active + len(self._ready) < target:
      self._prefill(rows)
    elif active:
      self._decode()
    self._count_compilations()
    done, self._done = self._done, []
    self.stats.requests += sum(completion.finish != 'refused' for _, completion in done)
    return done

  def generate(self, requests: Sequence[Request]) -> list[Completion]:
    """Completes all of `requests`; their completions in order."""
    ids = [self.submit(request) for request in requests]
    missing, found, others = set(ids), {}, []
    while missing:
      for id, completion in self.step():
        if id in missing:
          missing.remove(id)
          found[id] = completion
        else:
          others.append((id, completion))
    self._done.extend(others)
    return [found[id] for id in ids]

  def cancel(self, id: int) -> None:
    """Forgets a request; it will not be completed. Unknown and completed ids are ignored."""
    self._done = [(other, completion) for other, completion in self._done if other != id]
    self._waiting = collections.deque(sequence for sequence in self._waiting if sequence.id != id)
    for sequence in [*self._planned, *self._ready]:
      if sequence.id == id:
        self._planned.pop(sequence, None)
        self._ready = collections.deque(other for other in self._ready if other is not sequence)
        self._tree.release(sequence.pages)
    for slot, sequence in enumerate(self._slots):
      if sequence is not None and sequence.id == id:
        self._slots[slot] = None
        self._state = self._programs.cancel(self._state, self._capacity, np.int32(slot))

  @property
  def busy(self) -> bool:
    """There are requests that have not been completed."""
    return bool(self._done or self._waiting or self._planned or self._ready or any(self._slots))

  @property
  def num_pages_held(self) -> int:
    """Pages that live requests need; 0 when idle."""
    return self._tree.num_pages - self._tree.num_free - self._tree.num_idle

  def update_params(self, params: Any) -> None:
    """Takes new weights of the same shapes; what the old ones left in the prefix cache is dropped.

    Raises:
      RuntimeError: requests are still on their way, half computed with the old weights.
    """
    if self.busy:
      raise RuntimeError('Weights cannot change while requests are on their way.')
    self._params = None  # make room first
    self._params = self._programs.load(params)
    self._tree.flush()

  def reset_stats(self) -> EngineStats:
    """Starts counting anew; returns the counts so far."""
    stats = dataclasses.replace(self.stats, peak_pages=self._tree.peak)
    self.stats = EngineStats()
    self._prompts.clear()
    self._tree.peak = self._tree.num_pages - self._tree.num_free
    return stats

  def warm_up(self) -> float:
    """Compiles every program there is, by running each once on nothing. Returns seconds."""
    if self.busy:
      raise RuntimeError('Warm up before the first request.')
    start = time.monotonic()
    for capacity in self._capacities:
      for count in self._row_counts:
        self._call_prefill([], capacity, count)
      state = self._programs.make_state(capacity)
      state, _ = self._programs.decode(self._params, state, capacity, np.bool_(True))
      state = self._programs.admit(
          state, self._pages, capacity, self._table([], capacity), np.int32(0), self._row(_NOTHING)
      )
      state = self._programs.cancel(state, capacity, np.int32(0))
      for other in self._capacities:
        if other != capacity:
          jax.block_until_ready(self._programs.resize(state, other))
    self._count_compilations()
    return time.monotonic() - start

  def _count_compilations(self) -> None:
    compiled = self._programs.compilations
    self.stats.compilations += compiled - self._compiled
    self._compiled = compiled

  # Scheduling.

  def _plan(self) -> None:
    """Gives pages to waiting requests, in order, as far as the pool goes."""
    while self._waiting and len(self._planned) + len(self._ready) < 4 * len(self._slots):
      sequence = self._waiting[0]
      pages = self._tree.acquire(sequence.request.prompt[:-1])
      if pages is None:
        return
      sequence.pages = pages
      self._waiting.popleft()
      self._planned[sequence] = None
      self._sort_out(sequence)

  def _sort_out(self, sequence: _Sequence) -> None:
    if sequence.next_page() is None:
      del self._planned[sequence]
      self._ready.append(sequence)

  def _rows_to_prefill(self) -> list[tuple[Page, list[Page]]]:
    """The next pages to compute, each with those before it."""
    rows: dict[Page, list[Page]] = {}
    for sequence in self._planned:
      if len(rows) == self.engine_config.prefill_rows:
        break
      page = sequence.next_page()
      rows[page] = sequence.pages[: page.depth]
    return list(rows.items())

  def _prefill(self, rows: list[tuple[Page, list[Page]]]) -> None:
    start = time.monotonic()
    longest = max(page.depth for page, _ in rows) * self.engine_config.page_size
    count = next(count for count in self._row_counts if count >= len(rows))
    self._call_prefill(rows, self._fitting(longest), count)
    for page, _ in rows:
      page.ready = True
      self.stats.prefilled_tokens += len(page.tokens)
    for sequence in list(self._planned):
      self._sort_out(sequence)
    self.stats.prefill_calls += 1
    self.stats.prefill_seconds += time.monotonic() - start

  def _call_prefill(self, rows: list[tuple[Page, list[Page]]], capacity: int, count: int) -> None:
    size = self.engine_config.page_size
    tokens, starts = np.zeros((count, size), np.int32), np.zeros(count, np.int32)
    table = np.zeros((count, capacity // size), np.int32)
    write = np.full(count, self._tree.num_pages, np.int32)
    for i, (page, before) in enumerate(rows):
      tokens[i, : len(page.tokens)] = page.tokens
      starts[i] = page.depth * size
      table[i] = self._table(before, capacity)
      write[i] = page.index
    self._pages = self._programs.prefill(self._params, self._pages, tokens, starts, table, write)

  def _admit(self) -> None:
    """Moves ready sequences to free slots."""
    for slot, sitting in enumerate(self._slots):
      if sitting is not None or not self._ready:
        continue
      sequence = self._next_ready()
      sequence.length = len(sequence.request.prompt) - 1
      self._slots[slot] = sequence
      self._ensure_capacity()
      self._state = self._programs.admit(
          self._state,
          self._pages,
          self._capacity,
          self._table(sequence.pages, self._capacity),
          np.int32(slot),
          self._row(sequence.request),
      )
      self._tree.release(sequence.pages)
      sequence.pages = []

  def _next_ready(self) -> _Sequence:
    """The first that fits the slots as they are; longer ones wait, but not behind all the others."""
    first = self._ready[0]
    if first.id + 8 * len(self._slots) > self._next_id:
      for sequence in self._ready:
        if len(sequence.request.prompt) - 1 + self.engine_config.decode_steps <= self._capacity:
          self._ready.remove(sequence)
          return sequence
    return self._ready.popleft()

  def _ensure_capacity(self) -> None:
    """Makes the slots long enough for the next decode call, shorter once half would do."""
    longest = max((sequence.length for sequence in self._slots if sequence), default=0)
    needed = self._fitting(min(longest + self.engine_config.decode_steps, self.engine_config.max_length))
    if self._state is None:
      self._state, self._capacity = self._programs.make_state(needed), needed
    elif needed > self._capacity or 2 * needed <= self._capacity:
      self._state, self._capacity = self._programs.resize(self._state, needed), needed

  def _decode(self) -> None:
    start = time.monotonic()
    self._ensure_capacity()
    leave_early = np.bool_(bool(self._ready))
    self._state, out = self._programs.decode(self._params, self._state, self._capacity, leave_early)
    out = jax.device_get(out)
    for slot, sequence in enumerate(self._slots):
      if sequence is None:
        continue
      count = out['counts'][slot]
      sequence.parts.append(tuple(out[name][slot, :count] for name in ('tokens', 'logps', 'behaviour_logps')))
      sequence.length += int(count)
      self.stats.decoded_tokens += int(count)
      if not out['active'][slot]:
        arrays = (np.concatenate(part) for part in zip(*sequence.parts, strict=True))
        finish = 'stop' if out['stopped'][slot] else 'length'
        self._done.append((sequence.id, Completion(*arrays, finish)))
        self._slots[slot] = None
    self.stats.decode_calls += 1
    self.stats.slot_steps += int(out['counts'].max()) * len(self._slots)
    self.stats.decode_seconds += time.monotonic() - start

  # Host arrays.

  def _fitting(self, length: int) -> int:
    return next(capacity for capacity in self._capacities if capacity >= length)

  def _table(self, pages: list[Page], capacity: int) -> np.ndarray:
    table = np.zeros(capacity // self.engine_config.page_size, np.int32)
    table[: len(pages)] = [page.index for page in pages]
    return table

  def _row(self, request: Request) -> dict[str, np.ndarray]:
    """What the decode state holds of a request, one entry a slot array."""
    params, sizes = request.params, self.engine_config
    stops = np.full((sizes.max_stops, sizes.max_stop_length), -1, np.int32)
    for i, stop in enumerate(params.stop):
      stops[i, -len(stop) :] = stop
    seen = np.zeros(self.config.vocab_size, bool)
    seen[list(request.prompt)] = True
    length = len(request.prompt) - 1
    return {
        'length': np.int32(length),
        'token': np.int32(request.prompt[-1]),
        'active': np.bool_(True),
        'key': request.key_data(),
        'drawn': np.int32(0),
        'limit': np.int32(min(params.max_tokens, sizes.max_length - length - 1)),
        'stops': stops,
        'tail': np.full(sizes.max_stop_length, -1, np.int32),
        'temperature': np.float32(params.temperature),
        'top_p': np.float32(params.top_p),
        'top_k': np.int32(params.top_k),
        'min_p': np.float32(params.min_p),
        'repetition_penalty': np.float32(params.repetition_penalty),
        'seen': seen,
    }


_NOTHING = Request((0,), ())


def _capacities(smallest: int, max_length: int) -> list[int]:
  """Sizes in `CAPACITY_UNIT`: 1, 2, 3, 4, 6, 8, 12, 16, ... up to what holds `max_length`.

  Those that cannot hold `smallest` tokens are left out.
  """
  first, last = (-(-length // CAPACITY_UNIT) for length in (min(smallest, max_length), max_length))
  sizes = sorted({1, *(step << i for i in range(last.bit_length()) for step in (2, 3))})
  return [CAPACITY_UNIT * size for size in [*(size for size in sizes if first <= size < last), last]]
