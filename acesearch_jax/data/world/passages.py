"""Writes the facts as short passages and notes in the graph where each fact is stated."""

import collections
import zlib

from acesearch_jax.data.tasks import Passage
from acesearch_jax.data.world import text
from acesearch_jax.data.world.graph import EntityGraph, Fact, Mention
from acesearch_jax.data.world.pairs import LISTS
from acesearch_jax.data.world.relations import RELATIONS

# Facts that share a passage: the first relation present opens it, the others are further sentences.
_TOGETHER: dict[str, tuple[str, ...]] = {
    'city': ('in_country', 'in_state', 'city_population'),
    'airport': ('serves', 'iata_code', 'airport_elevation'),
}


def pick(options: tuple[str, ...], *key: object) -> str:
  """One of the options, drawn from the key alone (equal in every process)."""
  return options[zlib.crc32('|'.join(map(str, key)).encode()) % len(options)]


def sentence_case(sentence: str) -> str:
  return sentence[0].upper() + sentence[1:]


class _Writer:
  """Builds the text of one passage, with the places of the objects in it."""

  def __init__(self, passage_id: str):
    self.id = passage_id
    self.text = ''
    self.mentions: list[tuple[Fact, Mention]] = []

  def add(self, template: str, subject: str, objects: list[tuple[Fact, str]]) -> None:
    before, _, after = template.partition('{o}')
    start = len(self.text) + (1 if self.text else 0)
    sentence = before.replace('{s}', subject)
    spans = []
    for index, (fact, written) in enumerate(objects):
      sentence += ('' if index == 0 else ' and ' if index == len(objects) - 1 else ', ')
      spans.append((fact, len(sentence), len(sentence) + len(written)))
      sentence += written
    sentence += after.replace('{s}', subject)
    self.text += (' ' if self.text else '') + sentence_case(sentence)
    self.mentions += [(fact, Mention(self.id, start + a, start + b)) for fact, a, b in spans]


def list_text(graph: EntityGraph, subject: str, relation: str) -> str:
  """All objects of a list relation as the passage writes them: 'a, b and c'."""
  return text.join([graph.text(fact.target) for fact in graph.about(subject, relation)])


def write_passages(graph: EntityGraph, seed: int) -> tuple[Passage, ...]:
  """Writes one passage for every fact or group of facts, and records the evidence in the graph.

  Args:
    graph: the facts; its evidence is filled in.
    seed: picks the wording.

  Returns:
    Passages in the order of the entities.
  """
  by_subject = collections.defaultdict(dict)
  for fact in graph.facts:
    by_subject[fact.subject].setdefault(fact.relation, []).append(fact)
  passages = []
  for subject, entity in graph.entities.items():
    title = sentence_case(entity.text.removeprefix('the ').strip('"'))
    facts = by_subject.get(subject, {})
    together = [r for r in _TOGETHER.get(entity.type, ()) if r in facts]
    groups = ([together] if together else []) + [[r] for r in facts if r not in together]
    for group in groups:
      writer = _Writer(f'{subject}/{group[0]}')
      for relation in group:
        options = LISTS[relation].statements if relation in LISTS else RELATIONS[relation].statements
        template = pick(options, seed, subject, relation)
        writer.add(template, entity.text, [(f, graph.text(f.target)) for f in facts[relation]])
      passages.append(Passage(writer.id, title, writer.text))
      for fact, mention in writer.mentions:
        graph.record(fact, mention)
  return tuple(passages)
