"""Invented claims as a task file: so regular that a two-layer model learns the form in seconds.

The form is all it learns; whether a claim is true it has to guess, so that sampled answers differ and
there are preferences to mine.
"""

import json
import pathlib

TOWNS = ('Arl', 'Bex', 'Cor', 'Dun', 'Elm', 'Fos', 'Gil', 'Hux')


def write_tasks(path: pathlib.Path, train: int = 64, dev: int = 8) -> None:
  """One-step claims, half of them true, each with its passage."""
  rows = []
  for i in range(train + dev):
    town, old = f'{TOWNS[i % 8]}{i}', i * 7 % 13 < 6
    verdict = 'Yes' if old else 'No'
    rows.append({
        'id': f'task-{i}',
        'kind': 'claim',
        'question': f'{town} is old.',
        'answers': [verdict],
        'subquestions': [{'question': 'Is it?', 'answer': verdict, 'passages': [f'p{i}']}],
        'passages': [f'p{i}'],
        'context': [{'id': f'p{i}', 'title': town, 'text': 'It is old.' if old else 'It is new.'}],
        'type': 'claim',
        'split': 'train' if i < train else 'dev',
    })  # fmt: skip
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
