"""What a user can get wrong, through the real commands: one sentence, the right exit code, no harm done."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

import command_server
import numpy as np
import pytest

from acesearch_jax.training.run_folder import RunFolder

_ROOT = pathlib.Path(__file__).parents[2]
_LOG_LINE = re.compile(r'[IW]\d{4} \d\d:\d\d:\d\d')


def rows(train=12, dev=4):
  """Claims of one step, each with its passage."""
  for i in range(train + dev):
    answer = 'No' if i % 2 else 'Yes'
    yield {
        'id': f't{i}', 'kind': 'claim', 'question': f'Town {i} is old.', 'answers': [answer],
        'subquestions': [{'question': 'Is it?', 'answer': answer, 'passages': [f'p{i}']}],
        'context': [{'id': f'p{i}', 'title': f'Town {i}', 'text': 'It is new.' if i % 2 else 'It is old.'}],
        'passages': [f'p{i}'], 'split': 'train' if i < train else 'dev',
    }  # fmt: skip


def write_rows(path, changed):
  path.write_text(''.join(json.dumps(row) + '\n' for row in changed))


def write_gguf(path, whole):
  """A GGUF file with a header and little else, cut short unless `whole`."""
  import gguf

  writer = gguf.GGUFWriter(path, 'llama')
  writer.add_uint32('llama.block_count', 2)
  writer.add_tensor('token_embd.weight', np.zeros((64, 32), np.float32))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  if not whole:
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.fixture(scope='module')
def place(tmp_path_factory):
  """A folder with good files and one of every kind of bad file."""
  folder = tmp_path_factory.mktemp('bad_input')
  tasks = list(rows())
  lines = [json.dumps(row) + '\n' for row in tasks]
  write_rows(folder / 'tasks.jsonl', tasks)
  (folder / 'broken.jsonl').write_text(''.join([*lines[:2], lines[2][:40] + '\n', *lines[3:]]))
  (folder / 'empty.jsonl').write_text('')
  write_rows(folder / 'number.jsonl', [*tasks[:3], tasks[3] | {'question': 7}])
  write_rows(folder / 'flat.jsonl', [row | {'subquestions': []} for row in tasks])
  write_rows(folder / 'bare.jsonl', [row | {'context': []} for row in tasks])
  write_rows(folder / 'only_train.jsonl', [row for row in tasks if row['split'] == 'train'])
  write_rows(folder / 'corpus.jsonl', [{'id': 1, 'title': 'A', 'text': 'old town'}])
  (folder / 'broken_corpus.jsonl').write_text('{"id": 1, "title": "A", "text": "old"}\n{"id": 2\n')
  (folder / 'cut.whl').write_bytes(b'PK\x03\x04' + bytes(500))
  (folder / 'noise.gguf').write_bytes(b'GGUF' + bytes(range(200)))
  write_gguf(folder / 'cut.gguf', whole=False)
  write_gguf(folder / 'hollow.gguf', whole=True)
  (folder / 'no_model').mkdir()
  (folder / 'half' / 'checkpoint').mkdir(parents=True)
  (folder / 'half' / 'checkpoint' / 'policy.json').write_text('{"model": "tiny", "tok')
  return folder


@pytest.fixture(scope='module')
def commands(tmp_path_factory):
  called = command_server.Commands(tmp_path_factory.mktemp('commands'))
  yield called
  called.close()


def sentence(done, code):
  """The one sentence of a command that failed; everything else on stderr is the log."""
  assert done.returncode == code, done.stderr
  *log, last = done.stderr.splitlines()
  assert not [line for line in log if not _LOG_LINE.match(line)], done.stderr
  assert not _LOG_LINE.match(last)
  assert last == last.strip() and last[-1] in '.)'
  return last


_TRAIN = ('launch.train', '--workdir={run}', '--compilation_cache=none', '--lora_rank=0', '--model=tiny')
_TASKS = '--dataset={place}/tasks.jsonl'
_EVALUATE = ('launch.evaluate', '--model=tiny', '--output={run}.json', _TASKS)
_ANSWER = ('launch.answer', '--model=tiny', _TASKS)
_INDEX = ('launch.index', '--output={run}')

_USAGE = [
    ((*_TRAIN, '--schedule=nope'), r'--schedule=nope: value should be one of <cosine\|linear\|constant>'),
    ((*_TRAIN, '--num_plans=-1'), '--num_plans=-1: -1 is not a positive integer'),
    ((*_TRAIN, '--sft_learning_rate=fast'), '--sft_learning_rate=fast'),
    ((*_TRAIN, '--temperature=nan'), '--temperature=nan is no number'),
    ((*_TRAIN, '--top_p=0'), r'top_p is 0.0, must be in \(0, 1\]'),
    ((*_TRAIN, '--seed=-1'), '--seed=-1: -1 is not an integer in the range'),
    ((*_TRAIN, '--learning_rat=1'), "Unknown command line flag 'learning_rat'"),
    ((*_TRAIN, '--controls=sft_more,rift'), "--controls: 'rift' is not one of sft_more, raft"),
    ((*_TRAIN, '--eval_stages=sft,raft'), "names 'raft'; this run has base, sft, dpo_1, dpo_2."),
    ((*_TRAIN, '--mesh=rows:2'), "--mesh: unknown axis 'rows'; use data, fsdp, tensor, sequence"),
    ((*_TRAIN, '--mesh=data:64'), '--mesh asks for 64 devices, only 1 are there'),
    ((*_TRAIN, '--dataset=wiki'), "No question set or file is called 'wiki'; the sets are world,"),
    ((*_TRAIN, '--dataset=musique'), "'musique' needs the folder of its official files: give --data_dir"),
    (('launch.train',), '--workdir is missing; give a folder'),
    (_EVALUATE[:2], '--output is missing; give a file'),
    ((*_EVALUATE, '--agent=rag,oracle'), "--agent: 'oracle' is not one of acesearcher, rag, direct"),
    ((*_EVALUATE, '--limit=-5'), '--limit=-5'),
    ((*_ANSWER, '--kind=riddle', 'Who?'), r'--kind=riddle: value should be one of <qa\|claim>'),
    ((*_ANSWER, 'Who', 'is'), "Unexpected argument 'is'"),
    (('launch.index',), '--corpus, --output must be given'),
    ((*_INDEX, '--corpus={place}/corpus.jsonl', '--bm25_b=2'), '--bm25_b=2'),
]  # fmt: skip

_FAILURE = [
    ((*_TRAIN, '--model=gpt-9'), "No model 'gpt-9'; give one of smollm2-135m-instruct, tiny"),
    ((*_TRAIN, '--model={place}/no.whl'), 'No such file: .*no.whl; give the path of the wheel, or --model='),
    ((*_TRAIN, '--model={place}/cut.whl'), 'cut.whl is cut short, corrupt or another wheel .* fetch it'),
    ((*_TRAIN, '--model={place}/no.gguf'), 'No such file: .*no.gguf; check the path'),
    ((*_TRAIN, '--model={place}/noise.gguf'), 'noise.gguf is not a GGUF file, or is cut short or corrupt'),
    ((*_TRAIN, '--model={place}/cut.gguf'), 'cut.gguf is not a GGUF file, or is cut short or corrupt'),
    ((*_TRAIN, '--model={place}/hollow.gguf'), 'hollow.gguf lacks the metadata'),
    ((*_TRAIN, '--model={place}/no_model'), 'no_model is no model folder: it has no config.json'),
    ((*_TRAIN, '--workdir={place}/tasks.jsonl'), 'Cannot use .* as a run folder: File exists; choose'),
    ((*_TRAIN, '--dataset={place}/no.jsonl'), 'No such file: .*no.jsonl; check the path'),
    ((*_TRAIN, '--dataset={place}/broken.jsonl'), 'broken.jsonl, line 3 is not valid JSON .*; mend or'),
    ((*_TRAIN, '--dataset={place}/number.jsonl'), "row 4 is broken: field 'question' must be a string; mend"),
    ((*_TRAIN, '--dataset={place}/empty.jsonl'), "empty.jsonl has no rows of split 'train'; give another"),
    ((*_TRAIN, '--dataset={place}/flat.jsonl'), "no decompositions in its split 'train' to learn from; give"),
    ((*_TRAIN, '--dataset={place}/bare.jsonl'), 'bare.jsonl brings no passages; give --corpus or --index'),
    ((*_TRAIN, '--dataset={place}/only_train.jsonl'), "no rows of split 'dev'; give another file or split"),
    ((*_TRAIN, _TASKS, '--eval_split=test'), "has no rows of split 'test'; give another file or split"),
    ((*_TRAIN, _TASKS, '--corpus={place}/empty.jsonl'), 'empty.jsonl is an empty corpus; give a file with'),
    ((*_TRAIN, _TASKS, '--corpus={place}/broken_corpus.jsonl'), 'corpus.jsonl, line 2 is not valid JSON'),
    ((*_TRAIN, _TASKS, '--index={place}'), 'holds no index; build one with python -m launch.index'),
    ((*_EVALUATE, '--split=test'), "has no rows of split 'test'; give another file or split"),
    ((*_EVALUATE, '--corpus={place}/empty.jsonl'), 'empty.jsonl is an empty corpus'),
    ((*_EVALUATE, '--model={place}/half/checkpoint'), 'policy.json is missing or damaged'),
    ((*_ANSWER, '--model={place}/half/checkpoint', 'Who?'), 'policy.json is missing or damaged .* delete'),
    ((*_INDEX, '--corpus={place}/empty.jsonl'), 'empty.jsonl is an empty corpus'),
    ((*_INDEX, '--corpus={place}/broken_corpus.jsonl'), 'line 2 is not valid JSON'),
    ((*_INDEX, '--corpus={place}/corpus.jsonl', '--output={place}'), 'is there and is no index; choose a'),
]  # fmt: skip


@pytest.mark.parametrize(('code', 'command', 'message'), [
    *((2, *case) for case in _USAGE), *((1, *case) for case in _FAILURE),
], ids=lambda value: ' '.join(value[-1:]) if isinstance(value, tuple) else '')  # fmt: skip
def test_one_sentence(commands, place, tmp_path, code, command, message):
  module, *arguments = (part.format(place=place, run=tmp_path / 'run') for part in command)
  done = commands(module, *arguments)
  assert re.search(message, sentence(done, code)), done.stderr
  assert done.stdout == ''


def test_a_wrong_flag_can_be_put_right_in_the_same_folder(commands, place, tmp_path):
  shared = [f'--workdir={tmp_path / "run"}', '--compilation_cache=none', '--lora_rank=0', '--mesh=data:1']
  assert 'gpt-9' in sentence(commands('launch.train', *shared, '--model=gpt-9'), 1)
  # The data is what it now stumbles over, not the name that it was first given.
  done = commands('launch.train', *shared, '--model=tiny', f'--dataset={place / "empty.jsonl"}')
  assert 'empty.jsonl has no rows' in sentence(done, 1)


def test_dry_run_prints_rows_and_makes_no_folder(commands, place, tmp_path):
  flags = ['--model=tiny', f'--dataset={place / "tasks.jsonl"}', '--max_length=384', '--lora_rank=0']
  done = commands('launch.train', *flags, f'--workdir={tmp_path / "run"}', '--dry_run')
  assert done.returncode == 0, done.stderr
  assert '⟦### Q1: Is it?<|im_end|>⟧' in done.stdout and 'EXAMPLES ONLY' in done.stdout
  assert list(tmp_path.iterdir()) == []


# A whole run: what it meets on the way does not change where it ends.


def run_flags(place, workdir):
  return [
      '--model=tiny', '--lora_rank=0', f'--dataset={place / "tasks.jsonl"}', f'--workdir={workdir}',
      f'--compilation_cache={place / "compiled"}', '--max_length=192', '--num_slots=1', '--cache_megabytes=8',
      '--micro_batch_tokens=1536', '--checkpoint_every=10', '--eval_limit=2', '--nofew_shot_base',
      '--sft_tasks=4', '--sft_epochs=20', '--sft_batch_size=4', '--sft_learning_rate=1e-2',
      '--sft_heldout_tasks=1', '--sft_eval_every=100', '--iterations=1', '--rollout_tasks=2',
      '--num_plans=1', '--max_plan_draws=1', '--num_solutions=2', '--plan_tokens=4', '--subanswer_tokens=4',
      '--answer_tokens=4', '--passages_per_step=1', '--final_passages=1',
  ]  # fmt: skip


def outcome(workdir):
  """Everything that a run is for."""
  results = json.loads((workdir / 'results.json').read_text())
  saved = workdir.glob('checkpoints/*/weights.safetensors')
  weights = {path.parent.name: path.read_bytes() for path in saved}
  assert weights.keys() == {'sft', 'dpo_1'} and results.pop('seconds') > 0
  return results, weights


@pytest.fixture(scope='module')
def finished(commands, place):
  workdir = place / 'finished'
  done = commands('launch.train', *run_flags(place, workdir))
  assert done.returncode == 0, done.stderr
  return workdir, outcome(workdir)


def cut(path, share=0.5):
  data = path.read_bytes()
  path.write_bytes(data[: int(len(data) * share)])


def finishes_as_if_nothing_had_been(commands, place, workdir, finished):
  done = commands('launch.train', *run_flags(place, workdir))
  assert done.returncode == 0, done.stderr
  assert outcome(workdir) == finished[1]


def test_a_folder_in_use_and_a_changed_flag_are_refused(commands, place, finished):
  flags = run_flags(place, finished[0])
  with RunFolder(finished[0]):
    refused = sentence(commands('launch.train', *flags), 1)
    assert re.search('in use by another run .*; wait for it to end or choose another --workdir', refused)
  changed = sentence(commands('launch.train', *flags, '--dpo_beta=0.7'), 1)
  assert re.search('started with --dpo_beta=0.1, not 0.7; give the old value to resume, or another', changed)


@pytest.mark.parametrize(('file', 'message', 'remedy'), [
    ('checkpoints/sft/weights.safetensors', 'weights.safetensors is missing or damaged .*; delete its folder',
     'checkpoints/sft'),
    ('checkpoints/dpo_1/policy.json', 'policy.json is missing or damaged .*; delete its folder',
     'checkpoints/dpo_1'),
    ('stages/rollout_1.json', 'rollout_1.json is not valid JSON .*; mend or delete it',
     'stages/rollout_1.json'),
])  # fmt: skip
def test_a_file_cut_short_is_named_and_made_anew(commands, place, finished, file, message, remedy):
  workdir, target = finished[0], finished[0] / remedy
  cut(workdir / file)
  assert re.search(message, sentence(commands('launch.train', *run_flags(place, workdir)), 1))
  if target.is_dir():
    evaluate = ['launch.evaluate', f'--model={target}', f'--output={place / "scores.json"}']
    assert re.search(message, sentence(commands(*evaluate, f'--dataset={place / "tasks.jsonl"}'), 1))
    shutil.rmtree(target)
  else:
    target.unlink()
    cut(workdir / 'rollouts' / '1' / 'shard_00000.jsonl')  # Which needs no telling: it is sampled again.
  finishes_as_if_nothing_had_been(commands, place, workdir, finished)


def copy_without_training(finished, workdir):
  """A run that has yet to train its first stage: evaluation takes no time then."""
  shutil.copytree(finished[0], workdir, dirs_exist_ok=True)
  shutil.rmtree(workdir / 'checkpoints' / 'sft')
  (workdir / 'stages' / 'sft.json').unlink()


def kill_after_a_checkpoint(place, workdir):
  process = subprocess.Popen(
      [sys.executable, '-m', 'launch.train', *run_flags(place, workdir)], cwd=_ROOT,
      env=command_server.environment(), stderr=subprocess.DEVNULL,
  )  # fmt: skip
  while process.poll() is None and not any(workdir.glob('checkpoints/sft/steps/*/manifest.json')):
    time.sleep(0.01)
  process.kill()
  process.wait()
  assert not (workdir / 'stages' / 'sft.json').exists()


def test_checkpoints_of_a_stage_under_way_cut_short(commands, place, finished, tmp_path):
  workdir = tmp_path / 'run'
  copy_without_training(finished, workdir)
  kill_after_a_checkpoint(place, workdir)
  steps = workdir / 'checkpoints' / 'sft' / 'steps'
  for step in [path for path in steps.iterdir() if path.name.isdigit()]:
    cut(max((path for path in step.rglob('*') if path.is_file()), key=lambda path: path.stat().st_size))
  done = commands('launch.train', *run_flags(place, workdir))
  assert re.search(r'No checkpoint in .*steps can be read \(.*\); delete the folder', sentence(done, 1))
  shutil.rmtree(steps)
  finishes_as_if_nothing_had_been(commands, place, workdir, finished)


def test_a_full_disk(commands, place, finished, small_disk):
  workdir = small_disk.path / 'run'
  flags = run_flags(place, workdir)
  small_disk.resize(8)
  first = sentence(commands('launch.train', *flags), 1)
  assert re.search('Cannot write .*: No space left on device; free some space or choose another', first)
  small_disk.resize(900)
  copy_without_training(finished, workdir)
  message = r'Cannot write checkpoint 10 in .* are free\); free some space, then start again'
  assert re.search(message, sentence(commands('launch.train', *flags), 1))
  small_disk.resize(64_000)
  finishes_as_if_nothing_had_been(commands, place, workdir, finished)
