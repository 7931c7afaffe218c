"""Runs many episodes at once over one sampler and one retriever.

An episode is a Python generator that reads like the algorithm for one question: it yields what it
needs and is sent what came of it.

    completions = yield Sample((request, ...))      # list[Completion], in order
    hits = yield Search(('query', ...), k=5)        # list[list[Hit]], in order

The driver keeps the sampler's slots full with the requests of all running episodes and asks the
retriever once a tick for all of their queries. What an episode returns does not depend on what runs
beside it: sampling keys come from each request's identity.
"""

import collections
import dataclasses
from collections.abc import Generator, Iterable, Iterator
from typing import Any, TypeVar

from acesearch_jax.retrieval.base import Hit, Retriever
from acesearch_jax.sampling.engine import Engine
from acesearch_jax.sampling.request import Completion, Request


@dataclasses.dataclass(frozen=True)
class Sample:
  """Asks the policy for one completion a request."""

  requests: tuple[Request, ...]


@dataclasses.dataclass(frozen=True)
class Search:
  """Asks the retriever for the best `k` passages a query."""

  queries: tuple[str, ...]
  k: int


Result = TypeVar('Result')
Episode = Generator[Sample | Search, Any, Result]


@dataclasses.dataclass
class _Running:
  """An episode in flight: its place in the input, and the completions it waits for."""

  index: int
  episode: Episode
  completions: list[Completion | None] = dataclasses.field(default_factory=list)
  missing: int = 0


def run_episodes(
  episodes: Iterable[Episode],
  engine: Engine,
  retriever: Retriever | None,
  concurrency: int,
) -> Iterator[tuple[int, Any]]:
  """Runs episodes, at most `concurrency` at a time.

  Args:
    episodes: started in order as places fall free.
    engine: the sampler.
    retriever: may be None where no episode searches.
    concurrency: episodes in flight; enough to keep the sampler's slots full.

  Yields:
    (index of the episode, what it returned), as episodes finish.
  """
  waiting = enumerate(iter(episodes))
  ready: collections.deque[tuple[_Running, Any]] = collections.deque()
  searching: list[tuple[_Running, Search]] = []
  sampling: dict[int, tuple[_Running, int]] = {}  # request -> episode and place of its completion
  active = 0

  while True:
    while active < concurrency and (following := next(waiting, None)) is not None:
      ready.append((_Running(*following), None))
      active += 1
    if not active:
      return
    while ready:
      running, answer = ready.popleft()
      try:
        need = running.episode.send(answer)
      except StopIteration as stop:
        active -= 1
        yield running.index, stop.value
        continue
      if isinstance(need, Search):
        searching.append((running, need))
      elif not need.requests:
        ready.append((running, []))
      else:
        running.completions = [None] * len(need.requests)
        running.missing = len(need.requests)
        for place, request in enumerate(need.requests):
          sampling[engine.submit(request)] = (running, place)
    if searching:
      ready.extend(_search(searching, retriever))
      searching = []
      continue
    for number, completion in engine.step() if sampling else ():
      running, place = sampling.pop(number)
      running.completions[place] = completion
      running.missing -= 1
      if not running.missing:
        ready.append((running, running.completions))


def _search(
  searching: list[tuple[_Running, Search]], retriever: Retriever | None
) -> Iterator[tuple[_Running, list[list[Hit]]]]:
  """Answers the pending searches with one call of the retriever for each `k`, every query once."""
  assert retriever is not None, 'an episode searched, but no retriever was given'
  hits: dict[tuple[str, int], list[Hit]] = {}
  for k in dict.fromkeys(search.k for _, search in searching):
    queries = tuple(dict.fromkeys(q for _, search in searching if search.k == k for q in search.queries))
    found = retriever.retrieve(queries, k)
    hits.update(((query, k), result) for query, result in zip(queries, found, strict=True))
  for running, search in searching:
    yield running, [hits[query, search.k] for query in search.queries]
