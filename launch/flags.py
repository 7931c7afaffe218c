"""absl flags from config dataclasses: one place says a flag's name, type, default and help.

The library below takes dataclasses and knows no flags. A field made by `acesearch_jax.options.option`
becomes a flag of the same name.
"""

import dataclasses
import math
import types
import typing
from typing import Any, TypeVar

from absl import flags

from acesearch_jax.errors import UsageError

Config = TypeVar('Config')


def define(config_type: type, flag_values: flags.FlagValues = flags.FLAGS, **defaults: Any) -> None:
  """Defines one flag for every option of a config dataclass.

  Args:
    config_type: a dataclass whose fields were made by `option`.
    flag_values: where to define them.
    **defaults: other defaults than the dataclass has.
  """
  hints = typing.get_type_hints(config_type)
  for field in dataclasses.fields(config_type):
    if 'help' not in field.metadata or field.name in flag_values:
      continue
    name, help_text = field.name, field.metadata['help']
    default = defaults.get(name, field.default)
    arguments = {'default': default, 'help': help_text, 'flag_values': flag_values}
    kind, choices = hints[name], field.metadata['choices']
    bounds = {'lower_bound': field.metadata['least'], 'upper_bound': field.metadata['most']}
    if choices and kind is str:
      flags.DEFINE_enum(name, enum_values=choices, **arguments)
    elif kind is bool:
      flags.DEFINE_boolean(name, **arguments)
    elif kind is int:
      flags.DEFINE_integer(name, **bounds, **arguments)
    elif kind is float:
      flags.DEFINE_float(name, **bounds, **arguments)
    elif typing.get_origin(kind) is tuple or isinstance(kind, types.GenericAlias):
      flags.DEFINE_list(name, **(arguments | {'default': list(default)}))
    else:
      flags.DEFINE_string(name, **arguments)


def read(config_type: type[Config], flag_values: flags.FlagValues = flags.FLAGS) -> Config:
  """Builds the config from the parsed flags.

  Raises:
    UsageError: a list flag has an element outside its choices, or a number is not finite.
  """
  hints = typing.get_type_hints(config_type)
  values = {}
  for field in dataclasses.fields(config_type):
    if 'help' not in field.metadata:
      continue
    value = flag_values[field.name].value
    if isinstance(value, list):
      value = tuple(value)
      wrong = [v for v in value if field.metadata['choices'] and v not in field.metadata['choices']]
      if wrong:
        choices = ', '.join(field.metadata['choices'])
        raise UsageError(f"--{field.name}: '{wrong[0]}' is not one of {choices}.")
    elif isinstance(value, float) and not math.isfinite(value):  # No bound keeps a NaN out.
      raise UsageError(f'--{field.name}={value} is no number to reckon with; give a finite one.')
    elif hints[field.name] is str and value is None:
      value = ''
    values[field.name] = value
  return config_type(**values)


def markdown_table(config_type: type) -> str:
  """The options of a config dataclass as a Markdown table: flag, default, meaning.

  Args:
    config_type: a dataclass whose fields were made by `option`.
  """
  lines = ['| Flag | Default | Meaning |', '|---|---|---|']
  for field in dataclasses.fields(config_type):
    if 'help' in field.metadata:
      meaning, choices = field.metadata['help'], field.metadata['choices']
      if choices:
        meaning += f' One of {", ".join(f"`{choice}`" for choice in choices)}.'
      default = _as_typed(field.default)
      default = f'`{default}`' if default else ''
      lines.append(f'| `--{field.name}` | {default} | {meaning.replace("|", chr(92) + "|")} |')
  return '\n'.join(lines) + '\n'


def _as_typed(value: Any) -> str:
  """A flag's value as one would type it."""
  if isinstance(value, bool):
    return str(value).lower()
  return ','.join(map(str, value)) if isinstance(value, tuple) else str(value)
