"""The options of a run, with the defaults that the published systems suggest.

`launch.train` makes a flag of every field; flagfiles under `configs/` scale them to a model.
"""

import dataclasses
import functools

from acesearch_jax.agents.selfplay import SelfPlayConfig
from acesearch_jax.errors import UsageError
from acesearch_jax.models.precision import PRECISIONS
from acesearch_jax.options import option
from acesearch_jax.sampling.request import SamplingParams


@dataclasses.dataclass(frozen=True)
class SystemConfig:
  """A model, data, a retriever and devices: what sampling with search takes."""

  seed: int = option(0, 'Seed of every random draw of the run.', least=0, most=2**31 - 1)
  model: str = option(
    'smollm2-135m-instruct', 'Preset name, Hugging Face folder or hub id, GGUF file, or a checkpoint of ours.'
  )
  dtype: str = option(
    'auto',
    'Of activations and products; mixed rounds only the operands of products with weights to bfloat16; '
    'auto is bfloat16 on accelerators, and on CPUs mixed where they multiply it in hardware.',
    choices=('auto', *PRECISIONS),
  )
  mesh: str = option('', 'Device mesh such as data:1,fsdp:4,tensor:2,sequence:1; one size may be -1.')
  dataset: str = option('world', 'Registered data set, or a JSON-lines file of tasks.')
  data_dir: str = option('', 'Folder with the official files of a registered data set.')
  corpus: str = option('', "JSON-lines corpus to search; empty for the data set's own passages.")
  index: str = option('', 'Folder of a saved index to search instead of a corpus.')
  retriever: str = option('bm25', 'How passages are found.', choices=('bm25',))
  max_length: int = option(
    1024, 'Longest context in tokens, prompt and answer; longer ones are refused.', least=32
  )
  num_slots: int = option(32, 'Conversations decoded side by side.', least=1)
  cache_megabytes: int = option(1024, 'Keys and values that the sampler holds, over all devices.', least=1)
  concurrency: int = option(64, 'Tasks in flight; enough to keep the decoding slots full.', least=1)


@dataclasses.dataclass(frozen=True)
class SelfPlayOptions:
  """How wide self-play is, how it samples and what it reads."""

  num_plans: int = option(3, 'Distinct decompositions a question (m).', least=1)
  max_plan_draws: int = option(8, 'Draws to find them.', least=1)
  num_solutions: int = option(4, "Solutions a decomposition (m').", least=1)
  temperature: float = option(0.7, 'Of rollouts; evaluation is greedy.', least=0)
  top_p: float = option(0.99, 'Of rollouts.', least=0, most=1)
  repetition_penalty: float = option(1.05, 'Of rollouts and evaluation; 1 for none.', least=0)
  plan_tokens: int = option(1024, 'Longest decomposition in tokens.', least=1)
  subanswer_tokens: int = option(64, 'Longest intermediate answer in tokens.', least=1)
  answer_tokens: int = option(512, 'Longest final answer in tokens.', least=1)
  passages_per_step: int = option(10, 'Passages retrieved for a sub-question.', least=1)
  final_passages: int = option(
    15, 'Passages of the final prompt, split evenly over the sub-questions.', least=0
  )

  def __post_init__(self):
    self.self_play()  # Refuses what the sampler would, before a model is loaded.

  def self_play(self) -> SelfPlayConfig:
    """The options as those of self-play in training."""
    sampling = functools.partial(
        SamplingParams,
        temperature=self.temperature,
        top_p=self.top_p,
        repetition_penalty=self.repetition_penalty,
    )
    return SelfPlayConfig(
        num_plans=self.num_plans,
        max_plan_draws=self.max_plan_draws,
        num_solutions=self.num_solutions,
        passages_per_step=self.passages_per_step,
        final_passages=self.final_passages,
        plan=sampling(max_tokens=self.plan_tokens),
        subanswer=sampling(max_tokens=self.subanswer_tokens),
        answer=sampling(max_tokens=self.answer_tokens),
    )


@dataclasses.dataclass(frozen=True)
class RunConfig(SystemConfig):
  """What every recipe needs beside: training and evaluation."""

  lora_rank: int = option(16, 'Rank of the trained adapters; 0 trains every parameter.', least=0)
  lora_alpha: float = option(32.0, 'Adapters are scaled by lora_alpha / lora_rank.', least=0)
  remat: bool = option(False, 'Recompute each layer in the backward pass: less memory, a third more work.')
  micro_batch_tokens: int = option(
    2048, 'Tokens of one forward and backward pass, over all devices.', least=1
  )
  train_length: int = option(
    0, 'Tokens of a training row, into which conversations are packed; longer ones are dropped. '
    '0 for max_length.', least=0
  )  # fmt: skip
  checkpoint_every: int = option(
    50, 'Optimiser steps between checkpoints; a kill loses at most these.', least=1
  )
  log_every: int = option(5, 'Optimiser steps between lines in metrics.jsonl.', least=1)
  peak_tflops: float = option(0.0, "A device's peak TFLOP/s, for MFU; 0 leaves MFU out.", least=0)
  eval_split: str = option('dev', 'Split that stages are evaluated on.')
  eval_limit: int = option(500, 'Questions of an evaluation; 0 for all.', least=0)
  eval_agents: tuple[str, ...] = option(
    (), 'Baseline agents evaluated with the last weights too.', choices=('rag', 'direct')
  )


@dataclasses.dataclass(frozen=True)
class AceSearcherConfig(SelfPlayOptions, RunConfig):
  """AceSearcher (arXiv 2509.24193): SFT, then self-play and DPO, round after round."""

  iterations: int = option(2, 'Rounds of rollouts and preference optimisation.', least=0)
  controls: tuple[str, ...] = option(
    (),
    'Controls run beside DPO: sft_more (SFT goes on for as many steps), raft (fine-tuning on the best '
    'rollouts of the same rounds).',
    choices=('sft_more', 'raft'),
  )

  sft_tasks: int = option(2000, 'Training questions that demonstrations are made from.', least=1)
  sft_epochs: float = option(1.0, 'Most passes over the demonstrations.', least=0)
  sft_patience: int = option(
      0,
      'Stop after so many evaluations without a lower held-out loss, and keep the best weights; '
      '0 for never.',
      least=0,
  )  # fmt: skip
  sft_eval_every: int = option(50, 'Optimiser steps between evaluations of the held-out loss.', least=1)
  sft_heldout_tasks: int = option(50, 'Dev questions that the held-out loss is taken on.', least=1)
  sft_learning_rate: float = option(2e-5, 'Peak rate of supervised fine-tuning.', least=0)
  sft_batch_size: int = option(64, 'Demonstrations a step.', least=1)

  rollout_tasks: int = option(5000, 'Training questions a round.', least=1)
  reward: str = option(
    'em', 'Exact match, or the mean of EM, F1 and accuracy; times format.', choices=('em', 'shaped')
  )

  min_gap: float = option(0.25, 'Least difference of mean rewards in a pair.', least=0)
  max_pairs_per_task: int = option(3, 'Pairs of each kind from one question.', least=1)
  max_pairs: int = option(0, 'Pairs of each kind in a round, a seeded sample; 0 for all.', least=0)
  pair_kinds: tuple[str, ...] = option(
    ('plan', 'subanswer', 'final'), 'Kinds of pairs trained on.', choices=('plan', 'subanswer', 'final')
  )
  dpo_learning_rate: float = option(2e-5, 'Peak rate of preference optimisation.', least=0)
  dpo_batch_size: int = option(64, 'Pairs a step.', least=1)
  dpo_epochs: float = option(1.0, 'Passes over the pairs of a round.', least=0)
  dpo_beta: float = option(0.1, 'β of the DPO loss.', least=0)
  dpo_gamma: float = option(0.2, 'Weight γ of the NLL of the chosen answer.', least=0)
  reference: str = option(
      'previous', "DPO's reference: the weights that the round began with, or the fine-tuned ones.",
      choices=('previous', 'initial'),
  )  # fmt: skip

  raft_learning_rate: float = option(2e-5, 'Peak rate of the raft control.', least=0)
  raft_epochs: float = option(1.0, 'Passes of the raft control over the best rollouts of a round.', least=0)

  warmup_share: float = option(0.05, 'Share of the steps over which the rate rises.', least=0, most=1)
  schedule: str = option('cosine', 'Of the rate after warm-up.', choices=('cosine', 'linear', 'constant'))
  weight_decay: float = option(0.0, 'Of AdamW, on matrices only.', least=0)
  adam_b2: float = option(0.999, 'β2 of AdamW.', least=0, most=1)
  clip_norm: float = option(1.0, 'Largest norm of a gradient.', least=0)

  few_shot_base: bool = option(True, 'Show two worked examples to the model before fine-tuning.')
  eval_stages: tuple[str, ...] = option((), 'Stages that are evaluated, such as sft,dpo_2; empty for all.')

  def __post_init__(self):
    super().__post_init__()
    unknown = set(self.eval_stages) - set(self.evaluated_stages())
    if unknown:
      raise UsageError(
          f'--eval_stages names {min(unknown)!r}; this run has {", ".join(self.evaluated_stages())}.'
      )

  def evaluated_stages(self) -> list[str]:
    """Names of the stages that can be evaluated, in order."""
    rounds = [f'dpo_{k}' for k in range(1, self.iterations + 1)]
    return ['base', 'sft', *rounds, *(name for name in ('raft', 'sft_more') if name in self.controls)]
