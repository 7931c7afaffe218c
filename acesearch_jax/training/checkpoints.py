"""Checkpoints of a stage in training, to resume it to the same bits (Orbax).

A checkpoint holds what changes (step, trainable parameters, optimiser state) and a small JSON of the
caller's (counters). The place in the data is the step itself (`batching.batch_indices`). It is
restored into arrays that lie where the new run's lie, on whatever mesh that is.
"""

import shutil
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from acesearch_jax import files
from acesearch_jax.errors import UserError

# The sizes of a checkpoint's files, written last: a checkpoint is complete when it has this, and damaged
# when it does not agree. TensorStore would find out too, but only after many lines of tracebacks.
_MANIFEST = 'manifest.json'


class Checkpoints:
  """The checkpoints of one stage, in one folder.

  Args:
    folder: theirs alone; created when missing.
    keep: how many of the latest stay.
  """

  def __init__(self, folder: epath.PathLike, keep: int = 2):
    self._folder = epath.Path(folder)
    try:
      self._manager = ocp.CheckpointManager(
          self._folder.resolve(),
          options=ocp.CheckpointManagerOptions(
              max_to_keep=keep,
              create=True,
              cleanup_tmp_directories=True,  # what a kill left half written
              enable_async_checkpointing=False,  # a failed write stops the run at once
          ),
      )
    except OSError as error:
      raise UserError(f'Cannot use {self._folder} for checkpoints: {error.strerror or error}.') from error

  def save(self, step: int, tree: Any, data: dict[str, Any]) -> None:
    """Writes a checkpoint, complete or not at all.

    Args:
      step: its number, higher than any before.
      tree: of arrays.
      data: anything JSON takes.

    Raises:
      UserError: it could not be written; for example, the disk is full.
    """
    self._check_space(step, sum(leaf.nbytes for leaf in jax.tree.leaves(tree)))
    arguments = ocp.args.Composite(state=ocp.args.StandardSave(tree), data=ocp.args.JsonSave(data))
    try:
      self._manager.save(step, args=arguments)
      self._manager.wait_until_finished()
    except Exception as error:  # TensorStore reports a full disk as ValueError, Orbax wraps others
      raise self._cannot_write(step, _first_line(error)) from error
    files.write_json(self._path(step) / _MANIFEST, _file_sizes(self._path(step)))

  def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
    """The latest checkpoint that can be read; damaged later ones are deleted with a warning.

    Args:
      like: a tree of arrays or ShapeDtypeStructs with the shapes, dtypes and shardings to restore to.

    Returns:
      The tree and the JSON saved with it, or None where no checkpoint has been completed.

    Raises:
      UserError: there are checkpoints and none can be read.
    """
    target = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), like
    )
    arguments = ocp.args.Composite(state=ocp.args.StandardRestore(target), data=ocp.args.JsonRestore())
    failure = None
    for step in sorted(self._manager.all_steps(), reverse=True):
      if not (self._path(step) / _MANIFEST).exists():  # a kill came between the arrays and the manifest
        self._manager.delete(step)
        continue
      try:
        if files.read_json(self._path(step) / _MANIFEST) != _file_sizes(self._path(step)):
          raise ValueError('files are missing or cut short')
        restored = self._manager.restore(step, args=arguments)
      except Exception as error:  # what a damaged file raises depends on which file it is
        failure = failure or error
        logging.warning('Checkpoint %d in %s cannot be read: %s', step, self._folder, _first_line(error))
        continue
      for damaged in [other for other in self._manager.all_steps() if other > step]:
        self._manager.delete(damaged)
      return restored['state'], restored['data']
    if failure is None:
      return None
    raise UserError(
        f'No checkpoint in {self._folder} can be read ({_first_line(failure)}); delete the folder to train '
        'this stage from its start.'
    ) from failure

  def _path(self, step: int) -> epath.Path:
    return epath.Path(self._manager.directory) / str(step)

  def _check_space(self, step: int, size: int) -> None:
    if '://' in str(self._manager.directory):
      return
    free = shutil.disk_usage(self._manager.directory).free
    if free < size + 1_000_000:  # metadata takes well under a megabyte
      raise self._cannot_write(step, f'it takes {size / 1e6:.1f} MB, {free / 1e6:.1f} MB are free')

  def _cannot_write(self, step: int, reason: str) -> UserError:
    return UserError(
        f'Cannot write checkpoint {step} in {self._folder} ({reason}); free some space, then start again: '
        'the run resumes from the checkpoint before.'
    )

  def close(self) -> None:
    """Frees what the manager holds."""
    self._manager.close()


def _file_sizes(folder: epath.Path, prefix: str = '') -> dict[str, int]:
  """Bytes of each file under a checkpoint's folder by relative path, the manifest aside."""
  sizes = {}
  for path in sorted(folder.iterdir()):
    if path.is_dir():
      sizes |= _file_sizes(path, f'{prefix}{path.name}/')
    elif path.name != _MANIFEST:
      sizes[prefix + path.name] = path.stat().length
  return sizes


def _first_line(error: Exception) -> str:
  return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
