"""The driver gives every episode its own answers, whatever runs beside it."""

import numpy as np
import pytest

from acesearch_jax.agents.driver import Sample, Search, run_episodes
from acesearch_jax.data.tasks import Passage
from acesearch_jax.retrieval.base import Hit
from acesearch_jax.sampling.request import Completion, Request, SamplingParams


class ScriptedEngine:
  """Completes a few requests a step, newest first, with tokens that name the request."""

  def __init__(self):
    self.waiting, self.count, self.most = [], 0, 0

  def submit(self, request):
    self.count += 1
    self.waiting.append((self.count, request))
    self.most = max(self.most, len(self.waiting))
    return self.count

  def step(self):
    done, self.waiting = self.waiting[-2:][::-1], self.waiting[:-2]
    return [
        (number, Completion(np.asarray([r.prompt[0] + 1], np.int32), np.zeros(1, np.float32),
                            np.zeros(1, np.float32), 'stop'))
        for number, r in done
    ]  # fmt: skip


class CountingRetriever:

  def __init__(self):
    self.calls = []

  def retrieve(self, queries, k):
    self.calls.append((tuple(queries), k))
    return [[Hit(Passage(query, '', query), 1.0)] * k for query in queries]


def request(token):
  return Request((token,), (0, token), SamplingParams())


def episode(i):
  """Samples, searches for what it sampled, samples again; stops early for odd i."""
  first = yield Sample((request(10 * i), request(10 * i + 5)))
  tokens = [int(c.tokens[0]) for c in first]
  if i % 2:
    return tokens
  hits = yield Search((str(tokens[0]), 'shared'), k=2)
  nothing = yield Sample(())
  last = yield Sample((request(int(hits[0][0].passage.id)),))
  return [*tokens, int(last[0].tokens[0]), len(hits[1]), nothing]


def expected(i):
  tokens = [10 * i + 1, 10 * i + 6]
  return tokens if i % 2 else [*tokens, 10 * i + 2, 2, []]


@pytest.mark.parametrize('concurrency', [1, 3, 100])
def test_every_episode_gets_its_own_answers(concurrency):
  engine = ScriptedEngine()
  results = dict(run_episodes((episode(i) for i in range(11)), engine, CountingRetriever(), concurrency))
  assert results == {i: expected(i) for i in range(11)}
  assert engine.most <= 2 * concurrency


def test_queries_of_a_tick_are_asked_together_and_once():
  retriever = CountingRetriever()
  list(run_episodes((episode(i) for i in range(0, 8, 2)), ScriptedEngine(), retriever, 4))
  asked = [query for queries, _ in retriever.calls for query in queries]
  assert len(retriever.calls) <= 4
  assert all(len(set(queries)) == len(queries) for queries, _ in retriever.calls)
  assert {'1', '21', '41', '61', 'shared'} == set(asked)


def test_no_episodes():
  assert list(run_episodes((), ScriptedEngine(), None, 4)) == []
