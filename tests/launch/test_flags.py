"""Flags from config dataclasses, and the README's table of them.

Run as a script, it writes the table into the README:  PYTHONPATH=. python tests/launch/test_flags.py
"""

import dataclasses
import pathlib
import re

import pytest
from absl import flags as absl_flags

from acesearch_jax.errors import UsageError
from acesearch_jax.options import option
from acesearch_jax.recipes.config import AceSearcherConfig
from launch import flags

README = pathlib.Path(__file__).parents[2] / 'README.md'
TABLE = re.compile(r'(?<=<!-- flags -->\n\n).*?(?=\n<!-- /flags -->)', re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Options:
  hidden: int = 7
  count: int = option(3, 'How many.', least=1)
  share: float = option(0.5, 'Of all.', least=0, most=1)
  fast: bool = option(False, 'No care taken.')
  kind: str = option('a', 'Which.', choices=('a', 'b'))
  name: str = option('', 'Whose, x|y.')
  parts: tuple[str, ...] = option(('p', 'q'), 'What.', choices=('p', 'q', 'r'))


def parse(*arguments, **defaults):
  values = absl_flags.FlagValues()
  flags.define(Options, values, **defaults)
  values(['program', *arguments])
  return flags.read(Options, values)


def test_flags_have_the_defaults_and_types_of_the_fields():
  assert parse() == Options()
  assert parse(count=9) == Options(count=9)
  given = parse('--count=5', '--share=1', '--fast', '--kind=b', '--name=n', '--parts=r,p')
  assert given == Options(count=5, share=1.0, fast=True, kind='b', name='n', parts=('r', 'p'))
  assert parse('--parts=').parts == ()


@pytest.mark.parametrize(
    'wrong', ['--count=0', '--count=1.5', '--share=1.1', '--kind=c', '--fast=perhaps', '--hidden=1']
)
def test_wrong_values_are_refused(wrong):
  with pytest.raises(absl_flags.Error):
    parse(wrong)


@pytest.mark.parametrize(('wrong', 'message'), [
    ('--parts=p,z', "--parts: 'z' is not one of p, q, r"), ('--share=nan', '--share=nan is no number'),
])  # fmt: skip
def test_what_absl_lets_through_is_refused_when_read(wrong, message):
  with pytest.raises(UsageError, match=message):
    parse(wrong)


def test_the_table_has_flags_defaults_and_choices():
  assert flags.markdown_table(Options).splitlines() == [
      '| Flag | Default | Meaning |',
      '|---|---|---|',
      '| `--count` | `3` | How many. |',
      '| `--share` | `0.5` | Of all. |',
      '| `--fast` | `false` | No care taken. |',
      '| `--kind` | `a` | Which. One of `a`, `b`. |',
      '| `--name` |  | Whose, x\\|y. |',
      '| `--parts` | `p,q` | What. One of `p`, `q`, `r`. |',
  ]


def test_the_readme_has_the_table_of_today():
  [found] = TABLE.findall(README.read_text())
  assert found == flags.markdown_table(AceSearcherConfig), f'Write it with: {__doc__.split(":  ")[1]}'


if __name__ == '__main__':
  table = flags.markdown_table(AceSearcherConfig)
  README.write_text(TABLE.sub(lambda _: table, README.read_text()))
