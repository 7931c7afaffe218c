"""Weights in and out: reads any model that --model takes and writes it as a Hugging Face folder.

Example: python -m launch.convert --source=smollm2-135m-instruct --output=smollm2
"""

from absl import flags

from acesearch_jax.models import loading, safetensors_io
from launch import main as launch_main

_SOURCE = flags.DEFINE_string(
    'source', None, 'Model to read: a preset, a Hugging Face folder or id, or a GGUF file.', required=True
)
_OUTPUT = flags.DEFINE_string('output', None, 'Folder to write; must not exist yet.', required=True)
flags.DEFINE_enum('format', 'safetensors', ['safetensors'], 'Form of the output.')


def main(argv: list[str]) -> None:
  del argv
  model = loading.load_model(_SOURCE.value)
  safetensors_io.export_folder(_OUTPUT.value, model.config, model.params, model.tokenizer)


if __name__ == '__main__':
  launch_main.run(main)
