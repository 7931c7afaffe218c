"""AceSearch-JAX: post-training of language models that search and reason."""

__version__ = '0.1.0'
