"""Chains of hops through the graph, each with exactly one next stop, and their wording."""

import dataclasses
import functools

import numpy as np

from acesearch_jax.data.tasks import SubQuestion
from acesearch_jax.data.world import text
from acesearch_jax.data.world.graph import EntityGraph, Fact
from acesearch_jax.data.world.passages import sentence_case
from acesearch_jax.data.world.relations import RELATIONS

# Hops from the large pools are drawn more often, so that questions start from many different things.
_FIRST_HOP_WEIGHT = {'in_country': 5, 'site_in': 5, 'serves': 5, 'division_of': 3, 'port_in': 3,
                     'iata_code': 2}


@dataclasses.dataclass(frozen=True)
class Hop:
  """A relation walked from subject to object, or `back` from object to subject."""

  relation: str
  back: bool = False

  @property
  def lookups(self) -> tuple[str, ...]:
    wording = RELATIONS[self.relation]
    return wording.back_lookups if self.back else wording.lookups

  @property
  def asks(self) -> tuple[str, ...]:
    wording = RELATIONS[self.relation]
    return wording.back_asks if self.back else wording.asks

  @property
  def phrases(self) -> tuple[str, ...]:
    wording = RELATIONS[self.relation]
    return wording.back_phrases if self.back else wording.phrases

  @property
  def source(self) -> str:
    """Type of the entity to start from; a literal's is its relation with '='."""
    wording = RELATIONS[self.relation]
    return (wording.object or f'{self.relation}=') if self.back else wording.subject

  @property
  def end(self) -> str:
    wording = RELATIONS[self.relation]
    return wording.subject if self.back else (wording.object or f'{self.relation}=')


@dataclasses.dataclass(frozen=True)
class Chain:
  """A start (entity id or literal key) and the hops from it, with the facts they use and the stops."""

  start: str
  hops: tuple[Hop, ...]
  facts: tuple[Fact, ...]
  stops: tuple[str, ...]


def fill(template: str, words: str) -> str:
  return template.replace('{s}', words).replace('{o}', words)


def draw(rng: np.random.Generator, options: tuple) -> object:
  return options[int(rng.integers(len(options)))]


class Walker:
  """Draws chains from the graph."""

  def __init__(self, graph: EntityGraph):
    self.graph = graph
    hops = [Hop(name, back) for name in RELATIONS for back in (False, True)]
    self.next = {hop: steps for hop in hops if hop.asks and (steps := self._functional(hop))}
    self.starts = {hop: tuple(steps) for hop, steps in self.next.items()}
    self.hops = tuple(self.next)
    self._texts = {f: tuple(m.passage for m in graph.evidence(f)) for f in graph.facts}

  def _functional(self, hop: Hop) -> dict[str, tuple[Fact, str]]:
    """Where a hop leads from each source that has exactly one way to go."""
    steps = {}
    for fact in self.graph.with_relation(hop.relation):
      if not hop.back and len(self.graph.about(fact.subject, hop.relation)) == 1:
        steps[fact.subject] = (fact, fact.target)
      if hop.back and len(self.graph.leading_to(fact.target, hop.relation)) == 1:
        steps[fact.target] = (fact, fact.subject)
    return steps

  @functools.cache  # noqa: B019 (one walker a world, and both are kept)
  def _followers(self, kind: str, last: bool, used: tuple[str, ...]) -> tuple[Hop, ...]:
    return tuple(h for h in self.hops if h.source == kind and h.relation not in used and (last or h.phrases))

  @functools.cached_property
  def _first(self) -> tuple[Hop, ...]:
    return tuple(h for h in self.hops if h.phrases for _ in range(_FIRST_HOP_WEIGHT.get(h.relation, 1)))

  def draw(self, rng: np.random.Generator, length: int) -> Chain | None:
    """A random chain of `length` hops, None where the draw led nowhere."""
    hop = draw(rng, self.hops if length == 1 else self._first)
    here = start = draw(rng, self.starts[hop])
    hops, facts, stops = [], [], []
    for position in range(length):
      if position:
        options = self._followers(hops[-1].end, position == length - 1, tuple(h.relation for h in hops))
        if not options:
          return None
        hop = draw(rng, options)
      if here not in self.next[hop]:
        return None
      fact, here = self.next[hop][here]
      hops.append(hop)
      facts.append(fact)
      stops.append(here)
    chain = Chain(start, tuple(hops), tuple(facts), tuple(stops))
    return chain if len({start, *stops}) == length + 1 else None

  def passages(self, fact: Fact) -> tuple[str, ...]:
    """Ids of the passages that state a fact."""
    return tuple(dict.fromkeys(self._texts[fact]))

  def phrase(self, chain: Chain, count: int, rng: np.random.Generator) -> str:
    """Noun phrase for the stop after `count` hops ('the capital of the country where Oran lies')."""
    words = self.graph.text(chain.start)
    for hop in chain.hops[:count]:
      words = fill(draw(rng, hop.phrases), words)
    return words

  def question(self, chain: Chain, rng: np.random.Generator) -> str:
    """The question for the last stop that names only the start."""
    return sentence_case(fill(draw(rng, chain.hops[-1].asks), self.phrase(chain, len(chain.hops) - 1, rng)))

  def subquestions(self, chain: Chain, rng: np.random.Generator) -> tuple[SubQuestion, ...]:
    """One look-up for each hop; hops after the first refer to the answer before."""
    steps = []
    for index, (hop, fact, stop) in enumerate(zip(chain.hops, chain.facts, chain.stops, strict=True)):
      words = f'#{index}' if index else self.graph.text(chain.start)
      steps.append(SubQuestion(sentence_case(fill(draw(rng, hop.lookups), words)), self.graph.text(stop),
                               self.passages(fact)))
    return tuple(steps)

  def gives_away(self, chain: Chain, question: str) -> bool:
    """Whether the question names a later stop, or a later fact's passage is about the start."""
    words = f' {text.fold(question)} '
    if any(f' {text.fold(name)} ' in words for stop in chain.stops for name in self.graph.names(stop)):
      return True
    ends = [x for fact in chain.facts[1:] for x in (fact.subject, fact.target)]
    return chain.start in ends


