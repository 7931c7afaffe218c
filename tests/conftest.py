"""Every test process sees eight CPU devices, decided before the first import of jax."""

import os

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
_FLAG = '--xla_force_host_platform_device_count'
if _FLAG not in os.environ.get('XLA_FLAGS', ''):
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {_FLAG}=8'.strip()
