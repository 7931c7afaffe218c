"""Runs commands as `python -m launch.NAME` does, with the imports paid for once.

The server has imported the libraries; every request forks it, and the child runs the module as
`__main__`. No JAX backend exists before the fork.
"""

import json
import os
import pathlib
import runpy
import subprocess
import sys
from typing import NamedTuple

_ROOT = pathlib.Path(__file__).parents[2]


class Done(NamedTuple):
  """How a command ended."""

  returncode: int
  stdout: str
  stderr: str


def environment() -> dict[str, str]:
  """One CPU device, and programs that are compiled fast rather than well."""
  wanted = {'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '', 'JAX_DISABLE_MOST_OPTIMIZATIONS': 'true'}
  return os.environ | wanted | {'PYTHONPATH': str(_ROOT)}


class Commands:
  """Calls commands; close it at the end."""

  def __init__(self, folder: pathlib.Path):
    self._stdout, self._stderr = folder / 'stdout', folder / 'stderr'
    self._server = subprocess.Popen(
        [sys.executable, __file__, str(self._stdout), str(self._stderr)], cwd=_ROOT, env=environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip

  def __call__(self, module: str, *arguments: object) -> Done:
    print(json.dumps([module, *map(str, arguments)]), file=self._server.stdin, flush=True)
    code = int(self._server.stdout.readline())
    return Done(code, self._stdout.read_text(), self._stderr.read_text())

  def close(self) -> None:
    self._server.stdin.close()
    self._server.wait()


def _serve(stdout: str, stderr: str) -> list[str]:
  """Answers requests; returns, in a child, what it is to run."""
  for line in sys.stdin:
    child = os.fork()
    if not child:
      for path, descriptor in ((stdout, 1), (stderr, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
      return json.loads(line)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
  sys.exit(0)


if __name__ == '__main__':
  import acesearch_jax.evaluation.sweep
  import acesearch_jax.recipes.acesearcher  # noqa: F401

  module, *arguments = _serve(*sys.argv[1:])
  sys.argv[1:] = arguments
  runpy.run_module(module, run_name='__main__', alter_sys=True)
