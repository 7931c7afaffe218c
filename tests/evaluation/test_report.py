"""The run report on a small synthetic run folder."""

import html.parser
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from acesearch_jax import files
from acesearch_jax.errors import UserError
from acesearch_jax.evaluation import intervals, report, report_charts, report_data

_ROOT = pathlib.Path(__file__).parents[2]
_HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(2)> {{DATA}} <!-- & "'


def make_run(folder, tasks=6, evaluated=8):
  """Writes a run folder with every kind of file; texts of task 0 are hostile."""
  rng = np.random.default_rng(0)
  cities = ['Lyon', 'Porto', 'Graz', 'Turku', 'Gdańsk']

  def passage(number):
    city = cities[number % 5]
    return {'id': f'p{number}', 'title': f'{city} ({number})', 'score': 9.5 - number % 7,
            'text': f'{city} is a city on a river. It was founded long ago and has {number} bridges.'}

  def solution(task, plan):
    first, right = cities[(task + int(rng.integers(0, 2))) % 5], bool(rng.random() < 0.3 + 0.2 * plan)
    answer = None if rng.random() < 0.1 else cities[task % 5] if right else cities[(task + 1) % 5]
    em = float(answer == cities[task % 5])
    steps = [
        {'template': 'Where was the author born?', 'question': 'Where was the author born?',
         'passages': [passage(n) for n in range(task, task + 4)], 'answer': first},
        {'template': 'Which river city is north of #1?', 'question': f'Which river city is north of {first}?',
         'passages': [passage(n) for n in range(task + 2, task + 5)], 'answer': answer or ''},
    ]
    return {'steps': steps, 'final_text': f'It follows.\n<answer>{answer}</answer>', 'answer': answer,
            'reward': em, 'scores': {'em': em, 'f1': em, 'format': float(answer is not None)},
            'em': em, 'format': float(answer is not None)}

  def plan(task, number, solutions):
    valid = number < 2
    made = [solution(task, number) for _ in range(solutions)] if valid else []
    text = ('### Q1: Where was the author born?\n### Q2: Which river city is north of #1?' if valid
            else 'I would look for the author first.')
    return {'text': text, 'valid': valid, 'reason': '' if valid else 'no line starts with ### Q1:',
            'mean_reward': sum(s['reward'] for s in made) / len(made) if made else 0.0, 'solutions': made}

  def task_json(number):
    question = f'Which city number {number} is north of where the author was born?' if number else _HOSTILE
    return {'id': f'task-{number}', 'kind': 'qa', 'question': question, 'answers': [cities[number % 5]],
            'type': ['bridge2', 'bridge3', 'comparison'][number % 3], 'split': 'train'}

  stages = ['base', 'sft', 'dpo_1', 'dpo_2']
  rows = []
  for position, stage in enumerate(stages):
    records = []
    for number in range(evaluated):
      em = float(rng.random() < 0.2 + 0.15 * position)
      task = {name: task_json(number)[name] for name in ('id', 'type', 'question', 'answers')}
      records.append({**task, 'prediction': task['answers'][0] if em else 'Oslo', 'em': em, 'f1': em,
                      'acc': em, 'plan_valid': True, 'seconds': 0.4, 'tokens': 220,
                      'plans': [plan(number, 0, 1)]})
    files.write_jsonl(folder / 'evaluation' / f'{stage}.jsonl', records)
    rows.append({'stage': stage, 'step': 120 * position, 'dataset': 'world', 'split': 'dev',
                 **intervals.score_row(records)})
  files.write_jsonl(folder / 'evaluation' / 'dpo_2.rag.jsonl', records)
  files.write_json(folder / 'results.json', {
      'recipe': 'acesearcher', 'stages': rows, 'seconds': 5321.0,
      'tokens': {'prefilled': 1_234_567, 'decoded': 345_678, 'trained': 912}})
  files.write_json(folder / 'config.json', {
      'flags': {'model': 'smollm2-135m-instruct', 'seed': 0, 'recipe': 'acesearcher', 'dpo_beta': 0.1,
                'pair_kinds': ['plan', 'final']},
      'mesh': {'data': 1, 'fsdp': 1}, 'versions': {'jax': '0.10.2'}, 'commit': '0123456789abcdef',
      'device': 'cpu', 'cpus': 2, 'xla_flags': ''})
  metrics = []
  for stage, steps in (('sft', 120), ('dpo_1', 60), ('dpo_2', 60)):
    for step in range(0, steps, 2):
      row = {'stage': stage, 'step': step, 'seconds': step * 0.5, 'learning_rate': 5e-5 * (1 - step / steps)}
      if stage == 'sft':
        row['loss'] = 0.4 + 2 * np.exp(-step / 30) + 0.05 * rng.random()
        if step % 20 == 0:
          row['heldout_loss'] = 0.5 + 2 * np.exp(-step / 30)
      else:
        row |= {'loss': 0.69 * np.exp(-step / 60) + 0.03 * rng.random(), 'margin': step / 30 + rng.random(),
                'accuracy': None if step == 8 else min(1.0, 0.5 + step / 90), 'nll': 0.8 - step / 300}
      metrics.append(row)
  files.write_jsonl(folder / 'metrics.jsonl', metrics)
  for iteration in (1, 2):
    for shard in range(0, tasks, 4):
      files.write_jsonl(folder / 'rollouts' / str(iteration) / f'shard_{shard // 4:05d}.jsonl', [
          {'task': task_json(n), 'iteration': iteration, 'plans': [plan(n, k, 4) for k in range(3)]}
          for n in range(shard, min(shard + 4, tasks))])
    files.write_jsonl(folder / 'preferences' / f'{iteration}.jsonl', [
        {'kind': kind, 'prompt_text': 'Decompose the question.', 'chosen_text': 'Good.' if n else _HOSTILE,
         'rejected_text': 'Bad.', 'chosen_reward': 0.75, 'rejected_reward': 0.25, 'task_id': f'task-{n}',
         'iteration': iteration, 'prompt': [1], 'chosen': [2], 'rejected': [3]}
        for kind in ('plan', 'final') for n in range(3 * iteration)])


class _Page(html.parser.HTMLParser):
  """Elements, text outside scripts, and the JSON in scripts."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.attributes, self.text, self.data, self.open = [], [], [], {}, []
    self.feed(text)
    self.close()

  def handle_starttag(self, tag, attributes):
    self.tags.append(tag)
    self.attributes += [(tag, *pair) for pair in attributes]
    if tag not in ('meta', 'input'):
      self.open.append((tag, dict(attributes)))

  def handle_endtag(self, tag):
    if self.open and self.open[-1][0] == tag:
      self.open.pop()

  def handle_data(self, text):
    tag, attributes = self.open[-1] if self.open else ('', {})
    if attributes.get('type') == 'application/json':
      self.data[attributes['id']] = json.loads(text)
    elif tag not in ('script', 'style'):
      self.text.append(text)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  make_run(folder)
  report.write_report(folder)
  return folder


@pytest.fixture(scope='module')
def page(run):
  return _Page((run / 'report.html').read_text())


def test_everything_is_there(page):
  text = ' '.join(page.text)
  for wanted in ('acesearcher · smollm2-135m-instruct', '1.23M', '1 h 28 min', '--dpo_beta', 'heldout_loss',
                 'margin', 'bridge2', 'Other agents', 'Preference pairs', 'commit 0123456789', 'mean reward'):
    assert wanted in text, wanted
  assert 'missing' not in text
  assert page.tags.count('figure') == 3 + 5  # Of SFT; of DPO, whose iterations share charts.


def test_stage_table_shows_results(run, page):
  for row in json.loads((run / 'results.json').read_text())['stages']:
    low, high = row['em_ci95']
    assert row['stage'] in page.text
    assert f'{row["em"]:.3f}' in page.text and f'[{low:.3f}, {high:.3f}]' in page.text


def test_trajectories_are_embedded(page):
  assert [len(page.data[f'set-{n}']) for n in range(7)] == [6, 6, 8, 8, 8, 8, 8]
  item = page.data['set-0'][1]
  assert item['id'] == 'task-1' and item['gold'] == ['Porto'] and len(item['plans']) == 3
  assert [len(plan['solutions']) for plan in item['plans']] == [4, 4, 0]
  step = item['plans'][0]['solutions'][0]['steps'][1]
  assert step['template'] == 'Which river city is north of #1?' and '#1' not in step['question']
  index, score = step['passages'][0]
  assert page.data['passages'][index][0] == 'Turku (3)' and score == 6.5
  texts = [tuple(passage) for passage in page.data['passages']]
  assert len(set(texts)) == len(texts)


def test_hostile_text_stays_text(run, page):
  """The page has the script it came with and none of the run's elements."""
  plain = (_ROOT / 'acesearch_jax' / 'evaluation' / 'report_page.html').read_text().count('<script')
  assert page.tags.count('script') == plain + len(page.data)
  assert 'img' not in page.tags
  assert page.data['set-0'][0]['question'] == _HOSTILE
  assert _HOSTILE in page.text  # The chosen response of a sample.
  source = (run / 'report.html').read_text()
  assert 'innerHTML' not in source and 'insertAdjacentHTML' not in source


def test_nothing_is_loaded_from_elsewhere(run, page):
  assert not [a for a in page.attributes if a[1] in ('src', 'href', 'srcset') or a[0] == 'link']
  assert not re.search(r'@import|url\(', (run / 'report.html').read_text())
  policy, = (value for tag, name, value in page.attributes if name == 'content' and 'src' in value)
  assert policy == "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def test_statuses():
  def status(row):
    return report_data._compact(row, report_data.Passages())['status']

  def plans(*answers):
    return [{'text': 't', 'valid': True, 'solutions': [
        {'answer': answer, 'em': float(answer == 'yes'), 'reward': 0.0} for answer in answers]}]

  assert status({'plans': plans('yes', 'yes')}) == 'right'
  assert status({'plans': plans('yes', None)}) == 'mixed'
  assert status({'plans': plans('no', None)}) == 'wrong'
  assert status({'plans': plans(None)}) == 'unparsed'
  assert status({'plans': [{'text': 't', 'valid': False, 'solutions': []}]}) == 'unparsed'
  assert status({'em': 1.0, 'prediction': 'yes', 'plan_valid': False, 'plans': []}) == 'right'
  assert status({'em': 0.0, 'prediction': 'no', 'plan_valid': False, 'plans': []}) == 'unparsed'
  assert status({'em': 0.0, 'prediction': 'no', 'plans': []}) == 'wrong'


def test_the_page_says_how_many_are_left_out(run, tmp_path):
  make_run(tmp_path)
  report.write_report(tmp_path, max_trajectories=2)
  page = _Page((tmp_path / 'report.html').read_text())
  assert [item['id'] for item in page.data['set-0']] == ['task-0', 'task-3']
  assert ('option', 'data-note', '4 of 6 are left out of this page, evenly.') in page.attributes


def test_missing_files_are_noted(tmp_path):
  report.write_report(tmp_path)
  text = (tmp_path / 'report.html').read_text()
  for name in ('config.json', 'results.json', 'metrics.jsonl', 'evaluation/', 'rollouts/', 'preferences/'):
    assert f'{name} is missing or empty' in text
  with pytest.raises(UserError, match='No such run folder'):
    report.write_report(tmp_path / 'nowhere')


def test_metrics_in_the_middle_of_a_line(tmp_path):
  (tmp_path / 'metrics.jsonl').write_text('{"stage": "sft", "step": 1, "loss": 2.0}\n{"stage": "sf')
  report.write_report(tmp_path)
  assert 'data-series' in (tmp_path / 'report.html').read_text()
  (tmp_path / 'metrics.jsonl').write_text('nonsense\n{"stage": "sft", "step": 1, "loss": 2.0}\n')
  with pytest.raises(UserError, match='not JSON'):
    report.write_report(tmp_path)


def test_command(run):
  def call(*arguments):
    return subprocess.run([sys.executable, '-m', 'launch.report', *arguments], cwd=_ROOT, capture_output=True,
                          text=True, env=os.environ | {'JAX_PLATFORMS': 'cpu'}, timeout=60)

  before = (run / 'report.html').read_bytes()
  done = call(f'--workdir={run}')
  assert done.returncode == 0 and 'report.html' in done.stderr
  assert (run / 'report.html').read_bytes() == before
  done = call()
  assert done.returncode == 2 and done.stderr == '--workdir is missing; give the folder of a run.\n'
  done = call(f'--workdir={run}/nowhere')
  assert done.returncode == 1 and done.stderr.startswith('No such run folder')


def test_charts_of_awkward_values():
  assert report_charts.curves('x', {'sft': [(1, None)]}) == ''
  constant = report_charts.curves('x', {'sft': [(5, 0.0)]})
  assert 'NaN' not in constant and 'nan' not in constant and 'inf' not in constant
  gap = report_charts.curves('x', {'sft': [(0, 1.0), (1, None), (2, 3.0)]})
  assert len(re.search(r'class="line s0" d="([^"]*)"', gap)[1].split('M')) == 3
  long = report_charts.curves('x', {'sft': [(n, float(n)) for n in range(10_000)]})
  points = json.loads(html.unescape(re.search(r'data-series="([^"]*)"', long)[1]))[0]['points']
  assert len(points) <= 400 and points[-1][1] == 9999
  assert '<b>' not in report_charts.bars([('<b>', 0.5, 0.4, 0.6)], 'EM')
