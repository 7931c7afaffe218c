"""The entity graph: typed entities, facts about them, and where the passages state each fact."""

import collections
import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Entity:
  """A thing in the world.

  Attributes:
    id: unique and stable, 'type:key' ('country:DZ', 'city:2507480').
    type: 'country', 'city', 'airport', ... Homonyms differ in type or key, never share an id.
    name: the plain name, which homonyms may share ('Georgia').
    text: how sentences write it, unique in the world ('the Netherlands', 'Paris, Texas').
    aliases: other accepted names.
  """

  id: str
  type: str
  name: str
  text: str
  aliases: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Fact:
  """One statement: subject, relation, and either an object entity or a literal value.

  Attributes:
    subject: id of the subject.
    relation: name of the relation.
    object: id of the object entity, '' for a literal.
    value: the literal as passages write it ('41,543 square kilometers'), '' for an entity.
    number: the literal's numeric value, None where it has none.
    unit: unit of `number` ('km2', 'm', 'year'), or the kind of literal ('code', 'date').
  """

  subject: str
  relation: str
  object: str = ''
  value: str = ''
  number: float | None = None
  unit: str = ''

  @property
  def target(self) -> str:
    """Id of the object, or an id-like key for a literal ('iata_code=LYS')."""
    return self.object or f'{self.relation}={self.value}'


@dataclasses.dataclass(frozen=True)
class Mention:
  """A place where a passage states a fact: characters [start, end) of its text hold the object."""

  passage: str
  start: int
  end: int


class EntityGraph:
  """Entities and facts with indexes by subject and relation and by object and relation.

  Attributes:
    entities: by id, in insertion order.
    facts: all facts, in insertion order, without duplicates.
  """

  def __init__(self, entities: Iterable[Entity], facts: Iterable[Fact]):
    self.entities = {entity.id: entity for entity in entities}
    self.facts = tuple(dict.fromkeys(facts))
    self._forward = collections.defaultdict(list)
    self._backward = collections.defaultdict(list)
    self._evidence = collections.defaultdict(list)
    self._by_relation = collections.defaultdict(list)
    for fact in self.facts:
      self._forward[fact.subject, fact.relation].append(fact)
      self._backward[fact.target, fact.relation].append(fact)
      self._by_relation[fact.relation].append(fact)

  def about(self, subject: str, relation: str) -> tuple[Fact, ...]:
    """Facts with this subject id and relation."""
    return tuple(self._forward.get((subject, relation), ()))

  def leading_to(self, target: str, relation: str) -> tuple[Fact, ...]:
    """Facts with this object id (or literal key, see `Fact.target`) and relation."""
    return tuple(self._backward.get((target, relation), ()))

  def with_relation(self, relation: str) -> tuple[Fact, ...]:
    """All facts of a relation."""
    return tuple(self._by_relation.get(relation, ()))

  @property
  def relations(self) -> tuple[str, ...]:
    """Names of all relations, in order of first use."""
    return tuple(self._by_relation)

  def text(self, target: str) -> str:
    """How sentences write an entity id or a literal key."""
    entity = self.entities.get(target)
    return entity.text if entity else target.split('=', 1)[1]

  def names(self, target: str) -> tuple[str, ...]:
    """Accepted answers for an entity id or a literal key; the form used in sentences comes first."""
    entity = self.entities.get(target)
    if not entity:
      return (target.split('=', 1)[1],)
    return tuple(dict.fromkeys((entity.text, entity.name, *entity.aliases)))

  def record(self, fact: Fact, mention: Mention) -> None:
    """Notes that a passage states a fact."""
    self._evidence[fact].append(mention)

  def evidence(self, fact: Fact) -> tuple[Mention, ...]:
    """Where the passages state a fact."""
    return tuple(self._evidence.get(fact, ()))
