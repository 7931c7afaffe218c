"""Options of commands that use a trained agent: flags, else what the checkpoint was trained with."""

import dataclasses

from absl import flags

from acesearch_jax.recipes.config import SelfPlayOptions
from acesearch_jax.training.policy import is_policy_folder, policy_description
from launch.flags import read

FLAGS = flags.FLAGS


def self_play_options(model: str) -> SelfPlayOptions:
  """Self-play's options: flags that were given, then those saved with a checkpoint, then defaults."""
  options = read(SelfPlayOptions)
  if not is_policy_folder(model):
    return options
  saved = policy_description(model)['agent']
  names = [field.name for field in dataclasses.fields(SelfPlayOptions)]
  return dataclasses.replace(
      options, **{name: saved[name] for name in names if name in saved and not FLAGS[name].present}
  )
