"""Rebuilds report.html of a run folder: one self-contained page with tables, curves and trajectories.

  python -m launch.report --workdir=DIR
"""

from absl import flags, logging

from acesearch_jax.errors import UsageError
from acesearch_jax.evaluation import report
from launch.main import run

_WORKDIR = flags.DEFINE_string('workdir', None, 'The run folder.')
_MAX_TRAJECTORIES = flags.DEFINE_integer(
    'max_trajectories', 300, 'Most trajectories of one iteration or evaluation in the page.', lower_bound=0
)


def main(_: list[str]) -> None:
  if not _WORKDIR.value:
    raise UsageError('--workdir is missing; give the folder of a run.')
  path = report.write_report(_WORKDIR.value, _MAX_TRAJECTORIES.value)
  logging.info('Wrote %s.', path)


if __name__ == '__main__':
  run(main)
