"""Errors a user can act on.

Everything a user can put right (a wrong flag, a missing file, a broken row) is raised as a
`UserError` whose message is one sentence that names the thing and the remedy. Commands print the
sentence and exit with `exit_code`; any other exception is a bug and keeps its traceback.
"""


class UserError(Exception):
  """Something the user can put right. Exit code 1."""

  exit_code = 1


class UsageError(UserError):
  """A wrong flag or argument. Exit code 2."""

  exit_code = 2
