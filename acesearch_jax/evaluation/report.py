"""The report of a run: one self-contained HTML page made from the run folder.

Tables and charts are plain HTML and SVG. Trajectories are embedded as JSON and built by the page's
script when opened. Nothing in the folder is trusted: text is escaped here and set as text there.
"""

import collections
import html
import json
import math
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from acesearch_jax import files
from acesearch_jax.evaluation import intervals, report_charts
from acesearch_jax.evaluation.report_data import SelfPlay, TrajectorySet, evenly, read_run

_PAGE = pathlib.Path(__file__).with_name('report_page.html')
_SAMPLES_PER_KIND = 4
_NOT_METRICS = ('stage', 'step', 'seconds')


def write_report(workdir: epath.PathLike, max_trajectories: int = 300) -> epath.Path:
  """Writes `report.html` into a run folder. Files that are missing are left out with a note.

  Args:
    workdir: the run folder.
    max_trajectories: most trajectories kept of one iteration or evaluation, evenly spaced over the
      file; the page says how many there are in all.

  Returns:
    The path of the page.

  Raises:
    UserError: the folder does not exist, or a file in it is broken.
  """
  folder = epath.Path(workdir)
  run = read_run(folder, max_trajectories)
  sections = [
      _header(run.config, run.results),
      ''.join(f'<p class="note">{_text(note)}</p>' for note in run.notes),
      _stages(run.results),
      _agents(run.evaluations, run.results),
      _by_type(run.evaluations),
      _curves(run.metrics),
      _self_play(run.self_play),
      _pairs(run.preferences),
      _trajectories(run.sets),
      _configuration(run.config),
  ]
  scripts = [_json_script(f'set-{number}', found.kept) for number, found in enumerate(run.sets)]
  values = {
      'TITLE': _text(_title(run.config, run.results)),
      'BODY': '\n'.join(filter(None, sections)),
      'DATA': ''.join([*scripts, _json_script('passages', run.passages)]),
  }
  # One pass over the page, so that nothing inside a value can be taken for a placeholder.
  page = re.sub(
      r'\{\{(TITLE|BODY|DATA)\}\}', lambda match: values[match[1]], _PAGE.read_text(encoding='utf-8')
  )
  path = folder / 'report.html'
  files.write_text(path, page)
  return path


def _json_script(name: str, value: Any) -> str:
  # '<' cannot start an end tag or a comment inside the script element when it is escaped.
  text = json.dumps(value, ensure_ascii=False, separators=(',', ':')).replace('<', '\\u003c')
  return f'<script type="application/json" id="{name}">{text}</script>\n'


def _title(config: Mapping[str, Any], results: Mapping[str, Any]) -> str:
  flags = config.get('flags', {})
  parts = [results.get('recipe') or flags.get('recipe') or 'Run', flags.get('model')]
  return ' · '.join(str(part) for part in parts if part)


def _header(config: Mapping[str, Any], results: Mapping[str, Any]) -> str:
  flags, stages = config.get('flags', {}), results.get('stages', [])
  tiles = []
  measured = [row for row in stages if 'em' in row]
  if measured:
    first, last = measured[0], measured[-1]
    tiles.append((f'{last["em"]:.3f}', f'EM, {last["stage"]}'))
    if last is not first:
      tiles.append((f'{last["em"] - first["em"]:+.3f}', f'over {first["stage"]}'))
    tiles.append((f'{last["n"]:,}', f'questions, {last.get("dataset", "")} {last.get("split", "")}'))
  if 'seconds' in results:
    tiles.append((_duration(results['seconds']), 'in all'))
  tiles += [(_count(count), f'tokens {name}') for name, count in results.get('tokens', {}).items()]
  shown = ''.join(
      f'<div class="tile"><b>{_text(value)}</b><span>{_text(label)}</span></div>' for value, label in tiles
  )
  below = ' · '.join(_text(part) for part in (
      f'seed {flags["seed"]}' if 'seed' in flags else '', config.get('device'),
      f'commit {config["commit"][:10]}' if config.get('commit') else '',
  ) if part)
  title = f'<h1>{_text(_title(config, results))}</h1>'
  return f'<header>{title}<p class="muted">{below}</p><div class="tiles">{shown}</div></header>'


def _stages(results: Mapping[str, Any]) -> str:
  rows = results.get('stages', [])
  if not rows:
    return ''
  columns = ('stage', 'step', 'dataset', 'split', 'n', 'em', 'em_ci95', 'f1', 'acc', 'success',
             'success_ci95')
  names = {'em': 'EM', 'f1': 'F1', 'em_ci95': '95% interval', 'success_ci95': '95% interval'}
  present = [column for column in columns if any(column in row for row in rows)]
  table = _table([names.get(c, c) for c in present], [[_cell(row.get(c)) for c in present] for row in rows])
  metric = 'em' if 'em' in rows[0] else 'success'
  bars = [(row['stage'], row[metric], *row[f'{metric}_ci95']) for row in rows if f'{metric}_ci95' in row]
  chart = f'<div class="scroll">{report_charts.bars(bars, f"{metric} by stage")}</div>' if bars else ''
  return _section('stages', 'Stages', f'<div class="beside">{table}{chart}</div>')


def _agents(evaluations: Mapping[str, Sequence[Mapping[str, Any]]], results: Mapping[str, Any]) -> str:
  """Evaluations that are not rows of results.json: other agents with the same weights."""
  stages = {row['stage'] for row in results.get('stages', [])}
  rows = []
  for name, records in evaluations.items():
    if name in stages or not records or not all({'em', 'f1', 'acc'} <= row.keys() for row in records):
      continue
    score = intervals.score_row(records)
    stage, _, agent = name.partition('.')
    costs = [_mean(records, 'seconds'), _mean(records, 'tokens')]
    values = [score[column] for column in ('n', 'em', 'em_ci95', 'f1', 'acc')]
    rows.append([stage, agent, *map(_cell, values + costs)])
  if not rows:
    return ''
  heads = ['stage', 'agent', 'n', 'EM', '95% interval', 'F1', 'acc', 's a question', 'tokens a question']
  return _section('agents', 'Other agents, same weights', _table(heads, rows))


def _mean(records: Sequence[Mapping[str, Any]], name: str) -> float | None:
  values = [row[name] for row in records if isinstance(row.get(name), int | float)]
  return sum(values) / len(values) if values else None


def _by_type(evaluations: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
  groups: dict[str, dict[str, list[float]]] = {}
  for name, records in evaluations.items():
    for row in records:
      kind = row.get('type', row.get('task', {}).get('type', ''))
      if kind and 'em' in row:
        groups.setdefault(kind, {}).setdefault(name, []).append(row['em'])
  if not groups:
    return ''
  rows = []
  for kind in sorted(groups):
    cells = [_heat(groups[kind].get(name)) for name in evaluations]
    rows.append([_text(kind), str(max(map(len, groups[kind].values()))), *cells])
  return _section('types', 'EM by question type', _table(['type', 'n', *evaluations], rows, escaped=True))


def _heat(values: Sequence[float] | None) -> str:
  if not values:
    return '–'
  mean = sum(values) / len(values)
  return f'<span class="heat" style="--v:{mean:.3f}">{mean:.3f}</span>'


def _curves(metrics: Sequence[Mapping[str, Any]]) -> str:
  """Charts of every metric; stages that differ by a number only (dpo_1, dpo_2) share theirs."""
  families: dict[str, dict[str, dict[str, list[tuple[float, float | None]]]]] = {}
  for row in metrics:
    charts = families.setdefault(re.sub(r'_\d+$', '', row['stage']), {})
    for name, value in row.items():
      if name not in _NOT_METRICS and (value is None or isinstance(value, int | float)):
        value = value if value is not None and math.isfinite(value) else None
        charts.setdefault(name, {}).setdefault(row['stage'], []).append((row['step'], value))
  body = ''.join(
      f'<h3>{_text(family)}</h3><div class="curves">'
      + ''.join(report_charts.curves(name, series) for name, series in charts.items()) + '</div>'
      for family, charts in families.items()
  )
  return _section('curves', 'Curves', body) if body else ''


def _self_play(rollouts: Mapping[str, SelfPlay]) -> str:
  if not rollouts:
    return ''
  names = list(dict.fromkeys(name for found in rollouts.values() for name in found.scores))
  rows = []
  for name, found in rollouts.items():
    share = found.valid_plans / found.plans if found.plans else None
    mixed = found.mixed / found.total if found.total else None
    means = [found.scores[score] / found.solutions if found.solutions else None for score in names]
    rows.append([name, *map(_cell, [found.total, found.plans, share, found.solutions, mixed, *means])])
  heads = ['iteration', 'tasks', 'plans', 'valid', 'solutions', 'tasks with mixed rewards',
           *(f'mean {name}' for name in names)]
  return _section('selfplay', 'Self-play: reward and its parts', _table(heads, rows))


def _pairs(preferences: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
  if not preferences:
    return ''
  rows, samples = [], []
  for iteration, pairs in preferences.items():
    kinds = collections.Counter(str(pair.get('kind', '')) for pair in pairs)
    for kind, count in sorted(kinds.items()):
      same = [pair for pair in pairs if str(pair.get('kind', '')) == kind]
      chosen, rejected = _mean(same, 'chosen_reward'), _mean(same, 'rejected_reward')
      tasks = len({pair.get('task_id') for pair in same})
      rows.append([iteration, kind, *map(_cell, [count, tasks, chosen, rejected])])
      samples += [_pair(iteration, pair) for pair in evenly(same, _SAMPLES_PER_KIND)]
  table = _table(['iteration', 'kind', 'pairs', 'tasks', 'mean chosen reward', 'mean rejected reward'], rows)
  shown = f'<details><summary class="muted">{len(samples)} samples</summary>{"".join(samples)}</details>'
  return _section('pairs', 'Preference pairs', table + shown)


def _pair(iteration: str, pair: Mapping[str, Any]) -> str:
  def side(name: str) -> str:
    reward = _cell(pair.get(f'{name}_reward'))
    text = _text(pair.get(f'{name}_text', '(text not stored)'))
    return f'<div class="{name}"><p>{name}, reward {reward}</p><pre>{text}</pre></div>'

  return (
      f'<details class="item"><summary><span class="chip">{_text(pair.get("kind", ""))}</span> '
      f'<span class="muted">iteration {_text(iteration)}</span> {_text(pair.get("task_id", ""))}</summary>'
      f'<div class="inside"><details><summary>Prompt</summary><pre>{_text(pair.get("prompt_text", ""))}</pre>'
      f'</details><div class="sides">{side("chosen")}{side("rejected")}</div></div></details>'
  )


def _trajectories(sets: Sequence[TrajectorySet]) -> str:
  sets = [found for found in sets if found.total]
  if not sets:
    return ''
  options = []
  for number, found in enumerate(sets):
    left_out = found.total - len(found.kept)
    note = f'{left_out:,} of {found.total:,} are left out of this page, evenly.' if left_out else ''
    options.append(f'<option value="set-{number}" data-note="{_text(note)}">{_text(found.name)} '
                   f'({len(found.kept):,})</option>')
  statuses = ''.join(
      f'<label class="choice"><input type="radio" name="status" value="{value}"{" checked" * (not value)}>'
      f'<span>{label}</span></label>'
      for value, label in (('', 'all'), ('right', 'right'), ('mixed', 'mixed'), ('wrong', 'wrong'),
                           ('unparsed', 'unparsed'))
  )
  return _section(
      'trajectories', 'Trajectories',
      f'<div class="controls"><select id="set" aria-label="Set">{"".join(options)}</select>'
      '<input id="search" type="search" aria-label="Search" placeholder="Search questions, answers, plans">'
      f'<span class="choices">{statuses}</span></div><p class="muted"><span id="shown"></span> '
      '<span id="left-out"></span></p><div id="list"></div><button id="more" hidden>Show more</button>',
  )


def _configuration(config: Mapping[str, Any]) -> str:
  if not config:
    return ''
  around = [[_text(name), _text(json.dumps(value, ensure_ascii=False))]
            for name, value in config.items() if name != 'flags']
  rows = [[f'--{_text(name)}', _text(json.dumps(value, ensure_ascii=False))]
          for name, value in config.get('flags', {}).items()]
  tables = ''.join(_table([head, 'value'], cells, escaped=True)
                   for head, cells in (('flag', rows), ('environment', around)))
  return _section('config', 'Configuration', f'<details><summary>{len(rows)} flags</summary>'
                  f'<div class="beside config">{tables}</div></details>')


def _section(name: str, title: str, body: str) -> str:
  return f'<section id="{name}"><h2>{_text(title)}</h2>{body}</section>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], escaped: bool = False) -> str:
  def cells() -> Iterator[str]:
    for row in rows:
      yield '<tr>' + ''.join(f'<td>{cell if escaped else _text(cell)}</td>' for cell in row) + '</tr>'

  head = ''.join(f'<th>{_text(name)}</th>' for name in heads)
  body = ''.join(cells())
  return (f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')


def _cell(value: Any) -> str:
  if value is None:
    return '–'
  if isinstance(value, list):
    return '[' + ', '.join(_cell(item) for item in value) + ']'
  if isinstance(value, float):
    return f'{value:.3f}'
  return f'{value:,}' if isinstance(value, int) else str(value)


def _text(value: Any) -> str:
  return html.escape(str(value))


def _duration(seconds: float) -> str:
  minutes, rest = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours} h {minutes:02d} min' if hours else f'{minutes} min {rest:02d} s'


def _count(count: int) -> str:
  for size, unit in ((10**9, 'B'), (10**6, 'M'), (10**3, 'k')):
    if count >= size:
      return f'{count / size:.3g}{unit}'
  return str(count)
