"""The engine against the plain decoder, and against itself under other schedules."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from acesearch_jax.errors import UsageError, UserError
from acesearch_jax.models.decoder import Decoder, init_params, unembed
from acesearch_jax.sampling.engine import Engine, EngineConfig
from acesearch_jax.sampling.request import Request, SamplingParams
from acesearch_jax.sharding.mesh import make_mesh

SIZES = EngineConfig(
    num_slots=4, max_length=200, page_size=8, prefill_rows=3, cache_bytes=1 << 20, decode_steps=5
)


@pytest.fixture(scope='module')
def engine(config, params, mesh):
  return Engine(config, params, mesh, SIZES)


def ragged(count, seed=0, longest=150, **params):
  """Random requests, some of which share prefixes or are the same prompt."""
  rng = np.random.default_rng(seed)
  stem = rng.integers(0, 61, longest).tolist()
  requests = []
  for i in range(count):
    shared, own = rng.integers(0, longest - 20), rng.integers(1, 20)
    prompt = stem[:shared] + rng.integers(0, 61, own).tolist()
    if i % 4 == 3:
      prompt = requests[-1].prompt
    choice = SamplingParams(**{'max_tokens': int(rng.integers(1, 30)), 'stop': ((7,), (3, 5)), **params})
    requests.append(Request(tuple(prompt), (seed, i, 'test'), choice))
  return requests


@functools.partial(jax.jit, static_argnums=0)
def forward(config, params, tokens):
  hidden, _ = Decoder(config).apply({'params': params}, tokens, jnp.arange(tokens.shape[1])[None])
  return jax.nn.log_softmax(unembed(params, config, hidden)[0])


def log_probs(config, params, tokens):
  """[T, V] log-probabilities of the token after each, by one plain forward pass."""
  padded = np.zeros((1, SIZES.max_length), np.int32)
  padded[0, : len(tokens)] = tokens
  return np.asarray(forward(config, params, padded))[: len(tokens)]


def check(config, params, request, completion):
  """Log-probs are those of teacher forcing."""
  tokens = [*request.prompt, *completion.tokens.tolist()]
  table = log_probs(config, params, tokens)
  places = np.arange(len(request.prompt) - 1, len(tokens) - 1)
  np.testing.assert_allclose(completion.logps, table[places, completion.tokens], atol=1e-5)
  return table[places]


def same(a, b):
  return (
      a.finish == b.finish
      and a.tokens.tolist() == b.tokens.tolist()
      and a.logps.tobytes() == b.logps.tobytes()
      and a.behaviour_logps.tobytes() == b.behaviour_logps.tobytes()
  )


def test_log_probs_equal_teacher_forcing(engine, config, params):
  requests = ragged(12)
  for request, completion in zip(requests, engine.generate(requests), strict=True):
    check(config, params, request, completion)
    np.testing.assert_allclose(completion.behaviour_logps, completion.logps, atol=1e-5)
  assert engine.num_pages_held == 0


def test_greedy_equals_full_forward_passes(engine, config, params):
  requests = ragged(4, seed=1, temperature=0.0, stop=())
  for request, completion in zip(requests, engine.generate(requests), strict=True):
    table = check(config, params, request, completion)
    assert completion.tokens.tolist() == table.argmax(-1).tolist()
    assert len(completion.tokens) == request.params.max_tokens and completion.finish == 'length'
    assert not completion.behaviour_logps.any()


def test_stop_sequences_end_the_answer_where_they_first_come(engine):
  whole = ragged(12, seed=2, stop=(), max_tokens=30)
  requests, wanted = [], []
  for i, (request, completion) in enumerate(zip(whole, engine.generate(whole), strict=True)):
    tokens = completion.tokens.tolist()
    length = 1 + i % 3
    stop = tuple(tokens[20 : 20 + length])
    end = next(n for n in range(length, 31) if tuple(tokens[n - length : n]) == stop)
    wanted.append(tokens[:end])
    params = dataclasses.replace(request.params, stop=((60, 60, 60, 60), stop))
    requests.append(dataclasses.replace(request, params=params))
  for tokens, completion in zip(wanted, engine.generate(requests), strict=True):
    assert completion.tokens.tolist() == tokens and completion.finish == 'stop'


def test_a_stop_sequence_cannot_begin_in_the_prompt(engine):
  request = Request((1, 2, 3), (0,), SamplingParams(max_tokens=3))
  first = engine.generate([request])[0].tokens.tolist()
  stopping = dataclasses.replace(request, params=SamplingParams(max_tokens=3, stop=((3, first[0]),)))
  assert engine.generate([stopping])[0].tokens.tolist() == first


@pytest.mark.parametrize('product_dtype', ['', 'bfloat16'])
def test_same_bits_in_any_schedule_with_or_without_cache(product_dtype, config, params, mesh):
  config = config.replace(product_dtype=product_dtype)
  engine = Engine(config, params, mesh, SIZES)
  requests = ragged(24, seed=3)
  alone = [engine.generate([request])[0] for request in requests]
  uncached = Engine(config, params, mesh, dataclasses.replace(SIZES, share_prefixes=False))
  rng = np.random.default_rng(0)
  for runner in (engine, engine, uncached):
    order = rng.permutation(len(requests)).tolist()
    ids, results = {}, {}
    while order or runner.busy:
      for _ in range(rng.integers(0, 4)):
        if order:
          i = order.pop()
          ids[runner.submit(requests[i])] = i
      results.update({ids[id]: completion for id, completion in runner.step()})
    assert all(same(alone[i], results[i]) for i in range(len(requests)))


def test_mixed_log_probs_are_those_of_mixed_teacher_forcing(config, params, mesh):
  mixed = config.replace(product_dtype='bfloat16')
  requests = ragged(12, seed=8)
  completions = Engine(mixed, params, mesh, SIZES).generate(requests)
  apart = []
  for request, completion in zip(requests, completions, strict=True):
    tokens = [*request.prompt, *completion.tokens.tolist()]
    places = np.arange(len(request.prompt) - 1, len(tokens) - 1)
    same_format, float32 = (
        log_probs(kind, params, tokens)[places, completion.tokens] for kind in (mixed, config)
    )
    apart.append([abs(completion.logps - table).max() for table in (same_format, float32)])
  # What is left is a different order of sums, which moves a few operands to the next bfloat16.
  apart = np.max(apart, axis=0)
  assert apart[0] < 0.05 and apart[1] > 0, apart


def test_identical_prompts_are_prefilled_once(config, params, mesh):
  engine = Engine(config, params, mesh, SIZES)
  prompts = [tuple(np.random.default_rng(i).integers(0, 61, 50 + i).tolist()) for i in range(6)]
  requests = [
      Request(prompt, (i, j), SamplingParams(max_tokens=9))
      for j in range(5)
      for i, prompt in enumerate(prompts)
  ]
  engine.generate(requests)
  stats = engine.reset_stats()
  assert stats.prompt_tokens == 5 * sum(len(prompt) - 1 for prompt in prompts)
  assert stats.distinct_prompt_tokens == sum(len(prompt) - 1 for prompt in prompts)
  assert stats.prefilled_tokens == stats.distinct_prompt_tokens
  assert stats.requests == 30 and stats.decoded_tokens == 30 * 9


def test_nothing_compiles_after_warm_up(config, params, mesh):
  events = []
  engine = Engine(config, params, mesh, SIZES)
  engine.warm_up()
  engine.reset_stats()
  jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: events.append(name))
  filters = {'top_p': 0.9, 'top_k': 5, 'temperature': 0.7, 'repetition_penalty': 1.1}
  requests = ragged(100, seed=4) + ragged(100, seed=5, **filters)
  engine.generate(requests)
  engine.cancel(engine.submit(requests[0]))
  compiled = [name for name in events if 'compile' in name]
  assert not compiled and not engine.stats.compilations
  jax.jit(lambda x: x * 3.5)(1.0)
  assert [name for name in events if 'compile' in name]  # the listener does hear compilations


def test_thrashing_cache_loses_nothing(engine, config, params, mesh):
  page_bytes = 2 * 2 * 2 * 8 * 4 * 8
  sizes = dataclasses.replace(SIZES, cache_bytes=26 * page_bytes)
  small = Engine(config, params, mesh, sizes)
  requests = ragged(60, seed=6)
  rng = np.random.default_rng(1)
  ids = {small.submit(request): request for request in requests}
  cancelled = set(rng.permutation(list(ids))[:10].tolist())
  results = {}
  while small.busy:
    for id in [id for id in cancelled if rng.random() < 0.2 and id not in results]:
      small.cancel(id)
      cancelled.discard(id)
      ids.pop(id)
    results.update(small.step())
  assert set(ids) == set(results)
  stats = small.reset_stats()
  assert small.num_pages_held == 0 and stats.peak_pages == 26 and stats.preempted > 0
  wanted = engine.generate([ids[id] for id in results])
  assert all(same(a, b) for a, b in zip(wanted, results.values(), strict=True))
  small.update_params(params)
  assert small._lanes[0].tree.num_free == 26


def test_new_weights_take_effect_without_compiling(config, params, mesh):
  engine = Engine(config, params, mesh, SIZES)
  request = ragged(1, seed=7)[0]
  old = engine.generate([request])[0]
  other = init_params(config, jax.random.key(1), mesh)
  engine.reset_stats()
  engine.update_params(other)
  new = engine.generate([request])[0]
  check(config, other, request, new)
  assert not same(old, new) and not engine.stats.compilations
  engine.update_params(params)
  assert same(engine.generate([request])[0], old)


def test_bad_requests_are_refused(engine, config, params, mesh):
  good = Request((1, 2), (0,), SamplingParams(max_tokens=2))
  results = engine.generate([Request((), (1,)), good, Request((1,) * 200, (2,)), Request((61,), (3,))])
  assert [completion.finish for completion in results] == ['refused', 'length', 'refused', 'refused']
  assert all(completion.message for completion in results if completion.finish == 'refused')
  with pytest.raises(UsageError, match='stop'):
    engine.submit(Request((1,), (4,), SamplingParams(stop=((1,) * 9,))))
  with pytest.raises(UserError, match='raise --cache_megabytes to'):
    Engine(config, params, mesh, dataclasses.replace(SIZES, cache_bytes=1000))
  for wrong in ({'temperature': -1.0}, {'top_p': 0.0}, {'max_tokens': 0}, {'stop': ((),)}, {'min_p': 2.0}):
    with pytest.raises(UsageError):
      SamplingParams(**wrong)


def test_the_context_bounds_the_answer(engine):
  completion = engine.generate([Request((1,) * 190, (0,), SamplingParams(max_tokens=100))])[0]
  assert completion.finish == 'length' and len(completion.tokens) == 10


@pytest.mark.parametrize('text, unroll', [('data:4,tensor:2', True), ('data:2,fsdp:2,tensor:2', False)])
def test_meshes_give_the_tokens_of_one_device(engine, config, params, text, unroll):
  if len(jax.devices()) < 8:
    pytest.skip('needs 8 devices')
  requests = ragged(6, seed=8, temperature=0.0)
  wanted = engine.generate(requests)
  mesh = make_mesh(text)
  placed = jax.device_put(jax.device_get(params), jax.sharding.NamedSharding(mesh, jax.P()))
  sharded = Engine(config, placed, mesh, SIZES, unpack_weights=unroll)
  for a, b in zip(wanted, sharded.generate(requests), strict=True):
    assert a.tokens.tolist() == b.tokens.tolist()
    np.testing.assert_allclose(a.logps, b.logps, atol=1e-4)
