"""Questions of six types with gold sub-questions, split so that no answer is shared between splits.

A question belongs to the split of its answer (of its subject, for claims, whose answers are only Yes
and No): the split is a hash of the answer's text, so an entity or a figure is an answer in one split only.
"""

import collections
import dataclasses
import zlib
from collections.abc import Callable

import numpy as np

from acesearch_jax.data.tasks import SubQuestion, Task
from acesearch_jax.data.world import text
from acesearch_jax.data.world.chains import Walker, draw, fill
from acesearch_jax.data.world.graph import EntityGraph, Fact
from acesearch_jax.data.world.pairs import COMPARISONS, LISTS
from acesearch_jax.data.world.passages import list_text, sentence_case
from acesearch_jax.data.world.relations import RELATIONS

# Questions a split has at most; a type stops short where the caps below leave nothing new to draw.
SIZES = {'train': 6000, 'dev': 1200, 'test': 2400}
MIX = {'single': 0.15, 'bridge2': 0.30, 'bridge3': 0.20, 'comparison': 0.12, 'intersection': 0.13,
       'claim': 0.10}
_ANSWER_SHARE = 0.008  # of a split's questions that may have the same answer
_FIGURE_SHARE = 0.003  # the same for numbers and dates
_ANSWER_SHARE_OF_TYPE = 0.02  # the same among the questions of one type
_LAST_HOP_SHARE = 0.08  # of the questions of one type that may ask for the same relation
_STOP_SHARE = 0.03  # of a split's questions that may pass through the same entity
_START_MOST = 4  # questions of a split that may start from the same entity
_FRUITLESS_MOST = 20_000  # draws without a new question after which a type is left as it is
# Two numbers are compared only where rounding and small errors cannot turn the order round.
_DIFFERENCE = {'median_age': 4.0, 'life_expectancy': 4.0, 'independence_year': 3.0,
               'head_of_state_since': 3.0}
_RATIO = 1.3

# What a maker returns: key that decides the split, keys passed through (start first), and the task.
Draft = tuple[str, tuple[str, ...], Task]


def split_of(answer: str) -> str:
  """Split of an answer by its text, which no two entities share; the same for every seed."""
  bucket = zlib.crc32(f'split:{text.fold(answer)}'.encode()) % 100
  return 'test' if bucket < 32 else 'dev' if bucket < 52 else 'train'


def _all_passages(steps: tuple[SubQuestion, ...]) -> tuple[str, ...]:
  return tuple(dict.fromkeys(p for step in steps for p in step.passages))


class QuestionMaker:
  """Draws one question of a type at a time; None where a draw did not give a fair question."""

  def __init__(self, graph: EntityGraph, rng: np.random.Generator):
    self.graph, self.rng, self.walker = graph, rng, Walker(graph)
    self.makers: dict[str, Callable[[], Draft | None]] = {
        'single': lambda: self._chain(1, 'single'), 'bridge2': lambda: self._chain(2, 'bridge2'),
        'bridge3': lambda: self._chain(3, 'bridge3'), 'comparison': self._comparison,
        'intersection': self._intersection, 'claim': self._claim,
    }
    self._claims_made = 0
    self._lists = {name: tuple(dict.fromkeys(f.subject for f in graph.with_relation(name))) for name in LISTS}
    self._shared = {
        noun: tuple(dict.fromkeys(
            f.target for name, wording in LISTS.items() if wording.noun == noun
            for f in graph.with_relation(name)))
        for noun in ('country', 'product')
    }
    self._numbers = {
        name: tuple(f for f in graph.with_relation(name) if f.number is not None
                    and len(graph.about(f.subject, name)) == 1)
        for name in COMPARISONS
    }

  def _chain(self, length: int, kind: str) -> Draft | None:
    chain = self.walker.draw(self.rng, length)
    if chain is None:
      return None
    question = self.walker.question(chain, self.rng)
    if self.walker.gives_away(chain, question):
      return None
    steps = self.walker.subquestions(chain, self.rng)
    task = Task('', 'qa', question, self.graph.names(chain.stops[-1]), steps, _all_passages(steps), type=kind,
                provenance={'start': chain.start,
                            'hops': [('^' if h.back else '') + h.relation for h in chain.hops]})
    return chain.stops[-1], (chain.start, *chain.stops[:-1]), task

  def _lookup(self, name: str, subject: str) -> SubQuestion:
    wording = LISTS[name] if name in LISTS else RELATIONS[name]
    facts = self.graph.about(subject, name)
    answer = list_text(self.graph, subject, name)
    question = sentence_case(fill(draw(self.rng, wording.lookups), self.graph.text(subject)))
    return SubQuestion(question, answer, self.walker.passages(facts[0]))

  def _pair(self, name: str) -> tuple[Fact, Fact] | None:
    """Two facts with numbers far enough apart, the larger first."""
    one, other = (draw(self.rng, self._numbers[name]) for _ in range(2))
    high, low = (one, other) if one.number > other.number else (other, one)
    gap = _DIFFERENCE.get(name)
    apart = high.number - low.number >= gap if gap else low.number > 0 and high.number >= _RATIO * low.number
    return (high, low) if apart and one.subject != other.subject else None

  def _comparison(self) -> Draft | None:
    name = draw(self.rng, tuple(COMPARISONS))
    pair = self._pair(name)
    if pair is None:
      return None
    winner = int(self.rng.integers(2))
    order = [pair[0].subject, pair[1].subject]
    if self.rng.integers(2):
      order.reverse()
    wording = COMPARISONS[name]
    template = draw(self.rng, wording.less if winner else wording.more)
    a, b = (self.graph.text(s) for s in order)
    steps = tuple(self._lookup(name, s) for s in order)
    answer = pair[winner].subject
    question = sentence_case(template.replace('{a}', a).replace('{b}', b))
    task = Task('', 'qa', question, self.graph.names(answer), steps, _all_passages(steps), type='comparison',
                provenance={'relation': name, 'subjects': order, 'larger': not winner})
    return answer, (pair[1 - winner].subject,), task

  def _intersection(self) -> Draft | None:
    noun = draw(self.rng, tuple(self._shared))
    target = draw(self.rng, self._shared[noun])
    ways = [(name, f.subject) for name in LISTS for f in self.graph.leading_to(target, name)]
    (name, one), (name_2, other) = (draw(self.rng, tuple(ways)) for _ in range(2))
    sides = [[f.target for f in self.graph.about(s, n)] for n, s in ((name, one), (name_2, other))]
    common = [t for t in sides[0] if t in sides[1]]
    if one == other or common != [target] or one in sides[1] or other in sides[0]:
      return None
    # 'gold' beside 'gold ore' would leave two answers that are half right.
    left, right = ({w for t in side if t != target for w in text.fold(self.graph.text(t)).split()}
                   for side in sides)
    if noun == 'product' and left & right:
      return None
    a, b = self.graph.text(one), self.graph.text(other)
    if name == name_2:
      question = draw(self.rng, LISTS[name].shared).replace('{a}', a).replace('{b}', b)
    else:
      question = (f"Which {noun} {LISTS[name].clause.replace('{s}', a)} and "
                  f"{LISTS[name_2].clause.replace('{s}', b)}?")
    steps = (self._lookup(name, one), self._lookup(name_2, other))
    task = Task('', 'qa', sentence_case(question), self.graph.names(target), steps, _all_passages(steps),
                type='intersection', provenance={'relations': [name, name_2], 'subjects': [one, other]})
    return target, (one, other), task

  def _claim(self) -> Draft | None:
    truth = self._claims_made % 2 == 0
    shape = int(self.rng.integers(10))
    draft = self._compared_claim(truth) if shape < 2 else (
        self._listed_claim(truth) if shape < 4 else self._chain_claim(truth, 1 if shape < 6 else 2))
    self._claims_made += draft is not None
    return draft

  def _claim_task(self, truth: bool, claim: str, steps: tuple[SubQuestion, ...],
                  **provenance: object) -> Task:
    return Task('', 'claim', sentence_case(claim), ('Yes',) if truth else ('No',), steps,
                _all_passages(steps), type='claim', provenance=provenance)

  def _chain_claim(self, truth: bool, length: int) -> Draft | None:
    chain = self.walker.draw(self.rng, length)
    if chain is None or chain.hops[-1].back or not RELATIONS[chain.hops[-1].relation].claims:
      return None
    relation = chain.hops[-1].relation
    value = chain.stops[-1] if truth else draw(self.rng, self.graph.with_relation(relation)).target
    subject = self.walker.phrase(chain, length - 1, self.rng)
    if (value == chain.stops[-1]) != truth or value in (chain.start, *chain.stops[:-1]) or (
        self.walker.gives_away(chain, subject)):
      return None
    template = draw(self.rng, RELATIONS[relation].claims)
    claim = template.replace('{s}', subject).replace('{o}', self.graph.text(value))
    task = self._claim_task(truth, claim, self.walker.subquestions(chain, self.rng), start=chain.start,
                            hops=[('^' if h.back else '') + h.relation for h in chain.hops], value=value)
    return chain.start, (chain.start,), task

  def _listed_claim(self, truth: bool) -> Draft | None:
    name = draw(self.rng, tuple(LISTS))
    subject = draw(self.rng, self._lists[name])
    members = [fact.target for fact in self.graph.about(subject, name)]
    value = draw(self.rng, tuple(members)) if truth else draw(self.rng, self.graph.with_relation(name)).target
    words = set(text.fold(self.graph.text(value)).split())
    near = any(words & set(text.fold(self.graph.text(m)).split()) for m in members)
    if value == subject or (value in members) != truth or (near and not truth):
      return None
    claim = draw(self.rng, LISTS[name].claims).replace('{s}', self.graph.text(subject)).replace(
        '{o}', self.graph.text(value))
    task = self._claim_task(truth, claim, (self._lookup(name, subject),), relation=name, subjects=[subject],
                            value=value)
    return subject, (subject,), task

  def _compared_claim(self, truth: bool) -> Draft | None:
    name = draw(self.rng, tuple(COMPARISONS))
    pair = self._pair(name)
    if pair is None:
      return None
    order = [pair[0].subject, pair[1].subject] if truth else [pair[1].subject, pair[0].subject]
    a, b = (self.graph.text(s) for s in order)
    claim = COMPARISONS[name].more_claim.replace('{a}', a).replace('{b}', b)
    task = self._claim_task(truth, claim, tuple(self._lookup(name, s) for s in order), relation=name,
                            subjects=order)
    return order[0], (order[0],), task


def _interleave(by_type: dict[str, list[Task]]) -> list[Task]:
  """Mixes the types so that every beginning of the list has them in proportion."""
  total = sum(len(tasks) for tasks in by_type.values())
  taken = dict.fromkeys(by_type, 0)
  mixed = []
  for position in range(1, total + 1):
    kind = max(by_type, key=lambda k: len(by_type[k]) * position / total - taken[k])
    mixed.append(by_type[kind][taken[kind]])
    taken[kind] += 1
  return mixed


class _Caps:
  """Keeps any answer, start or stop from dominating a split."""

  def __init__(self):
    self._count = collections.Counter()
    self._seen: set[object] = set()

  def admit(self, split: str, quota: int, key: str, passed: tuple[str, ...], task: Task) -> bool:
    """Whether a draft is new and within all caps; if so it is counted."""
    size, kind = SIZES[split], task.type
    # Two things compared or intersected in the other order are the same question.
    pair = sorted(task.provenance.get('subjects', ())) if kind in ('comparison', 'intersection') else ()
    same = (kind, *pair, *task.answers[:1]) if pair else text.fold(task.question)
    claim, chain = kind == 'claim', kind in ('single', 'bridge2', 'bridge3')
    is_figure = '=' in key and any(c.isdigit() for c in key)
    limits = {
        ('start', split, chain or claim, passed[0]): _START_MOST if chain or claim else 8 + size // 300,
        **{('stop', split, stop): _STOP_SHARE * size for stop in passed[1:]},
        **({('verdict', split, task.answers): -(-quota // 2)} if claim else
           {('answer', split, key): (_FIGURE_SHARE if is_figure else _ANSWER_SHARE) * size,
            ('answer', split, kind, key): max(5, _ANSWER_SHARE_OF_TYPE * quota)}),
    }
    if chain:
      limits['last', split, kind, task.provenance['hops'][-1]] = max(5, _LAST_HOP_SHARE * quota)
    if same in self._seen or any(self._count[limit] + 1 > most for limit, most in limits.items()):
      return False
    self._seen.add(same)
    self._count.update(limits.keys())
    return True


def make_tasks(graph: EntityGraph, seed: int) -> dict[str, tuple[Task, ...]]:
  """Draws the questions of all splits.

  Args:
    graph: facts with their evidence.
    seed: decides what is drawn; the split of an answer does not depend on it.

  Returns:
    Tasks by split, ids '{split}-{number}'.
  """
  maker = QuestionMaker(graph, np.random.default_rng((seed, 1)))
  caps = _Caps()
  kept = {split: {kind: [] for kind in MIX} for split in SIZES}
  for kind, share in MIX.items():
    left = {split: round(size * share) for split, size in SIZES.items()}
    quota, fruitless = dict(left), 0
    while any(left.values()) and fruitless < _FRUITLESS_MOST:
      fruitless += 1
      draft = maker.makers[kind]()
      split = split_of(graph.text(draft[0])) if draft else ''
      if draft and left[split] and caps.admit(split, quota[split], *draft):
        kept[split][kind].append(draft[2])
        left[split] -= 1
        fruitless = 0
  return {split: tuple(_numbered(split, _interleave(kinds))) for split, kinds in kept.items()}


def _numbered(split: str, tasks: list[Task]) -> list[Task]:
  return [dataclasses.replace(task, id=f'{split}-{number:05d}', split=split)
          for number, task in enumerate(tasks)]
