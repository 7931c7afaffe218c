"""Question sets from rows in every form, written here."""

import json
import pathlib

import pytest

from acesearch_jax.agents.plan import format_plan, parse_plan
from acesearch_jax.data.question_sets import NAMES, load_tasks
from acesearch_jax.data.tasks import Passage, SubQuestion, Task, write_tasks
from acesearch_jax.errors import UsageError, UserError

_HOTPOT = {
    '_id': 'h1', 'question': 'Where was the author of The Glass Lantern born?', 'answer': 'Ossel',
    'type': 'bridge', 'level': 'hard', 'supporting_facts': [['The Glass Lantern', 0], ['Orla Venn', 1]],
    'context': [['Orla Venn', ['Orla Venn was a writer.', ' She was born in Ossel.']],
                ['Dolm Tower', ['A tower.']], ['The Glass Lantern', ['A novel by Orla Venn.']]],
}  # fmt: skip
_MUSIQUE = {
    'id': '2hop__1_2', 'question': 'Who is the spouse of the Glass performer?', 'answer': 'Ana',
    'answer_aliases': ['Ana Venn'], 'answerable': True,
    'paragraphs': [
        {'idx': 0, 'title': 'Ana', 'paragraph_text': 'Ana married Orla.', 'is_supporting': True},
        {'idx': 1, 'title': 'Dolm', 'paragraph_text': 'A tower.', 'is_supporting': False},
        {'idx': 2, 'title': 'Glass', 'paragraph_text': 'Sung by Orla.', 'is_supporting': True},
    ],
    'question_decomposition': [
        {'id': 1, 'question': 'Glass >> performer', 'answer': 'Orla', 'paragraph_support_idx': 2},
        {'id': 2, 'question': '#1 >> spouse', 'answer': 'Ana', 'paragraph_support_idx': 0},
    ],
}  # fmt: skip
_COMMON = {
    'id': 'c1', 'question': 'When did the director of Glass die?', 'answers': ['1956'],
    'type': 'compositional', 'split': 'train',
    'passages': [{'title': 'Orla', 'text': 'Orla died in 1956.', 'sentences': ['Orla died in 1956.']},
                 {'title': 'Glass', 'text': 'A film by Orla.'}],
    'supporting': [{'title': 'Glass', 'sent': 0}, {'title': 'Orla', 'sent': 0}, {'title': 'Orla', 'sent': 1}],
    'evidences': [['Glass', 'director', 'Orla'], ['Orla', 'date of death', '1956']],
    'decomposition': [{'question': 'Who directed Glass?', 'answer': 'Glass was directed by Orla.'},
                      {'question': 'When did Orla die?', 'answer': 'Orla died in 1956.'}],
}  # fmt: skip


def _write(path: pathlib.Path, rows) -> str:
  text = json.dumps(rows) if path.suffix == '.json' else '\n'.join(map(json.dumps, rows))
  path.write_text(text)
  return str(path)


def _titles(task, ids):
  return [next(p.title for p in task.context if p.id == id_) for id_ in ids]


@pytest.mark.parametrize(('name', 'file'), [
    ('hotpotqa', 'hotpot_dev_distractor_v1.json'), ('2wikimultihopqa', 'dev.json'),
])  # fmt: skip
def test_hotpotqa_and_2wiki(tmp_path, name, file):
  second = {**_HOTPOT, '_id': 'h2', 'context': [_HOTPOT['context'][1], ['Orla Venn', ['Another Orla.']]]}
  _write(tmp_path / file, [_HOTPOT, second])
  tasks, corpus = load_tasks(name, data_dir=tmp_path)
  task = tasks[0]
  assert (task.id, task.kind, task.answers, task.type) == ('h1', 'qa', ('Ossel',), 'bridge')
  assert task.context[0].text == 'Orla Venn was a writer. She was born in Ossel.'
  assert _titles(task, task.passages) == ['The Glass Lantern', 'Orla Venn']
  # Dolm Tower once; two different passages called Orla Venn.
  assert [p.title for p in corpus] == ['Orla Venn', 'Dolm Tower', 'The Glass Lantern', 'Orla Venn']
  assert len({p.id for p in corpus}) == 4
  assert set(tasks[1].context) <= set(corpus)


def test_musique(tmp_path):
  unanswerable = {**_MUSIQUE, 'id': '3hop1__9', 'answerable': False}
  _write(tmp_path / 'musique_ans_v1.0_dev.jsonl', [_MUSIQUE, unanswerable])
  (task,), corpus = load_tasks('musique', 'dev', tmp_path)
  assert (task.answers, task.type) == (('Ana', 'Ana Venn'), '2hop')
  assert _titles(task, task.passages) == ['Ana', 'Glass']
  steps = [s.question for s in task.subquestions]
  assert steps == ['Who is the performer of Glass?', 'Who is the spouse of #1?']
  assert parse_plan(format_plan(steps)).valid
  assert [_titles(task, s.passages) for s in task.subquestions] == [['Glass'], ['Ana']]
  assert len(corpus) == 3


@pytest.mark.parametrize(('step', 'words'), [
    ('#1 >> country of citizenship', 'Of which country is #1 a citizen?'),
    ('Ossel >> official colour', 'What is the official colour of Ossel?'),
    ('{} >> part of', 'What is {} a part of?'),
    ('Who was the first president of #1 ?', 'Who was the first president of #1?'),
    ('when did #1 leave', 'When did #1 leave?'),
    ('Orla was born in Ossel.', 'Orla was born in Ossel.'),
])
def test_steps_become_words(tmp_path, step, words):
  row = {**_MUSIQUE, 'question_decomposition': [{'question': step, 'answer': 'x'}]}
  (task,), _ = load_tasks(_write(tmp_path / 'rows.jsonl', [row]))
  assert task.subquestions == (SubQuestion(words, 'x'),)


@pytest.mark.parametrize('form', ['bamboogle.csv', 'bamboogle.json', 'bamboogle.jsonl'])
def test_bamboogle(tmp_path, form):
  if form.endswith('.csv'):
    (tmp_path / form).write_text('Question,Answer\n"Who, then?",Orla\nWhere?,Ossel\n')
  else:
    rows = [{'Question': 'Who, then?', 'Answer': 'Orla'}, {'Question': 'Where?', 'Answer': 'Ossel'}]
    _write(tmp_path / form, rows)
  tasks, corpus = load_tasks('bamboogle', data_dir=tmp_path)
  assert [(t.question, t.answers) for t in tasks] == [('Who, then?', ('Orla',)), ('Where?', ('Ossel',))]
  assert corpus is None and tasks[0].id != tasks[1].id


def test_the_common_form(tmp_path):
  (task,), corpus = load_tasks(_write(tmp_path / 'rows.jsonl', [_COMMON]))
  assert (task.split, task.type, task.answers) == ('train', 'compositional', ('1956',))
  assert _titles(task, task.passages) == ['Glass', 'Orla']
  assert task.subquestions == (
      SubQuestion('Who directed Glass?', 'Orla'),
      SubQuestion('When did #1 die?', '1956'),
  )
  assert tuple(corpus) == task.context


def test_sentences_without_matching_triples_are_left_out(tmp_path):
  row = {**_COMMON, 'evidences': _COMMON['evidences'][:1]}
  (task,), _ = load_tasks(_write(tmp_path / 'rows.jsonl', [row]))
  assert task.subquestions == ()


def test_the_common_form_without_passages_and_with_unknown_step_answers(tmp_path):
  rows = [
      {'id': 's1', 'question': 'Is it?', 'answers': ['yes'], 'facts': ['f'], 'supporting': ['Orla-1'],
       'decomposition': [{'question': 'How many?', 'answer': None},
                         {'question': 'Is #1 big?', 'answer': None}]},
      {'id': 'b1', 'question': 'Who?', 'answers': ['orla'], 'supporting': [], 'decomposition': []},
  ]  # fmt: skip
  tasks, corpus = load_tasks(_write(tmp_path / 'rows.jsonl', rows))
  assert tasks[0].subquestions == (SubQuestion('How many?', ''), SubQuestion('Is #1 big?', ''))
  assert corpus is None


def test_the_task_schema_keeps_everything(tmp_path):
  context = (Passage('p', 'Ossel', 'A town.'),)
  steps = (SubQuestion('Is it?', 'yes', ('p',)),)
  task = Task('t', 'claim', 'It is.', ('Yes',), steps, ('p',), context, 'c', 'dev', {'seed': 1})
  write_tasks(tmp_path / 'rows.jsonl', [task])
  assert load_tasks(str(tmp_path / 'rows.jsonl')) == ([task], list(context))


def test_passage_ids_that_rows_reuse_are_told_apart(tmp_path):
  rows = [
      {'id': str(n), 'question': 'Who?', 'answers': ['x'], 'passages': ['0'], 'kind': 'qa',
       'subquestions': [{'question': 'Who?', 'answer': 'x', 'passages': ['0']}],
       'context': [{'title': 'T', 'text': f'text {n}'}, {'title': 'same', 'text': 'same'}]}
      for n in (1, 2)
  ]  # fmt: skip
  tasks, corpus = load_tasks(_write(tmp_path / 'rows.jsonl', rows))
  assert [p.text for p in corpus] == ['text 1', 'same', 'text 2']
  for task, text in zip(tasks, ('text 1', 'text 2'), strict=True):
    assert [p.text for p in corpus if p.id in task.passages] == [text]
    assert task.subquestions[0].passages == task.passages


def test_split_and_limit(tmp_path):
  splits = ('train', 'dev', '')
  rows = [{**_COMMON, 'id': f'{split}{n}', 'split': split} for n in range(3) for split in splits]
  path = _write(tmp_path / 'rows.jsonl', rows)
  assert [t.id for t in load_tasks(path, 'dev')[0]] == ['dev0', '0', 'dev1', '1', 'dev2', '2']
  assert [t.id for t in load_tasks(path, 'dev', limit=2)[0]] == ['dev0', '0']
  assert len(load_tasks(path)[0]) == 9
  with pytest.raises(UserError, match="no rows of split 'test'"):
    load_tasks(_write(tmp_path / 'dev.jsonl', [_COMMON]), 'test')


def test_named_sets_read_common_rows_too(tmp_path):
  _write(tmp_path / 'hotpotqa_train.jsonl', [_COMMON])
  assert load_tasks('hotpotqa', 'train', tmp_path)[0][0].id == 'c1'


@pytest.mark.parametrize(('arguments', 'message'), [
    (('hotpot',), f"is called 'hotpot'; the sets are {', '.join(NAMES)}."),
    (('hotpotqa',), 'official files: give --data_dir, with hotpot_dev_distractor_v1.json'),
    (('hotpotqa', 'test'), "has no split 'test'; it has dev, train."),
    (('bamboogle', 'dev'), "has no split 'dev'; it has test."),
])
def test_wrong_names_are_wrong_usage(arguments, message):
  with pytest.raises(UsageError) as error:
    load_tasks(*arguments)
  assert message in str(error.value)


def test_missing_files(tmp_path):
  with pytest.raises(UserError, match='musique_ans_v1.0_dev.jsonl; download'):
    load_tasks('musique', data_dir=tmp_path)
  with pytest.raises(UserError, match='No such file: .*rows.jsonl'):
    load_tasks(str(tmp_path / 'rows.jsonl'))
  with pytest.raises(UserError, match='No such file'):
    load_tasks(str(tmp_path))


@pytest.mark.parametrize(('row', 'reason'), [
    ({'_id': 'x', 'question': 'Who?', 'context': []}, "field 'answer' is missing"),
    ({'_id': 'x', 'answer': 'a', 'context': []}, "field 'question' is missing"),
    ({'_id': 'x', 'question': 'Who?', 'answer': 'a', 'context': [['T']]}, 'not enough values'),
    ({'_id': 'x', 'question': 'Who?', 'answer': 'a', 'context': [['T', 'text']]}, 'must be a list'),
    ({'_id': 'x', 'question': 'Who?', 'answer': None, 'context': []}, 'must be a list of strings'),
    ({**_MUSIQUE, 'paragraphs': [{'title': 'T'}]}, "field 'paragraph_text' is missing"),
    ({**_COMMON, 'passages': [{'title': 'T', 'text': None}]}, 'a passage needs a title and a text'),
    ({**_COMMON, 'answers': 'Ossel'}, "field 'answers' must be a list of strings"),
    ({**_COMMON, 'answers': []}, "field 'answers' is missing or empty"),
    ({'id': 'x', 'question': 'Who?'}, "field 'answers' is missing or empty"),
    ({'Question': 'Who?'}, "field 'Answer' is missing"),
])
def test_broken_rows_are_named(tmp_path, row, reason):
  with pytest.raises(UserError) as error:
    load_tasks(_write(tmp_path / 'rows.jsonl', [_COMMON, row]))
  assert 'row 2 is broken: ' in str(error.value) and reason in str(error.value)
  assert 'mend or delete the row.' in str(error.value)


@pytest.mark.parametrize(('file', 'text', 'message'), [
    ('a.jsonl', '{"id": "x"', 'line 1 is not valid JSON'),
    ('a.json', '[{"_id": "x"', 'is not valid JSON'),
    ('a.json', '[1]', 'row 1 is broken: it is not a JSON object'),
    ('a.json', '[]', 'has no rows'),
    ('a.jsonl', '', 'has no rows'),
    ('a.csv', 'Question,Answer\n', 'has no rows'),
    ('a.csv', 'q,a\nWho?,Orla\n', 'row 1 is broken'),
])
def test_broken_files_are_named(tmp_path, file, text, message):
  (tmp_path / file).write_text(text)
  with pytest.raises(UserError) as error:
    load_tasks(str(tmp_path / file))
  assert message in str(error.value) and str(error.value).count('\n') == 0
