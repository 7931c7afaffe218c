"""Every test process sees eight CPU devices, decided before the first import of jax; a small disk."""

import os
import pathlib
import subprocess

import pytest

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
_FLAG = '--xla_force_host_platform_device_count'
if _FLAG not in os.environ.get('XLA_FLAGS', ''):
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {_FLAG}=8'.strip()


class SmallDisk:
  """A file system of its own, in memory."""

  def __init__(self, path: pathlib.Path):
    self.path = path

  def resize(self, kilobytes: int) -> None:
    _mount('-o', f'remount,size={kilobytes}k', str(self.path))


@pytest.fixture
def small_disk(tmp_path_factory):
  """64 kB until resized. Skips the test where file systems cannot be mounted."""
  path = tmp_path_factory.mktemp('small_disk')
  try:
    _mount('-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', str(path))
  except (OSError, subprocess.CalledProcessError):
    pytest.skip('mounting a small file system takes root')
  yield SmallDisk(path)
  subprocess.run(['umount', '-l', str(path)], check=True)


def _mount(*arguments: str) -> None:
  subprocess.run(['mount', *arguments], check=True, capture_output=True)
