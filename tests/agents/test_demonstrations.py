"""Demonstrations show what self-play will ask, with the gold passage there to be read."""

import dataclasses

from acesearch_jax.agents import prompts
from acesearch_jax.agents.demonstrations import DemonstrationConfig, demonstrations
from acesearch_jax.agents.plan import parse_plan
from acesearch_jax.data.tasks import Passage, SubQuestion, Task
from acesearch_jax.retrieval.bm25 import BM25Retriever

PASSAGES = [Passage(f'p{i}', f'Town {i}', f'The flag of town {i} shows animal {i}.') for i in range(9)] + [
    Passage('far', 'Nothing', 'Frogs.')
]
TASK = Task(
    't', 'qa', 'What does the animal of town 3 eat?', ('frogs', 'frog'),
    subquestions=(
        SubQuestion('Which animal is on the flag of town 3?', 'animal 3', ('p3',)),
        SubQuestion('What does #1 eat?', 'frogs', ('far',)),
    ),
    passages=('p3', 'far'),
)  # fmt: skip
CONFIG = DemonstrationConfig(passages_per_step=3, final_passages=4, retrieved_every=2, direct_every=2)


def make(tasks):
  return demonstrations(tasks, BM25Retriever(PASSAGES), {p.id: p for p in PASSAGES}, CONFIG)


def test_one_of_each_role():
  shown = make([TASK])
  assert [one.role for one in shown] == ['step', 'step', 'decompose', 'final', 'retrieved', 'direct']
  steps = [one for one in shown if one.role == 'step']
  assert [one.reply for one in steps] == ['animal 3', 'frogs']
  # BM25 cannot find the passage of the second step; it is shown all the same.
  assert 'Nothing: Frogs.' in steps[1].prompt and steps[1].prompt.count('\nTown') == 2
  assert 'What does animal 3 eat?' in steps[1].prompt and '#1' not in steps[1].prompt
  plan = next(one for one in shown if one.role == 'decompose')
  assert parse_plan(plan.reply).steps == tuple(step.question for step in TASK.subquestions)
  assert plan.prompt == prompts.decompose(TASK.question)
  final = next(one for one in shown if one.role == 'final')
  assert final.reply == '<answer>frogs</answer>'
  assert '### Q2: What does animal 3 eat?, Answer for Q2: frogs' in final.prompt


def test_baseline_roles_come_every_so_often_and_tasks_without_plans_give_none():
  tasks = [dataclasses.replace(TASK, id=str(i)) for i in range(4)]
  roles = [one.role for one in make([Task('u', 'qa', 'Why?', ('x',)), *tasks])]
  assert roles.count('decompose') == 4 and roles.count('step') == 8
  assert roles.count('retrieved') == roles.count('direct') == 2
