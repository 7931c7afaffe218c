"""What training will be fed, for people: rows of real micro-batches, decoded, with their masks.

Nothing is sampled or trained. What stands between ⟦ and ⟧ is what the loss is about; it is read off the
batch's own mask, after batching.
"""

import collections
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from etils import epath

from acesearch_jax import files
from acesearch_jax.agents.demonstrations import Demonstration
from acesearch_jax.models.attention import SEGMENT_GROUP
from acesearch_jax.models.tokenizer import Tokenizer
from acesearch_jax.recipes.acesearcher import demonstrate, to_example, training_tasks
from acesearch_jax.recipes.config import AceSearcherConfig
from acesearch_jax.recipes.system import SearchSystem
from acesearch_jax.recipes.workbench import batch_shape
from acesearch_jax.rewards.preferences import PreferencePair
from acesearch_jax.training.batching import (
    CHOSEN,
    PADDING,
    PROMPT,
    REJECTED,
    AnyExample,
    BatchShape,
    Example,
    HostBatch,
    PairExample,
    lay_out,
    pack,
    select_usable,
)

ROWS_EACH = 2  # of every role, and of every kind of pair
_TASKS = 16  # enough that every role is demonstrated twice
_OPEN, _CLOSE = '⟦', '⟧'
_SEGMENTS = {PROMPT: 'prompt', CHOSEN: 'chosen', REJECTED: 'rejected'}


def dry_run(config: AceSearcherConfig, workdir: epath.PathLike | None) -> Iterator[str]:
  """Yields what to print: rows of fine-tuning, then rows of preference pairs.

  Args:
    config: of the run.
    workdir: a run folder whose first round's pairs are shown; where it has none, or for None, pairs are
      put together from demonstrations.

  Raises:
    UserError: the model or the data cannot be read.
  """
  system = SearchSystem(config, ('train', config.eval_split))
  shape, tokenizer = batch_shape(config, system.mesh), system.model.tokenizer
  tasks = training_tasks(config, system, 0)[:_TASKS]
  shown = [(one, to_example(system.conversation, one)) for one in demonstrate(config, system, tasks, 'train')]
  named = _few_of_each([(f'{one.role} ({one.kind})', example) for one, example in shown])
  yield f'Fine-tuning: rows from the first {len(tasks)} questions; {_OPEN}trained{_CLOSE}.'
  yield from _rows(named, shape, tokenizer)
  path = epath.Path(workdir) / 'preferences' / '1.jsonl' if workdir else None
  if path and path.exists():
    mined = [PreferencePair.from_json(row) for row in files.read_jsonl(path)]
    pairs = [(pair.kind, PairExample(pair.prompt, pair.chosen, pair.rejected)) for pair in mined]
    named = _few_of_each(pairs)
    yield f'\nPreferences: {len(named)} of the {len(mined)} pairs in {path}.'
  else:
    named = _few_of_each(_example_pairs(shown))
    yield (
        '\nPreferences: EXAMPLES ONLY, as there are no rollouts yet; the rejected reply is that of another '
        'demonstration.'
    )
  yield from _rows(named, shape, tokenizer)


def marked(tokenizer: Tokenizer, tokens: Sequence[int], mask: Sequence[bool]) -> str:
  """Text of token ids, with runs of those in the mask between ⟦ and ⟧."""
  pieces = []
  for trained, run in itertools.groupby(zip(tokens, mask, strict=True), key=lambda pair: bool(pair[1])):
    text = tokenizer.decode([token for token, _ in run])
    pieces.append(f'{_OPEN}{text}{_CLOSE}' if trained else text)
  return ''.join(pieces)


def _few_of_each(named: Sequence[tuple[str, AnyExample]]) -> list[tuple[str, AnyExample]]:
  """The first `ROWS_EACH` of every name."""
  seen: collections.Counter[str] = collections.Counter()
  kept = []
  for name, example in named:
    seen[name] += 1
    if seen[name] <= ROWS_EACH:
      kept.append((name, example))
  return kept


def _example_pairs(shown: Sequence[tuple[Demonstration, Example]]) -> list[tuple[str, PairExample]]:
  """For each role a pair of its first reply and the first reply that differs from it."""
  roles: dict[str, list[Example]] = collections.defaultdict(list)
  for one, example in shown:
    roles[f'{one.role} ({one.kind})'].append(example)
  pairs = []
  for name, examples in roles.items():
    prompt, chosen = examples[0].prompt, examples[0].response
    rejected = next((e.response for e in examples if e.response != chosen), None)
    if rejected:
      pairs.append((name, PairExample(prompt, chosen, rejected)))
  return pairs


def _rows(
    named: Sequence[tuple[str, AnyExample]], shape: BatchShape, tokenizer: Tokenizer
) -> Iterator[str]:
  """Every example in every row of the micro-batches that they make."""
  fitting = [(name, example) for name, example in named if select_usable([example], shape.length)[0]]
  if len(fitting) < len(named):
    yield (
        f'{len(named) - len(fitting)} of {len(named)} do not fit in a row of {shape.length} tokens '
        '(--train_length); training drops them.'
    )
  examples = [example for _, example in fitting]
  for number, packing in enumerate(pack(examples, shape), start=1):
    batch = lay_out(examples, packing, shape)
    used = np.mean(batch['segment_ids'] != PADDING)
    yield f'\nMicro-batch {number}: {shape.rows} rows of {shape.length} tokens, {1 - used:.0%} padding'
    for row, indices in enumerate(packing):
      for place, index in enumerate(indices):
        yield _example(fitting[index][0], row, place, batch, tokenizer)


def _example(name: str, row: int, place: int, batch: HostBatch, tokenizer: Tokenizer) -> str:
  segments = batch['segment_ids'][row]
  group = np.flatnonzero((segments != PADDING) & (segments // SEGMENT_GROUP == place))
  tokens, mask, positions = (batch[key][row] for key in ('tokens', 'loss_mask', 'positions'))
  title = f'--- {name}, row {row}: {group.size} tokens, {int(mask[group].sum())} trained'
  if 'reference_chosen_logps' not in batch:
    return f'{title}\n{marked(tokenizer, tokens[group], mask[group])}'
  lines = [title]
  for segment, segment_name in _SEGMENTS.items():
    own = group[segments[group] % SEGMENT_GROUP == segment]
    text = marked(tokenizer, tokens[own], mask[own])
    where = f'positions {positions[own[0]]} to {positions[own[-1]]}' if own.size else 'empty'
    lines.append(f'[{segment_name}, {where}, {int(mask[own].sum())} trained] {text}')
  return '\n'.join(lines)
