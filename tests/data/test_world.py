"""The built-in world: size, determinism, splits, and that every question has its one answer in the facts."""

import collections
import hashlib
import json
import os
import re
import subprocess
import sys

import bm25s
import pytest

from acesearch_jax.data import world as world_lib
from acesearch_jax.data.world import factbook, geonames, text
from acesearch_jax.data.world.pairs import COMPARISONS, LISTS
from acesearch_jax.errors import UserError

DIGEST = (
    'import hashlib, json\n'
    'from acesearch_jax.data.world import build_world\n'
    'w = build_world(0)\n'
    'rows = [[p.id, p.title, p.text] for p in w.passages]\n'
    'rows += [t.to_json() for s in w.tasks for t in w.tasks[s]]\n'
    'rows += [[f.subject, f.relation, f.target, [m.passage for m in w.graph.evidence(f)]]'
    ' for f in w.graph.facts]\n'
    'print(hashlib.sha256(json.dumps(rows).encode()).hexdigest())\n'
)


@pytest.fixture(scope='module')
def world():
  return world_lib.build_world(0)


@pytest.fixture(scope='module')
def passages(world):
  return {passage.id: passage for passage in world.passages}


@pytest.fixture(scope='module')
def tasks(world):
  return [task for split in world.tasks.values() for task in split]


def test_counts(world):
  assert len(world.graph.entities) >= 5000
  assert len(world.graph.facts) >= 20_000
  assert len(world.passages) >= 5000
  assert len(world.graph.relations) >= 25
  assert {s: len(t) >= n for (s, t), n in zip(world.tasks.items(), (4000, 1000, 2000), strict=True)} == {
      'train': True, 'dev': True, 'test': True}


def test_same_bytes_in_another_process(world):
  rows = [[p.id, p.title, p.text] for p in world.passages]
  rows += [t.to_json() for s in world.tasks for t in world.tasks[s]]
  rows += [[f.subject, f.relation, f.target, [m.passage for m in world.graph.evidence(f)]]
           for f in world.graph.facts]
  here = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
  root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
  there = subprocess.run(
      [sys.executable, '-c', DIGEST], capture_output=True, text=True, check=True, cwd=root,
      env={**os.environ, 'PYTHONHASHSEED': '77'}).stdout.strip()
  assert here == there


def test_texts_of_entities_are_unique(world):
  count = collections.Counter(text.fold(e.text) for e in world.graph.entities.values())
  shared = [t for t, n in count.items() if n > 1]
  assert not shared
  names = collections.Counter(text.fold(e.name) for e in world.graph.entities.values() if e.type == 'city')
  assert sum(n > 1 for n in names.values()) >= 50  # homonyms are there, as different entities
  georgias = {e.type for e in world.graph.entities.values() if e.name == 'Georgia'}
  assert {'country', 'state'} <= georgias


def test_every_fact_is_stated_where_the_graph_says(world, passages):
  for fact in world.graph.facts:
    mentions = world.graph.evidence(fact)
    assert mentions, fact
    for mention in mentions:
      span = passages[mention.passage].text[mention.start:mention.end]
      assert text.fold(span) == text.fold(world.graph.text(fact.target)) or span == fact.value


def test_passages_are_short_and_free_of_markers(world):
  words = [len(p.text.split()) for p in world.passages]
  assert max(words) <= 55 and sum(words) / len(words) < 30
  assert len({p.id for p in world.passages}) == len(world.passages)
  for passage in world.passages:
    assert not re.search(r'[#<>|{}]', passage.title + passage.text), passage
    assert not passage.text[0].islower() and passage.text.endswith('.'), passage


def test_splits_share_no_question_and_no_answer(world):
  questions, answers, subjects = {}, {}, {}
  for split, members in world.tasks.items():
    for task in members:
      assert task.split == split
      assert questions.setdefault(task.question, task.id) == task.id
      if task.kind == 'claim':
        subject = task.provenance.get('start') or task.provenance['subjects'][0]
        assert subjects.setdefault(subject, split) == split
      else:
        assert answers.setdefault(task.answers[0], split) == split


def test_mix_of_types_and_of_answers(world):
  for members in world.tasks.values():
    share = {k: n / len(members) for k, n in collections.Counter(t.type for t in members).items()}
    start = {k: n / 200 for k, n in collections.Counter(t.type for t in members[:200]).items()}
    assert set(share) == set(start) == {'single', 'bridge2', 'bridge3', 'comparison', 'intersection', 'claim'}
    assert all(abs(share[k] - start[k]) < 0.02 for k in share)
    assert share['bridge2'] + share['bridge3'] > 0.4
    top = collections.Counter(t.answers[0] for t in members if t.kind != 'claim').most_common(1)[0][1]
    assert top <= 0.01 * len(members)
    verdicts = collections.Counter(t.answers for t in members if t.kind == 'claim')
    assert set(verdicts) == {('Yes',), ('No',)} and abs(verdicts['Yes',] - verdicts['No',]) <= 2


def _walk(graph, start, hops):
  """All ends of the hops from the start, by scanning the facts rather than by the maker's own index."""
  ends = {start}
  for hop in hops:
    name = hop.lstrip('^')
    facts = graph.with_relation(name)
    ends = ({f.subject for f in facts if f.target in ends} if hop[0] == '^'
            else {f.target for f in facts if f.subject in ends})
  return ends


def test_chains_lead_to_exactly_the_answer(world, tasks):
  chains = [t for t in tasks if 'hops' in t.provenance]
  assert len(chains) > 3000
  for task in chains[::7]:
    ends = _walk(world.graph, task.provenance['start'], task.provenance['hops'])
    assert len(ends) == 1, task
    end = ends.pop()
    assert task.subquestions[-1].answer == world.graph.text(end)
    for count, step in enumerate(task.subquestions, start=1):
      (stop,) = _walk(world.graph, task.provenance['start'], task.provenance['hops'][:count])
      assert step.answer == world.graph.text(stop)
    if task.kind == 'claim':
      assert (task.provenance['value'] == end) == (task.answers == ('Yes',))
    else:
      assert set(task.answers) == set(world.graph.names(end))


def test_pairs_have_exactly_the_answer(world, tasks):
  graph = world.graph
  seen = collections.Counter()
  for task in tasks:
    if task.type == 'intersection':
      sides = [{f.target for f in graph.about(s, r)}
               for s, r in zip(task.provenance['subjects'], task.provenance['relations'], strict=True)]
      (common,) = sides[0] & sides[1]
      assert set(task.answers) == set(graph.names(common))
    elif task.type == 'comparison':
      name = task.provenance['relation']
      numbers = {s: graph.about(s, name)[0].number for s in task.provenance['subjects']}
      pick = (max if task.provenance['larger'] else min)(numbers, key=numbers.get)
      assert set(task.answers) == set(graph.names(pick)) and len(set(numbers.values())) == 2
      wording = COMPARISONS[name].more if task.provenance['larger'] else COMPARISONS[name].less
      a, b = (graph.text(s) for s in task.provenance['subjects'])
      assert task.question.lower() in {w.replace('{a}', a).replace('{b}', b).lower() for w in wording}
    elif task.kind == 'claim' and 'relation' in task.provenance:
      name, subjects = task.provenance['relation'], task.provenance['subjects']
      if name in LISTS:
        true = task.provenance['value'] in {f.target for f in graph.about(subjects[0], name)}
      else:
        true = graph.about(subjects[0], name)[0].number > graph.about(subjects[1], name)[0].number
      assert task.answers == (('Yes',) if true else ('No',))
    else:
      continue
    seen[task.type] += 1
  assert min(seen[k] for k in ('intersection', 'comparison', 'claim')) > 100


def test_gold_passages_hold_the_gold_sub_answers(tasks, passages):
  for task in tasks:
    assert task.subquestions and task.passages
    for step in task.subquestions:
      assert step.passages
      for passage in step.passages:
        assert f' {text.fold(step.answer)} ' in f' {text.fold(passages[passage].text)} '
      assert set(step.passages) <= set(task.passages)


def test_references_point_back_and_questions_do_not_name_the_answer(tasks):
  for task in tasks:
    for number, step in enumerate(task.subquestions, start=1):
      assert all(0 < int(k) < number for k in re.findall(r'#(\d+)', step.question)), task
      assert step.question[-1] == '?' and '{' not in step.question
    assert '#' not in task.question and '{' not in task.question and 'the the ' not in task.question
    if task.type in ('bridge2', 'bridge3'):
      assert len(task.subquestions) == int(task.type[-1])
      words = f' {text.fold(task.question)} '
      assert not any(f' {text.fold(step.answer)} ' in words for step in task.subquestions)


def test_lexical_retrieval_finds_gold_passages_by_sub_questions_only(world):
  retriever = bm25s.BM25(method='lucene', k1=0.9, b=0.4)
  documents = [f'{p.title}. {p.text}' for p in world.passages]
  retriever.index(bm25s.tokenize(documents, stopwords='en', show_progress=False), show_progress=False)

  def found(queries, golds):
    tokens = bm25s.tokenize(queries, stopwords='en', show_progress=False)
    rows, _ = retriever.retrieve(tokens, k=5, show_progress=False)
    ids = [{world.passages[i].id for i in row} for row in rows]
    return sum(set(gold) <= row for gold, row in zip(golds, ids, strict=True)) / len(queries)

  tasks = world.tasks['dev'][:300]
  queries, golds = [], []
  for task in tasks:
    for step in task.subquestions:
      queries.append(re.sub(r'#(\d+)', lambda m, t=task: t.subquestions[int(m[1]) - 1].answer, step.question))
      golds.append(step.passages)
  assert found(queries, golds) >= 0.9
  chains = [t for t in tasks if t.type in ('bridge2', 'bridge3')]
  assert found([t.question for t in chains], [t.passages for t in chains]) < 0.35


def test_names_that_differ_between_sources_are_one_country(world):
  places = geonames.load_places(factbook.sovereign_codes())
  for names in (('Burma', 'Myanmar'), ('Czechia', 'Czech Republic'), ('USA', 'the United States'),
                ('S. Korea', 'South Korea'), ('DR Congo', 'Democratic Republic of the Congo')):
    found = {places.resolve(name) for name in names}
    assert len(found) == 1 and None not in found, names
  assert places.resolve('Atlantis') is None
  assert len({places.resolve(n) for n in ('Republic of the Congo', 'DR Congo')}) == 2


@pytest.mark.parametrize(('raw', 'name'), [
    ('President Abdelmadjid TEBBOUNE (since 12 December 2019)', 'Abdelmadjid Tebboune'),
    ('King CHARLES III (since 8 September 2022); represented by Governor Sam MOSTYN', 'King Charles III'),
    ('Co-prince Emmanuel MACRON (since 14 May 2017)', None),
    ('unknown', None),
])
def test_person_name(raw, name):
  assert factbook.person_name(raw) == name


@pytest.mark.parametrize(('raw', 'name'), [
    ('Algerian dinars (DZD) per US dollar -', 'Algerian dinar'),
    ('lei (RON) per US dollar -', 'leu'),
    ('Communaute Financiere Africaine francs (XOF) per US dollar -', 'West African CFA franc'),
])
def test_currency_name(raw, name):
  assert factbook.currency_name(raw) == name


@pytest.mark.parametrize(('raw', 'name'), [
    ('Oslo', 'Oslo'), ('Baku (Baki, Baky)', 'Baku'), ('Washington, D.C.', 'Washington, D.C.'),
    ('La Paz (administrative capital); Sucre (constitutional capital)', None),
])
def test_capital_name(raw, name):
  assert factbook.capital_name(raw) == name


def test_missing_package_is_one_clear_sentence():
  with pytest.raises(UserError, match='pip install no-such-data'):
    text.package_folder('no_such_data', 'no-such-data')
