"""How every command starts and ends: flags, exit codes and one-sentence errors.

0 is success, 1 failure, 2 wrong usage, 130 an interrupt. A message of `UserError` goes to stderr as it
is; any other exception is a bug and keeps its traceback.
"""

import errno
import logging as logging_module
import re
import sys
from collections.abc import Callable

import jax
from absl import app, flags, logging

from acesearch_jax.errors import UsageError, UserError
from acesearch_jax.models.smollm2 import cache_root

_HELP = frozenset(('--help', '-help', '--helpshort', '-helpshort', '-h', '-?', '--?'))


def run(main: Callable[[list[str]], int | None], max_arguments: int = 0) -> None:
  """Parses the flags, runs `main(argv)` and exits; never returns.

  Args:
    main: gets the program name and the positional arguments; its return value is the exit code
      (`None` is 0).
    max_arguments: how many positional arguments the command takes; more is wrong usage.
  """

  def guarded(argv: list[str]) -> None:
    logging.set_verbosity(max(logging.INFO, logging.get_verbosity()))
    logging.get_absl_handler().addFilter(_from_us)
    sys.exit(_exit_code(main, argv, max_arguments))

  app.run(guarded, flags_parser=_parse)


def _from_us(record: logging_module.LogRecord) -> bool:
  """Keeps our own messages and everybody's warnings; Orbax alone writes thirty lines a checkpoint."""
  return record.levelno >= logging_module.WARNING or 'orbax' not in record.pathname


def use_compilation_cache(folder: str = '') -> None:
  """Keeps compiled programs on disk, so that the next start compiles nothing anew.

  Args:
    folder: where; empty for the user's cache folder, 'none' for nowhere.
  """
  if folder != 'none':
    folder = folder or str(cache_root() / 'compiled')
    jax.config.update('jax_compilation_cache_dir', folder)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)


def _exit_code(main: Callable[[list[str]], int | None], argv: list[str], max_arguments: int) -> int:
  try:
    extra = argv[1 + max_arguments:]
    if extra:
      raise UsageError(f'Unexpected argument {extra[0]!r}; flags are written --name=value, see --help.')
    return main(argv) or 0
  except UserError as error:
    return _fail(str(error), error.exit_code)
  except (app.UsageError, flags.Error) as error:
    return _fail(f'{error}', 2)
  except OSError as error:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
      raise
    place = f' while writing {error.filename}' if error.filename else ''
    return _fail(f'The disk is full{place}; free some space and start the same command again.', 1)
  except KeyboardInterrupt:
    return _fail('Interrupted; the same command started again goes on from the last complete step.', 130)


def _fail(sentence: str, code: int) -> int:
  print(sentence, file=sys.stderr, flush=True)
  return code


def _parse(argv: list[str]) -> list[str]:
  """Parses flags; wrong ones exit with 2, a request for help with 0 (absl: 1 for both)."""
  options = argv[1:argv.index('--')] if '--' in argv else argv[1:]
  if _HELP.intersection(options):
    print(_help())
    sys.exit(0)
  try:
    return flags.FLAGS(argv)
  except flags.Error as error:
    missing = re.findall(r'Flag (--\w+) must have a value other than None', str(error))
    problem = f'{", ".join(missing)} must be given' if missing else ' '.join(str(error).split())
    sys.exit(_fail(f'Wrong usage: {problem} (--help lists the flags)', 2))
  except SystemExit:  # --helpfull and its kin print, then exit with 1.
    sys.exit(0)


def _help() -> str:
  """The command's docstring and the flags of the launch package, the command's own first."""
  by_module = flags.FLAGS.flags_by_module_dict()
  own = sys.argv[0]
  shared = sorted(name for name in by_module if name.startswith('launch.'))
  sections = [(sys.modules['__main__'].__doc__ or '').strip()]
  for name in [own, *shared]:
    if by_module.get(name):
      sections.append(flags.FLAGS.module_help(name).strip('\n'))
  sections.append('--flagfile=FILE reads flags from a file, one a line; --helpfull lists every flag.')
  return '\n\n'.join(section for section in sections if section)
