"""Rows of public question sets, in their official forms and in one common form, as tasks."""

import dataclasses
import hashlib
import re
from typing import Any

from acesearch_jax.data.tasks import Passage, SubQuestion, Task

Row = dict[str, Any]

# MuSiQue writes some steps as `entity >> relation`; relations that read badly after 'What is the … of'.
_PHRASES = {
    'located in the administrative territorial entity': 'In which administrative area is {} located?',
    'location': 'Where is {} located?',
    'country': 'In which country is {}?',
    'country of citizenship': 'Of which country is {} a citizen?',
    'headquarters location': 'Where is the headquarters of {}?',
    'place of birth': 'Where was {} born?',
    'place of death': 'Where did {} die?',
    'performer': 'Who is the performer of {}?',
    'spouse': 'Who is the spouse of {}?',
    'author': 'Who is the author of {}?',
    'creator': 'Who is the creator of {}?',
    'composer': 'Who is the composer of {}?',
    'director': 'Who is the director of {}?',
    'producer': 'Who is the producer of {}?',
    'screenwriter': 'Who is the screenwriter of {}?',
    'father': 'Who is the father of {}?',
    'mother': 'Who is the mother of {}?',
    'child': 'Who is the child of {}?',
    'sibling': 'Who is the sibling of {}?',
    'cast member': 'Who is a cast member of {}?',
    'winner': 'Who is the winner of {}?',
    'employer': 'Who is the employer of {}?',
    'founded by': 'Who founded {}?',
    'owned by': 'Who owns {}?',
    'distributed by': 'Who distributes {}?',
    'drafted by': 'Who drafted {}?',
    'shares border with': 'What shares a border with {}?',
    'member of sports team': 'Of which sports team is {} a member?',
    'member of political party': 'Of which political party is {} a member?',
    'member of': 'Of what is {} a member?',
    'educated at': 'Where was {} educated?',
    'contains administrative territorial entity': 'Which administrative area does {} contain?',
    'instance of': 'What kind of thing is {}?',
    'part of': 'What is {} a part of?',
    'part of the series': 'Of which series is {} a part?',
    'has part': 'What is a part of {}?',
    'capital of': 'What is {} the capital of?',
    'licensed to broadcast to': 'Where is {} licensed to broadcast to?',
    'located on terrain feature': 'On which terrain feature is {} located?',
    'located in or next to body of water': 'In or next to which body of water is {} located?',
    'named after': 'What is {} named after?',
    'followed by': 'What is {} followed by?',
    'follows': 'What does {} follow?',
    'participant in': 'What is {} a participant in?',
    'present in work': 'In which work is {} present?',
    'crosses': 'What does {} cross?',
    'based on': 'What is {} based on?',
    'award received': 'Which award did {} receive?',
    'applies to jurisdiction': 'To which jurisdiction does {} apply?',
    'place served by transport hub': 'Which place does {} serve?',
}


def task_from_row(row: Row) -> Task | None:
  """A task from a row of any known form, None for a row that has no right answer.

  Raises:
    KeyError, TypeError, ValueError, AttributeError, IndexError: the row is broken.
  """
  if 'paragraphs' in row:
    return None if row.get('answerable') is False else _musique(row)
  if '_id' in row or 'supporting_facts' in row:
    return _hotpot(row)
  if 'Question' in row:
    question = row['Question']
    return Task.from_json({'id': _digest(question), 'question': question, 'answers': [row['Answer']]})
  if _common(row):
    return None if row.get('answerable') is False else _converted(row)
  return Task.from_json(row)


def passage(title: str, text: str) -> Passage:
  """A passage whose id is a digest of its content, so that equal passages of two rows are one."""
  if not isinstance(title, str) or not isinstance(text, str):
    raise ValueError('a passage needs a title and a text, both strings')
  return Passage(_digest(f'{title}\n{text}'), title, text)


def keyed_by_content(task: Task) -> Task:
  """The task with content digests as passage ids, here and in what refers to them."""
  context = tuple(passage(p.title, p.text) for p in task.context)
  ids = {old.id: new.id for old, new in zip(task.context, context, strict=True)}

  def renamed(passages: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(ids.get(id_, id_) for id_ in passages)

  steps = tuple(dataclasses.replace(s, passages=renamed(s.passages)) for s in task.subquestions)
  return dataclasses.replace(task, context=context, passages=renamed(task.passages), subquestions=steps)


def _hotpot(row: Row) -> Task:
  """HotpotQA (distractor) and 2WikiMultiHopQA: `context` is [[title, [sentences]]]."""
  context = tuple(passage(title, _joined(sentences)) for title, sentences in row['context'])
  titles = [title for title, _ in row.get('supporting_facts') or ()]
  return _task(row, [row['answer']], context, _titled(context, titles), (), row.get('type') or '')


def _musique(row: Row) -> Task:
  """MuSiQue-Answerable: `paragraphs` with `is_supporting`, steps with the place of their paragraph."""
  context = tuple(passage(p['title'], p['paragraph_text']) for p in row['paragraphs'])
  places = {p.get('idx', i): i for i, p in enumerate(row['paragraphs'])}
  gold = tuple(context[i].id for i, p in enumerate(row['paragraphs']) if p.get('is_supporting'))
  steps = []
  for step in row.get('question_decomposition') or ():
    support = step.get('paragraph_support_idx')
    proof = () if support is None else (context[places[support]].id,)
    steps.append(SubQuestion(_in_words(step['question']), step['answer'], proof))
  answers = [row['answer'], *(row.get('answer_aliases') or ())]
  return _task(row, answers, context, gold, tuple(steps), row['id'].split('__')[0])


def _common(row: Row) -> bool:
  passages = row.get('passages')
  return any(name in row for name in ('decomposition', 'supporting', 'facts')) or bool(
      isinstance(passages, list) and passages and isinstance(passages[0], dict)
  )


def _converted(row: Row) -> Task:
  """The common form: answers, passages, supporting and decomposition under the same names in all sets."""
  context = tuple(passage(p['title'], p['text']) for p in row.get('passages') or ())
  gold: dict[str, None] = {}
  for support in row.get('supporting') or ():
    if isinstance(support, dict):
      place, title = support.get('passage'), support.get('title')
      gold |= dict.fromkeys(_titled(context, [title]) if place is None else [context[place].id])
  if row.get('evidences'):
    steps = _with_spans(row.get('decomposition') or [], row['evidences'])
  else:
    steps = tuple(
        SubQuestion(_in_words(s['question']), s['answer'] or '', _titled(context, [s.get('support')]))
        for s in row.get('decomposition') or ()
    )
  return _task(row, row['answers'], context, tuple(gold), steps, row.get('type') or '')


def _task(
    row: Row,
    answers: list[str],
    context: tuple[Passage, ...],
    gold: tuple[str, ...],
    steps: tuple[SubQuestion, ...],
    type_: str,
) -> Task:
  fields = {'id': row.get('id') or row.get('_id'), 'question': row['question'], 'answers': answers}
  bare = Task.from_json({**fields, 'type': type_, 'split': row.get('split') or ''})
  context = tuple(dict.fromkeys(context))
  return dataclasses.replace(bare, context=context, passages=tuple(dict.fromkeys(gold)), subquestions=steps)


def _with_spans(steps: list[Row], evidences: list[list[str]]) -> tuple[SubQuestion, ...]:
  """Steps whose answers are sentences, with the evidence triples' objects as answers instead.

  Names of earlier answers in a question become references. Empty where triples and steps do not match
  one to one: a plan that names what it is to find teaches nothing.
  """
  if not steps or len(steps) != len(evidences):
    return ()
  answers = [str(evidence[2]) for evidence in evidences]
  if any(a.casefold() not in (s['answer'] or '').casefold() for a, s in zip(answers, steps, strict=True)):
    return ()
  found = []
  for index, step in enumerate(steps):
    question = step['question']
    for earlier, answer in enumerate(answers[:index], start=1):
      question = re.sub(rf'(?<!\w){re.escape(answer)}(?!\w)', f'#{earlier}', question)
    found.append(SubQuestion(_in_words(question), answers[index]))
  return tuple(found)


def _in_words(step: str) -> str:
  """A step as a question: templates `entity >> relation` in words, a capital and a question mark."""
  entity, arrow, relation = (part.strip() for part in step.partition('>>'))
  if arrow:
    return _PHRASES.get(relation, f'What is the {relation} of {{}}?').replace('{}', entity)
  question = f'{step.strip().rstrip("?").rstrip()}?' if not step.rstrip().endswith('.') else step.strip()
  return question[:1].upper() + question[1:]


def _titled(context: tuple[Passage, ...], titles: list[str | None]) -> tuple[str, ...]:
  return tuple(p.id for title in dict.fromkeys(titles) for p in context if p.title == title)


def _joined(sentences: list[str]) -> str:
  if isinstance(sentences, str):
    raise ValueError("the sentences of 'context' must be a list")
  return ' '.join(sentence.strip() for sentence in sentences)


def _digest(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()[:16]
