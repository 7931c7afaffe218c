import jax
import pytest


@pytest.fixture(autouse=True, scope='module')
def _quick_compiles():
  """XLA's optimiser takes most of the time of tests this small, and changes nothing they look at."""
  jax.config.update('jax_disable_most_optimizations', True)
  yield
  jax.config.update('jax_disable_most_optimizations', False)
