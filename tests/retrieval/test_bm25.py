"""BM25: scores against the formula, empty results, order, and the index on disk."""

import json
import math
import os
import pathlib
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acesearch_jax.data.tasks import Passage
from acesearch_jax.errors import UserError
from acesearch_jax.retrieval.base import read_corpus
from acesearch_jax.retrieval.bm25 import BM25Retriever
from acesearch_jax.retrieval.words import words

_ROOT = pathlib.Path(__file__).parents[2]
_PASSAGES = [
    Passage('a', 'Ossel', 'Ossel is a river town in Maravia. The river is cold.'),
    Passage('b', 'Maravia', 'Maravia has one river, and vitamin C.'),
    Passage('c', 'The Who', 'They were an English band.'),
    Passage('d', 'Pál Gábor', "Gábor's film of 1978 is Angi Vera."),
]


def _lucene(passages, query, k1, b):
  """Scores straight from the definition, one passage after the other."""
  documents = [words(p.title) + words(p.text) for p in passages]
  mean = sum(map(len, documents)) / len(documents)
  scores = []
  for document in documents:
    score = 0.0
    for word in words(query):
      count, containing = document.count(word), sum(word in other for other in documents)
      idf = math.log(1 + (len(documents) - containing + 0.5) / (containing + 0.5))
      score += idf * count / (count + k1 * (1 - b + b * len(document) / mean))
    scores.append(score)
  return scores


def _ids(hits):
  return [hit.passage.id for hit in hits]


@pytest.fixture(scope='module')
def retriever():
  return BM25Retriever(_PASSAGES)


@pytest.mark.parametrize(('k1', 'b'), [(0.9, 0.4), (1.5, 0.75)])
@pytest.mark.parametrize('query', ['Which river runs through Ossel?', 'film of 1978', 'river river cold'])
def test_scores_follow_the_definition(query, k1, b):
  hits = BM25Retriever(_PASSAGES, k1, b).retrieve([query], 10)[0]
  expected = dict(zip('abcd', _lucene(_PASSAGES, query, k1, b), strict=True))
  assert {h.passage.id: h.score for h in hits} == pytest.approx({i: s for i, s in expected.items() if s > 0})
  assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)


@pytest.mark.parametrize('query', ['', '   ', '?!', 'zebra', 'what is it for', 'of it', '\x00', '#1'])
def test_a_query_that_shares_no_word_finds_nothing(retriever, query):
  assert retriever.retrieve([query], 3) == [[]]


def test_batches_answer_in_order(retriever):
  found = retriever.retrieve(['Maravia', 'nothing', 'band'], 2)
  assert [_ids(hits) for hits in found] == [['b', 'a'], [], ['c']]
  assert retriever.retrieve([], 2) == []


def test_titles_short_words_numbers_accents_and_possessives_count(retriever):
  assert _ids(retriever.retrieve(['vitamin c'], 1)[0]) == ['b']
  assert _ids(retriever.retrieve(['1978'], 9)[0]) == ['d']
  assert _ids(retriever.retrieve(['GABOR'], 9)[0]) == ['d']
  assert _ids(retriever.retrieve(["Ossel's"], 9)[0]) == ['a']
  assert _ids(retriever.retrieve(['The Who'], 9)[0]) == ['c']


def test_k_beyond_the_corpus_and_k_below_one(retriever):
  assert set(_ids(retriever.retrieve(['river film band'], 1000)[0])) == set('abcd')
  with pytest.raises(ValueError, match='k is 0'):
    retriever.retrieve(['river'], 0)


def test_ties_keep_the_order_of_the_corpus():
  twins = [Passage(str(i), '', 'same words here') for i in range(50)]
  retriever = BM25Retriever([*twins, Passage('x', '', 'same same same words words')])
  assert _ids(retriever.retrieve(['same words'], 6)[0]) == ['x', '0', '1', '2', '3', '4']
  assert _ids(retriever.retrieve(['words same'], 50)[0]) == ['x', *map(str, range(49))]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.sampled_from('ab c')), min_size=1, max_size=6), st.text(), st.integers(1, 9))
def test_any_query_gives_distinct_positive_sorted_hits(texts, query, k):
  retriever = BM25Retriever([Passage(str(i), 'x', text) for i, text in enumerate(texts)])
  for hits in retriever.retrieve([query, 'a b c x'], k):
    assert len(hits) <= min(k, len(texts)) and len(set(_ids(hits))) == len(hits)
    assert all(h.score > 0 for h in hits)
    assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)


@pytest.mark.parametrize('passages', [[], [Passage('a', '', '...')], [Passage('a', '', '')]])
def test_an_empty_corpus_is_refused(passages):
  with pytest.raises(UserError, match='corpus is empty'):
    BM25Retriever(passages)


def test_a_passage_without_words_is_harmless():
  retriever = BM25Retriever([Passage('a', '', '—'), Passage('b', '', 'river')])
  assert _ids(retriever.retrieve(['river'], 2)[0]) == ['b']


def test_saved_and_loaded_give_the_same_hits(retriever, tmp_path):
  retriever.save(tmp_path / 'deep' / 'index')
  loaded = BM25Retriever.load(tmp_path / 'deep' / 'index')
  queries = ['river in Maravia', 'GABOR', 'The Who', 'nothing']
  assert loaded.retrieve(queries, 3) == retriever.retrieve(queries, 3)
  assert list(loaded.passages) == _PASSAGES
  with pytest.raises(IndexError):
    loaded.passages[4]
  assert os.listdir(tmp_path / 'deep') == ['index']


def test_an_index_is_replaced_but_nothing_else(retriever, tmp_path):
  retriever.save(tmp_path / 'index')
  BM25Retriever([Passage('z', '', 'zebra')]).save(tmp_path / 'index')
  assert _ids(BM25Retriever.load(tmp_path / 'index').retrieve(['zebra'], 1)[0]) == ['z']
  (tmp_path / 'thesis').mkdir()
  (tmp_path / 'thesis' / 'chapter.txt').write_text('years of work')
  with pytest.raises(UserError, match='is no index; choose'):
    retriever.save(tmp_path / 'thesis')
  assert (tmp_path / 'thesis' / 'chapter.txt').read_text() == 'years of work'


def test_every_missing_or_cut_file_is_reported(retriever, tmp_path):
  with pytest.raises(UserError, match='holds no index; build one'):
    BM25Retriever.load(tmp_path / 'nowhere')
  retriever.save(tmp_path / 'index')
  names = sorted(os.listdir(tmp_path / 'index'))
  assert 'index.json' in names and len(names) == 8
  for name in names:
    retriever.save(tmp_path / 'index')
    path = tmp_path / 'index' / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match='damaged|not valid JSON'):
      BM25Retriever.load(tmp_path / 'index')
    path.unlink()
    with pytest.raises(UserError, match=f'{name} is missing|holds no index'):
      BM25Retriever.load(tmp_path / 'index')


def test_garbage_of_the_right_length_is_reported(retriever, tmp_path):
  retriever.save(tmp_path)
  for name in ('data.csc.index.npy', 'vocab.index.json', 'params.index.json', 'passages.offsets.npy'):
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(b'\xff' * len(whole))
    with pytest.raises(UserError, match='damaged'):
      BM25Retriever.load(tmp_path)
    (tmp_path / name).write_bytes(whole)
  (tmp_path / 'index.json').write_text('{"format": 999}')
  with pytest.raises(UserError, match='format 999'):
    BM25Retriever.load(tmp_path)


def test_importing_and_reading_do_not_touch_jax(tmp_path):
  code = (
      'import sys; import acesearch_jax.retrieval.bm25; '
      "sys.exit('bm25s' in sys.modules or 'jax' in sys.modules)"
  )
  assert subprocess.run([sys.executable, '-c', code], cwd=_ROOT, timeout=60).returncode == 0


def test_both_forms_of_a_corpus(tmp_path):
  path = tmp_path / 'corpus.jsonl'
  rows = [
      {'id': 1, 'title': 'Ossel', 'text': 'A town.'},
      {'id': '2', 'contents': '"Maravia "the cold""\nA country.\nInland.'},
      {'id': 3, 'contents': 'Bare title\nText.'},
      {'id': 4, 'text': 'No title.'},
  ]
  path.write_text('\n'.join(map(json.dumps, rows)) + '\n\n')
  assert read_corpus(path) == [
      Passage('1', 'Ossel', 'A town.'),
      Passage('2', 'Maravia "the cold"', 'A country.\nInland.'),
      Passage('3', 'Bare title', 'Text.'),
      Passage('4', '', 'No title.'),
  ]


@pytest.mark.parametrize(('second', 'message'), [
    ({'title': 'x', 'text': 'y'}, "row 2 is not a passage: field 'id' is missing"),
    ({'id': 2, 'title': 'x'}, "row 2 is not a passage: field 'text' is missing"),
    ({'id': 2, 'title': 3, 'text': 'y'}, "row 2 is not a passage: field 'title' must be a string"),
    ({'id': 2, 'contents': ['x']}, "row 2 is not a passage: field 'contents' must be a string"),
    ({'id': [2], 'text': 'x'}, "row 2 is not a passage: field 'id' must be a string or an integer"),
    ({'id': 2, 'title': ' ', 'text': ''}, 'row 2 is not a passage: it has no text'),
    ({'id': 1, 'text': 'again'}, "row 2 repeats the id '1'"),
])
def test_broken_rows_of_a_corpus_are_named(tmp_path, second, message):
  path = tmp_path / 'corpus.jsonl'
  path.write_text(json.dumps({'id': 1, 'text': 'one'}) + '\n' + json.dumps(second))
  with pytest.raises(UserError) as error:
    read_corpus(path)
  assert message in str(error.value)


def test_empty_corpus_file(tmp_path):
  (tmp_path / 'corpus.jsonl').write_text('\n')
  with pytest.raises(UserError, match='empty corpus'):
    read_corpus(tmp_path / 'corpus.jsonl')


def _index(*arguments):
  return subprocess.run(
      [sys.executable, '-m', 'launch.index', *arguments], cwd=_ROOT, text=True, capture_output=True,
      env=os.environ | {'JAX_PLATFORMS': 'cpu'}, timeout=120,
  )  # fmt: skip


def test_the_command(tmp_path):
  corpus = tmp_path / 'corpus.jsonl'
  corpus.write_text(json.dumps({'id': 1, 'title': 'Ossel', 'text': 'A town.'}))
  done = _index(f'--corpus={corpus}', f'--output={tmp_path / "index"}')
  assert done.returncode == 0, done.stderr
  assert _ids(BM25Retriever.load(tmp_path / 'index').retrieve(['town'], 1)[0]) == ['1']
  corpus.write_text('{"id": 1, "title"')
  done = _index(f'--corpus={corpus}', f'--output={tmp_path / "other"}')
  assert done.returncode == 1 and f'{corpus}, line 1 is not valid JSON' in done.stderr
  assert done.stderr.count('\n') == 1 and not (tmp_path / 'other').exists()
  assert _index(f'--corpus={corpus}').returncode == 2
