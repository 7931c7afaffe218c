"""Small charts as inline SVG: bars with interval whiskers, and curves over steps."""

import html
import json
import math
from collections.abc import Mapping, Sequence

_MOST_POINTS = 400
_DOTS_UP_TO = 15

Points = Sequence[tuple[float, float | None]]


def bars(rows: Sequence[tuple[str, float, float, float]], label: str) -> str:
  """A bar a row with its interval.

  Args:
    rows: (name, value, low, high), all values in [0, 1].
    label: what the values are, for screen readers.
  """
  top = min(1.0, math.ceil(max([high for *_, high in rows] + [0.1]) * 10) / 10)
  step, left, height, base = 96, 44, 190, 24
  width = left + step * len(rows) + 8

  def y(value: float) -> float:
    return base + (height - 2 * base) * (1 - value / top)

  parts = [f'<svg class="bars" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
           f'aria-label="{html.escape(label)}">']
  for tick in range(0, round(top * 10) + 1, 1 if top <= 0.5 else 2):
    parts.append(f'<line class="grid" x1="{left}" x2="{width - 8}" y1="{y(tick / 10):.1f}" '
                 f'y2="{y(tick / 10):.1f}"/><text class="tick" x="{left - 8}" y="{y(tick / 10) + 4:.1f}" '
                 f'text-anchor="end">{tick / 10:.1f}</text>')
  for number, (name, value, low, high) in enumerate(rows):
    centre, word = left + step * (number + 0.5), html.escape(name)
    parts.append(
        f'<g><title>{word}: {value:.3f} [{low:.3f}, {high:.3f}]</title>'
        f'<rect class="bar" x="{centre - 24}" y="{y(value):.1f}" width="48" rx="3" '
        f'height="{max(y(0) - y(value), 1):.1f}"/>'
        f'<path class="whisker" d="M{centre} {y(low):.1f}V{y(high):.1f}m-6 0h12'
        f'M{centre - 6} {y(low):.1f}h12"/>'
        f'<text class="value" x="{centre}" y="{y(high) - 6:.1f}" text-anchor="middle">{value:.3f}</text>'
        f'<text class="name" x="{centre}" y="{height - 6}" text-anchor="middle">{word}</text></g>'
    )
  return ''.join([*parts, '</svg>'])


def curves(title: str, series: Mapping[str, Points]) -> str:
  """One metric over steps, one line a stage; the value under the pointer is read by the page's script.

  Args:
    title: the metric.
    series: (step, value) points by stage; a value that is None leaves a gap.
  """
  series = {name: _thinned(points) for name, points in series.items()}
  values = [value for points in series.values() for _, value in points if value is not None]
  steps = [step for points in series.values() for step, _ in points]
  if not values:
    return ''
  low, high = min(values), max(values)
  pad = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
  low, high = low - pad, high + pad
  first, last = min(steps), max(max(steps), min(steps) + 1)
  width, height, left, right, above, below = 300, 150, 52, 10, 10, 22

  def x(step: float) -> float:
    return left + (width - left - right) * (step - first) / (last - first)

  def y(value: float) -> float:
    return above + (height - above - below) * (high - value) / (high - low)

  parts = []
  for tick in _ticks(low, high):
    at = f'{y(tick):.1f}'
    parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{at}" y2="{at}"/>'
                 f'<text class="tick" x="{left - 6}" y="{at}" dy="4" text-anchor="end">{tick:.4g}</text>')
  parts.append(f'<text class="tick" x="{left}" y="{height - 6}">{first:g}</text><text class="tick" '
               f'x="{width - right}" y="{height - 6}" text-anchor="end">step {last:g}</text>')
  legend, data = [], []
  for number, (name, points) in enumerate(series.items()):
    path, pen = [], 'M'
    for step, value in points:
      if value is None:
        pen = 'M'
        continue
      path.append(f'{pen}{x(step):.1f} {y(value):.1f}')
      pen = 'L'
    parts.append(f'<path class="line s{number % 6}" d="{"".join(path)}"/>')
    if len(points) <= _DOTS_UP_TO:
      parts += [f'<circle class="dot s{number % 6}" cx="{x(step):.1f}" cy="{y(value):.1f}" r="2.5"/>'
                for step, value in points if value is not None]
    legend.append(f'<span class="key s{number % 6}">{html.escape(name)}</span>')
    data.append({'name': name, 'points': [[round(x(s), 1), s, v] for s, v in points if v is not None]})
  keys = ''.join(legend) if len(series) > 1 else ''
  data = [line for line in data if line['points']]
  word = html.escape(title)
  return (
      f'<figure class="curve" data-series="{html.escape(json.dumps(data))}"><figcaption>{word} {keys}'
      f'<output></output></figcaption><svg viewBox="0 0 {width} {height}" role="img" '
      f'aria-label="{word}">{"".join(parts)}<line class="cursor" y1="{above}" '
      f'y2="{height - below}" x1="-9" x2="-9"/></svg></figure>'
  )


def _thinned(points: Points) -> list[tuple[float, float | None]]:
  """At most `_MOST_POINTS` evenly spaced points, the last one among them."""
  stride = math.ceil(len(points) / _MOST_POINTS)
  return list(points[::-1][::stride][::-1])


def _ticks(low: float, high: float) -> list[float]:
  """Two to five round numbers between the bounds."""
  step = 10 ** math.floor(math.log10(high - low))
  while (high - low) / step < 2:
    step /= 2
  while (high - low) / step > 5:
    step *= 2
  first = math.ceil(low / step)
  return [number * step for number in range(first, math.floor(high / step) + 1)]
