"""The host side of sampling: which request is computed when, in a fixed set of device programs."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from acesearch_jax.errors import UsageError, UserError
from acesearch_jax.models.attention import PAST_CHUNK
from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.sampling.prefix import Page
from acesearch_jax.sampling.programs import num_lanes, programs
from acesearch_jax.sampling.request import Completion, Request, refused
from acesearch_jax.sampling.scheduler import Job, Lane, Scheduler, Seating


@dataclasses.dataclass(frozen=True)
class EngineConfig:
  """Sizes of the sampler. Bits of a result depend on num_slots, page_size and prefill_rows only.

  Attributes:
    num_slots: sequences decoded together.
    max_length: longest prompt and answer together, in tokens.
    page_size: tokens a page of the prefix cache; shared prefixes are found in whole pages.
    prefill_rows: pages computed together, a quarter of them when no more are wanted. Rows and slots are
      rounded up to multiples of the shares of the batch.
    cache_bytes: of keys and values on all devices; what running requests leave of it holds prefixes.
    decode_steps: tokens decoded between two looks of the host, when no slot becomes free.
    max_stops: stop sequences a request may have.
    max_stop_length: tokens in one.
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
  share_prefixes: bool = True

  def __post_init__(self):
    for field in dataclasses.fields(self):
      if getattr(self, field.name) < (field.name != 'share_prefixes'):
        raise UsageError(f'Sampler: {field.name} is {getattr(self, field.name)}, must be at least 1.')
    if PAST_CHUNK % self.page_size and self.page_size % PAST_CHUNK:
      raise UsageError(
          f'Sampler: page_size is {self.page_size}, must divide {PAST_CHUNK} or be a multiple of it.'
      )


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
    peak_pages: most pages of the cache in use.
    preempted: times a request lost its pages to older ones and began again.
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
  preempted: int = 0
  prefill_seconds: float = 0.0
  decode_seconds: float = 0.0


class Engine:
  """Samples completions of any number of requests with continuous batching and a prefix cache.

  One request gives the same bits whatever else is going on.
  """

  def __init__(
      self,
      config: DecoderConfig,
      params: Any,
      mesh: Mesh,
      engine_config: EngineConfig = EngineConfig(),
      unpack_weights: bool | None = None,
  ):
    """Args:
      config: of the model, adapters merged.
      params: scanned tree, on `mesh`; copied, never donated.
      mesh: where to compute.
      engine_config: sizes.
      unpack_weights: hold each layer's weights apart, and the head apart from the embedding; default on
        CPU, where every call would copy the slices and transpose the table.

    Raises:
      UsageError: the context is longer than the model's.
      UserError: the cache is too small for one request.
    """
    if unpack_weights is None:
      unpack_weights = mesh.devices.flat[0].platform == 'cpu'
    self.config = config.replace(
        scan_layers=not unpack_weights,
        tie_embeddings=config.tie_embeddings and not unpack_weights,
        lora_rank=0,
        remat=False,
    )
    self.engine_config = engine_config
    if engine_config.max_length > config.max_length:
      raise UsageError(
          f'Sampler: max_length is {engine_config.max_length}, the model has {config.max_length}.'
      )
    lanes = num_lanes(mesh)
    size = engine_config.page_size
    num_pages = _num_pages(self.config, engine_config, lanes)
    self._slots_a_lane = -(-engine_config.num_slots // lanes)
    self._programs = programs(
        self.config,
        mesh,
        self._slots_a_lane * lanes,
        size,
        num_pages,
        engine_config.decode_steps,
        (engine_config.max_stops, engine_config.max_stop_length),
    )
    self._params = self._programs.load(params)
    self._pool = self._programs.make_pool()
    self._state = self._programs.make_state()
    self._lanes = [
        Lane(self._slots_a_lane, num_pages, size, engine_config.share_prefixes) for _ in range(lanes)
    ]
    self._scheduler = Scheduler(self._lanes)
    # A product with few rows takes another path through the matrix library, with other bits: at
    # least two pages, or as many as make 64 rows.
    rows = -(-engine_config.prefill_rows // lanes)
    self._row_counts = sorted({min(rows, max(2, -(-64 // size), rows // 4)), rows})
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
    id = self._next_id
    self._next_id += 1
    length = len(request.prompt)
    if not length:
      self._done.append((id, refused('The prompt is empty.')))
    elif length >= sizes.max_length:
      message = f'The prompt has {length} tokens, the context {sizes.max_length}, the answer needs one.'
      self._done.append((id, refused(message)))
    elif not 0 <= min(request.prompt) <= max(request.prompt) < self.config.vocab_size:
      message = f'The prompt has token ids outside the vocabulary of {self.config.vocab_size}.'
      self._done.append((id, refused(message)))
    else:
      limit = min(request.params.max_tokens, sizes.max_length - length)
      self._scheduler.wait(Job(id, request, limit))
      self.stats.prompt_tokens += length - 1
      if request.prompt not in self._prompts:
        self._prompts.add(request.prompt)
        self.stats.distinct_prompt_tokens += length - 1
    return id

  def step(self) -> list[tuple[int, Completion]]:
    """Makes some progress: one prefill or one decode call. Returns what has been completed."""
    self._scheduler.plan()
    self._seat()
    rows = [lane.rows(self._row_counts[-1]) for lane in self._lanes]
    active = sum(lane.num_active for lane in self._lanes)
    ready = sum(len(lane.ready) for lane in self._lanes)
    # Prefill ahead of need while that fills the rows of a call; otherwise only for want of sequences.
    slots = self._slots_a_lane * len(self._lanes)
    target = 2 * slots if all(len(part) == self._row_counts[-1] for part in rows) else slots
    if any(rows) and active + ready < target:
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
    sat = self._scheduler.cancel(id)
    if sat is not None:
      self._empty(*sat)

  @property
  def busy(self) -> bool:
    """There are requests that have not been completed."""
    return bool(self._done) or self._scheduler.busy

  @property
  def num_pages_held(self) -> int:
    """Pages that live requests need; 0 when idle."""
    return sum(lane.tree.num_held for lane in self._lanes)

  def update_params(self, params: Any) -> None:
    """Takes new weights of the same shapes; what the old ones left in the prefix cache is dropped.

    Raises:
      RuntimeError: requests are still on their way, half computed with the old weights.
    """
    if self.busy:
      raise RuntimeError('Weights cannot change while requests are on their way.')
    self._params = None  # make room first
    self._params = self._programs.load(params)
    for lane in self._lanes:
      lane.tree.flush()

  def reset_stats(self) -> EngineStats:
    """Starts counting anew; returns the counts so far."""
    stats = dataclasses.replace(self.stats, peak_pages=sum(lane.tree.peak for lane in self._lanes))
    self.stats = EngineStats()
    self._prompts.clear()
    for lane in self._lanes:
      lane.tree.peak = lane.tree.num_pages - lane.tree.num_free
    return stats

  def warm_up(self) -> float:
    """Compiles every program there is, by running each once on nothing. Returns seconds."""
    if self.busy:
      raise RuntimeError('Warm up before the first request.')
    start = time.monotonic()
    for count in self._row_counts:
      self._call_prefill([{} for _ in self._lanes], count)
    self._call_seat([None for _ in self._lanes])
    self._call_decode(leave_early=True)
    self._empty(self._lanes[0], 0)
    jax.block_until_ready(self._state)
    self._count_compilations()
    return time.monotonic() - start

  def _count_compilations(self) -> None:
    compiled = self._programs.compilations
    self.stats.compilations += compiled - self._compiled
    self._compiled = compiled

  # Progress.

  def _prefill(self, rows: list[dict[Page, list[Page]]]) -> None:
    start = time.monotonic()
    wanted = max(len(part) for part in rows)
    self._call_prefill(rows, next(count for count in self._row_counts if count >= wanted))
    for lane, part in zip(self._lanes, rows, strict=True):
      lane.computed(part)
      self.stats.prefilled_tokens += sum(len(page.tokens) for page in part)
    self.stats.prefill_calls += 1
    self.stats.prefill_seconds += time.monotonic() - start

  def _seat(self) -> None:
    """Moves ready sequences to free slots, one a lane each time."""
    while any(seatings := [lane.seat() for lane in self._lanes]):
      self._call_seat(seatings)

  def _decode(self) -> None:
    start = time.monotonic()
    for lane in self._lanes:
      for job, slot in lane.grow(self.engine_config.decode_steps):
        self._scheduler.wait(job)
        self.stats.preempted += 1
        if slot is not None:
          self._empty(lane, slot)
    out = self._call_decode(leave_early=any(lane.ready for lane in self._lanes))
    for lane, first in zip(self._lanes, range(0, len(out['counts']), self._slots_a_lane), strict=True):
      for slot, job in enumerate(lane.slots):
        if job is not None:
          self._collect(lane, slot, job, jax.tree.map(lambda x, i=first + slot: x[i], out))
    self.stats.decode_calls += 1
    self.stats.slot_steps += int(out['counts'].max()) * len(out['counts'])
    self.stats.decode_seconds += time.monotonic() - start

  def _collect(self, lane: Lane, slot: int, job: Job, out: dict[str, np.ndarray]) -> None:
    """Takes a slot's tokens from the arrays of a decode call."""
    count = int(out['counts'])
    job.parts.append(tuple(out[name][:count] for name in ('tokens', 'logps', 'behaviour_logps')))
    job.length += count
    self.stats.decoded_tokens += count
    if not out['active']:
      arrays = (np.concatenate(part) for part in zip(*job.parts, strict=True))
      self._done.append((job.id, Completion(*arrays, 'stop' if out['stopped'] else 'length')))
      lane.remove(job)

  # Device calls.

  def _call_prefill(self, rows: list[dict[Page, list[Page]]], count: int) -> None:
    """Computes the pages of each lane, at most `count`."""
    size = self.engine_config.page_size
    shape = (len(self._lanes), count)
    tokens, starts = np.zeros((*shape, size), np.int32), np.zeros(shape, np.int32)
    table = np.zeros((*shape, self._table_length), np.int32)
    write = np.full(shape, self._lanes[0].tree.num_pages, np.int32)
    for lane, part in enumerate(rows):
      for row, (page, before) in enumerate(part.items()):
        tokens[lane, row, : len(page.tokens)] = page.tokens
        starts[lane, row] = page.depth * size
        table[lane, row, : len(before)] = [other.index for other in before]
        write[lane, row] = page.index
    arrays = (x.reshape(-1, *x.shape[2:]) for x in (tokens, starts, table, write))
    self._pool = self._programs.prefill(self._params, self._pool, *arrays)

  def _call_seat(self, seatings: list[Seating | None]) -> None:
    """Seats at most one sequence a lane."""
    none = self._lanes[0].tree.num_pages
    nothing = Job(-1, Request((0,), ()), 0)
    rows = [self._row(seating.job if seating else nothing) for seating in seatings]
    slot, source, target = np.transpose([
        (seating.slot, seating.source or 0, none if seating.target is None else seating.target)
        if seating
        else (self._slots_a_lane, 0, none)
        for seating in seatings
    ]).astype(np.int32)
    row = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    self._state, self._pool = self._programs.seat(self._state, self._pool, slot, row, source, target)

  def _call_decode(self, leave_early: bool) -> dict[str, np.ndarray]:
    table = np.zeros((len(self._lanes), self._slots_a_lane, self._table_length), np.int32)
    for lane, part in enumerate(self._lanes):
      for slot, job in enumerate(part.slots):
        if job is not None:
          places = job.places()
          table[lane, slot, : len(places)] = places
    table = table.reshape(-1, self._table_length)
    self._state, self._pool, out = self._programs.decode(
        self._params, self._state, self._pool, table, np.bool_(leave_early)
    )
    return jax.device_get(out)

  def _empty(self, lane: Lane, slot: int) -> None:
    """Stops decoding in a slot of a lane."""
    number = self._lanes.index(lane) * self._slots_a_lane + slot
    self._state = self._programs.cancel(self._state, np.int32(number))

  @property
  def _table_length(self) -> int:
    return -(-self.engine_config.max_length // self.engine_config.page_size)

  def _row(self, job: Job) -> dict[str, np.ndarray]:
    """What the decode state holds of a request, one entry a slot array."""
    request, params, sizes = job.request, job.request.params, self.engine_config
    stops = np.full((sizes.max_stops, sizes.max_stop_length), -1, np.int32)
    for i, stop in enumerate(params.stop):
      stops[i, -len(stop) :] = stop
    seen = np.zeros(self.config.vocab_size, bool)
    seen[list(request.prompt)] = True
    return {
        'length': np.int32(len(request.prompt) - 1),
        'token': np.int32(request.prompt[-1]),
        'active': np.bool_(True),
        'key': request.key_data(),
        'drawn': np.int32(0),
        'limit': np.int32(job.limit),
        'stops': stops,
        'tail': np.full(sizes.max_stop_length, -1, np.int32),
        'temperature': np.float32(params.temperature),
        'top_p': np.float32(params.top_p),
        'top_k': np.int32(params.top_k),
        'min_p': np.float32(params.min_p),
        'repetition_penalty': np.float32(params.repetition_penalty),
        'seen': seen,
    }


def _num_pages(config: DecoderConfig, sizes: EngineConfig, lanes: int) -> int:
  """Pages of one lane."""
  numbers = 2 * config.num_layers * config.num_kv_heads * config.head_dim
  page_bytes = sizes.page_size * numbers * np.dtype(config.dtype).itemsize
  num_pages = sizes.cache_bytes // (page_bytes * lanes)
  # The last page of a prompt is copied before its first is free.
  needed = -(-sizes.max_length // sizes.page_size) + 1
  if num_pages < needed:
    raise UserError(
        f'Sampler: a cache of {sizes.cache_bytes} bytes holds {num_pages * sizes.page_size} tokens for each '
        f'of {lanes} shares of the batch, one request may need {needed * sizes.page_size}: raise '
        f'--cache_megabytes to {-(-needed * page_bytes * lanes >> 20)} or lower --max_length.'
    )
  return num_pages
