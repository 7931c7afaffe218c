"""Builds a retrieval index from a corpus.

Example: python -m launch.index --corpus=corpus.jsonl --output=index

The corpus has one JSON object a line, {"id", "title", "text"} or {"id", "contents"} with the quoted
title as the first line of the contents.
"""

from absl import flags, logging

from acesearch_jax.retrieval.base import read_corpus
from acesearch_jax.retrieval.bm25 import BM25Retriever
from launch import main as launch_main

_CORPUS = flags.DEFINE_string('corpus', None, 'JSON-lines file of passages.', required=True)
_OUTPUT = flags.DEFINE_string('output', None, 'Folder to write; an index there is replaced.', required=True)
_K1 = flags.DEFINE_float('bm25_k1', 0.9, 'How fast repeated words saturate.', lower_bound=0)
_B = flags.DEFINE_float(
    'bm25_b', 0.4, 'How much long passages are discounted.', lower_bound=0, upper_bound=1
)


def main(argv: list[str]) -> None:
  del argv
  passages = read_corpus(_CORPUS.value)
  BM25Retriever(passages, _K1.value, _B.value).save(_OUTPUT.value)
  logging.info('Indexed %d passages in %s.', len(passages), _OUTPUT.value)


if __name__ == '__main__':
  launch_main.run(main)
