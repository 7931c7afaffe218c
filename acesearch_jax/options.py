"""Fields of config dataclasses that users set: default, help and bounds beside each other."""

import dataclasses
from collections.abc import Sequence
from typing import Any


def option(
  default: Any,
  help: str,
  *,
  choices: Sequence[str] | None = None,
  least: float | None = None,
  most: float | None = None,
) -> Any:
  """A dataclass field that a command-line flag of the same name can set.

  Args:
    default: its default.
    help: one sentence for `--help`, with the unit where there is one.
    choices: allowed values of a string, or of each element of a tuple.
    least: smallest allowed number.
    most: greatest allowed number.
  """
  metadata = {'help': help, 'choices': choices, 'least': least, 'most': most}
  return dataclasses.field(default=default, metadata=metadata)
