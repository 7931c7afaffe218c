"""Compiles the SFT, DPO and decode steps of SmolLM2-135M for a TPU and prints what the compiler says as JSON.

A process of its own: libtpu, once loaded, stays in the process that loaded it.
"""

import dataclasses
import json
import sys

import jax

from acesearch_jax.models.config import DecoderConfig
from acesearch_jax.sampling.programs import programs
from acesearch_jax.sharding.mesh import make_mesh
from acesearch_jax.training.ahead_of_time import (
    abstract_batch,
    compile_program,
    compile_training,
    topology_devices,
)
from acesearch_jax.training.objectives import DpoObjective, SftObjective
from acesearch_jax.training.optimizer import OptimizerConfig, make_optimizer

CONFIG = DecoderConfig(
    vocab_size=49152, width=576, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64, mlp_width=1536,
    rope_theta=100_000.0, dtype='bfloat16', remat=True,
)  # fmt: skip


def main(topology: str, mesh_text: str) -> None:
  # The compiler's search for the fastest tiling takes minutes and changes nothing that is looked at.
  jax.config.update('jax_exec_time_optimization_effort', -1.0)
  mesh = make_mesh(mesh_text, topology_devices(topology))
  optimizer = make_optimizer(OptimizerConfig(1e-5), num_steps=100)
  objectives = {'sft': SftObjective(CONFIG), 'dpo': DpoObjective(CONFIG, beta=0.1, gamma=0.2)}
  report = {}
  for name, objective in objectives.items():
    batch = abstract_batch(mesh, rows=16, length=1024, pairs=name == 'dpo')
    halves = ('accumulate', 'update') if name == 'sft' else ('accumulate',)  # the update is the same
    for half, program in compile_training(objective, optimizer, mesh, batch, halves).items():
      report[f'{name}/{half}'] = dataclasses.asdict(program) | {'total_bytes': program.total_bytes}
  # A lane of each of the four shares of the batch has pages for 16 slots of 1,024 tokens.
  decoder = programs(
      CONFIG.replace(remat=False), mesh, 64, page_size=128, num_pages=128, decode_steps=8, stop_shape=(4, 8)
  )
  decode, arguments = decoder.abstract_decode(context=1024)
  program = compile_program(decode, mesh, *arguments)
  report['decode'] = dataclasses.asdict(program) | {'total_bytes': program.total_bytes}
  print(json.dumps(report))


if __name__ == '__main__':
  main(*sys.argv[1:])
