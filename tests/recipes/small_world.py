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


def train_flags(tasks: pathlib.Path, workdir: pathlib.Path, cache: pathlib.Path) -> list[str]:
  """Flags of `launch.train` for a whole run over `write_tasks`, controls included."""
  return [
      '--model=tiny', '--lora_rank=0', f'--dataset={tasks}', f'--workdir={workdir}',
      f'--compilation_cache={cache}', '--max_length=384', '--num_slots=8', '--cache_megabytes=8',
      '--micro_batch_tokens=3072', '--checkpoint_every=20', '--eval_limit=8',
      '--sft_tasks=16', '--sft_epochs=20', '--sft_batch_size=12', '--sft_learning_rate=1e-2',
      '--sft_heldout_tasks=4', '--sft_eval_every=25', '--rollout_tasks=40', '--num_plans=2',
      '--num_solutions=4', '--temperature=1', '--repetition_penalty=1', '--plan_tokens=24',
      '--subanswer_tokens=8', '--answer_tokens=32', '--passages_per_step=1', '--final_passages=1',
      '--dpo_batch_size=8', '--dpo_learning_rate=1e-3', '--dpo_epochs=3', '--min_gap=0.1',
      '--controls=sft_more,raft', '--eval_agents=rag',
  ]  # fmt: skip
