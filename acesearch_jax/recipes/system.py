"""Everything a policy needs to answer: its weights in a sampler, a tokenizer, questions and a retriever."""

import dataclasses
import functools
from collections.abc import Sequence

from absl import logging

from acesearch_jax.agents.conversation import Conversation
from acesearch_jax.data.question_sets import load_tasks
from acesearch_jax.data.tasks import Passage, Task
from acesearch_jax.errors import UserError
from acesearch_jax.models.loading import load_model
from acesearch_jax.models.precision import for_sampling
from acesearch_jax.recipes.config import SystemConfig
from acesearch_jax.retrieval.base import Retriever, read_corpus
from acesearch_jax.retrieval.bm25 import BM25Retriever
from acesearch_jax.sampling.engine import Engine, EngineConfig
from acesearch_jax.sharding.mesh import make_mesh
from acesearch_jax.training.policy import (
    Policy,
    base_policy,
    is_policy_folder,
    merged_params,
    policy_description,
    restore_policy,
)


class SearchSystem:
  """Loaded once; parts that take long are made when first used.

  Attributes:
    config: the options.
    mesh: of devices.
    model: as loaded, on the host.
    base: the model as a policy, with fresh adapters where it is to have some.
    conversation: renders prompts for the policy.
  """

  def __init__(
      self,
      config: SystemConfig,
      splits: Sequence[str],
      lora_rank: int = 0,
      lora_alpha: float = 1.0,
      remat: bool = False,
  ):
    """Loads the model.

    Args:
      config: the options.
      splits: of the data set that are used; their passages are the corpus where none is given.
      lora_rank: of fresh adapters, 0 for none.
      lora_alpha: their scale.
      remat: recompute layers in the backward pass.

    Raises:
      UserError: it cannot be loaded, or the mesh does not fit the devices.
    """
    self.config = config
    self.splits = splits
    self.mesh = make_mesh(config.mesh)
    self.model = load_model(config.model, config.dtype)
    self.base = base_policy(self.model, lora_rank, lora_alpha, remat, config.seed, self.mesh)
    self.conversation = Conversation(self.model.tokenizer)
    self._sampling: str | None = None  # fingerprint of the weights in the sampler

  @classmethod
  def open(cls, config: SystemConfig, splits: Sequence[str]) -> 'tuple[SearchSystem, Policy]':
    """The system around `config.model`, which may also be a stage's checkpoint, and the policy in it."""
    if not is_policy_folder(config.model):
      system = cls(config, splits)
      return system, system.base
    saved = policy_description(config.model)
    model = dataclasses.replace(config, model=saved['model'])
    system = cls(model, splits, saved['lora_rank'], saved['lora_alpha'])
    return system, restore_policy(config.model, system.base, system.mesh)

  # Data.

  @functools.cached_property
  def passages(self) -> list[Passage]:
    """The corpus that is searched."""
    if self.config.corpus:
      return read_corpus(self.config.corpus)
    found = [self._load(split, 0)[1] or [] for split in dict.fromkeys(self.splits)]
    corpus = list({passage.id: passage for passages in found for passage in passages}.values())
    if not corpus:
      raise UserError(f'--dataset={self.config.dataset} brings no passages; give --corpus or --index.')
    return corpus

  @functools.cached_property
  def passages_by_id(self) -> dict[str, Passage]:
    return {passage.id: passage for passage in self.passages}

  @functools.cached_property
  def retriever(self) -> Retriever:
    return BM25Retriever.load(self.config.index) if self.config.index else BM25Retriever(self.passages)

  def tasks(self, split: str, limit: int = 0) -> list[Task]:
    """The first `limit` (0 for all) tasks of a split."""
    return self._load(split, limit)[0]

  def _load(self, split: str, limit: int) -> tuple[list[Task], list[Passage] | None]:
    return load_tasks(self.config.dataset, split, self.config.data_dir or None, limit or None)

  # Sampling.

  @functools.cached_property
  def engine(self) -> Engine:
    """The sampler, warmed up, with the base weights."""
    config = self.config
    engine = Engine(
        for_sampling(self.base.config),
        merged_params(self.base, self.mesh),
        self.mesh,
        EngineConfig(
            num_slots=config.num_slots,
            max_length=config.max_length,
            cache_bytes=config.cache_megabytes << 20,
        ),
    )
    self._sampling = self.base.fingerprint
    logging.info('The sampler compiled its programs in %.1f s.', engine.warm_up())
    return engine

  def sampler(self, policy: Policy) -> Engine:
    """The sampler with the weights of `policy`."""
    engine = self.engine
    if self._sampling != policy.fingerprint:
      engine.update_params(merged_params(policy, self.mesh))
      self._sampling = policy.fingerprint
    return engine
