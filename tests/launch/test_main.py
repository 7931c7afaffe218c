"""Exit codes and messages of every command, through real processes."""

import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_COMMAND = '''"""A command for tests.

Usage: say what to do with --mode.
"""

import errno
from absl import app, flags, logging
from acesearch_jax.errors import UsageError, UserError
from launch.main import run

_MODE = flags.DEFINE_enum('mode', 'ok', ['ok', 'user', 'usage', 'absl', 'interrupt', 'full', 'bug'], 'What.')


def main(argv):
  match _MODE.value:
    case 'user':
      raise UserError('No such file: x.')
    case 'usage':
      raise UsageError('Flag --x needs --y.')
    case 'absl':
      raise app.UsageError('Not like this.')
    case 'interrupt':
      raise KeyboardInterrupt
    case 'full':
      raise OSError(errno.ENOSPC, 'No space left on device', 'somewhere')
    case 'bug':
      raise ValueError('a bug')
  logging.info('working')


if __name__ == '__main__':
  run(main)
'''


@pytest.fixture(scope='module')
def command(tmp_path_factory):
  path = tmp_path_factory.mktemp('command') / 'command.py'
  path.write_text(_COMMAND)

  def call(*arguments):
    return subprocess.run([sys.executable, str(path), *arguments], cwd=_ROOT, text=True, capture_output=True,
                          env={'PYTHONPATH': str(_ROOT), 'PATH': ''}, timeout=60)

  return call


@pytest.mark.parametrize(('arguments', 'code', 'message'), [
    (['--mode=user'], 1, 'No such file: x.'),
    (['--mode=usage'], 2, 'Flag --x needs --y.'),
    (['--mode=absl'], 2, 'Not like this.'),
    (['--mode=interrupt'], 130, 'Interrupted; the same command started again'),
    (['--mode=full'], 1, 'The disk is full while writing somewhere;'),
    (['--mode=nonsense'], 2, 'Wrong usage: flag --mode=nonsense'),
    (['--no_such_flag=1'], 2, "Wrong usage: Unknown command line flag 'no_such_flag'"),
    (['--flagfile=missing.cfg'], 2, 'Wrong usage:'),
    (['--mode=ok', 'stray'], 2, "Unexpected argument 'stray'"),
])
def test_failures_are_one_sentence_and_the_right_code(command, arguments, code, message):
  done = command(*arguments)
  assert done.returncode == code
  assert done.stderr.startswith(message)
  assert done.stderr.count('\n') == 1
  assert done.stdout == ''


def test_success(command):
  done = command('--mode=ok')
  assert done.returncode == 0
  assert 'working' in done.stderr


def test_a_bug_keeps_its_traceback(command):
  done = command('--mode=bug')
  assert done.returncode == 1
  assert 'Traceback' in done.stderr and 'ValueError: a bug' in done.stderr


@pytest.mark.parametrize('flag', ['--help', '-h', '--helpshort', '--helpfull'])
def test_help_exits_with_zero_and_names_the_flags(command, flag):
  done = command(flag)
  assert done.returncode == 0
  assert '--mode' in done.stdout
  assert 'A command for tests.' in done.stdout
