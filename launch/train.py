"""Runs a recipe: python -m launch.train --flagfile=configs/NAME.cfg --workdir=DIR

Started again with the same --workdir, a run goes on where it was stopped. DIR holds its config, metrics,
results, rollouts, preference pairs, checkpoints and report.html.
"""

import dataclasses

from absl import flags

from acesearch_jax.errors import UsageError
from acesearch_jax.models import precision
from acesearch_jax.recipes import acesearcher
from acesearch_jax.recipes.config import AceSearcherConfig
from acesearch_jax.recipes.dry_run import dry_run
from launch import main as launcher
from launch.flags import define, read

RECIPES = {'acesearcher': (AceSearcherConfig, acesearcher.run, dry_run)}
# Flags that may change when a run is resumed: they cannot change its results.
HARMLESS = frozenset({'log_every', 'checkpoint_every', 'concurrency', 'cache_megabytes', 'compilation_cache'})

_RECIPE = flags.DEFINE_enum('recipe', 'acesearcher', list(RECIPES), 'Which algorithm.')
_WORKDIR = flags.DEFINE_string('workdir', None, 'Run folder: local or gs://; made if absent, else resumed.')
_DRY_RUN = flags.DEFINE_bool('dry_run', False, 'Print decoded training rows with their masks and stop.')
_CACHE = flags.DEFINE_string(
    'compilation_cache', '', 'Folder for compiled programs; empty for the default, "none" for no cache.'
)
define(AceSearcherConfig)


def main(argv: list[str]) -> None:
  del argv
  if not _WORKDIR.value and not _DRY_RUN.value:
    raise UsageError('--workdir is missing; give a folder for the run, for example --workdir=runs/first.')
  launcher.use_compilation_cache(_CACHE.value)
  config_type, run, show_rows = RECIPES[_RECIPE.value]
  config = read(config_type)
  # Stored as resolved: a run that goes on elsewhere should not change its number formats unnoticed.
  config = dataclasses.replace(config, dtype=precision.resolve(config.dtype))
  if _DRY_RUN.value:
    for text in show_rows(config, _WORKDIR.value):
      print(text, flush=True)
  else:
    resolved = {'recipe': _RECIPE.value, **dataclasses.asdict(config)}
    run(config, _WORKDIR.value, resolved, HARMLESS)


if __name__ == '__main__':
  launcher.run(main)
