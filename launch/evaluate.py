"""Measures a model on a question set: EM, F1, accuracy with 95% intervals, retrieval recall, cost.

  python -m launch.evaluate --model=runs/quickstart/checkpoints/dpo_2 --dataset=world --split=test \\
      --limit=200 --agent=acesearcher,rag,direct --output=scores.json

Beside FILE.json, one record a question goes into FILE.AGENT.jsonl. A set's own passages are the corpus
unless --corpus or --index names another.
"""

import pathlib
import time

from absl import flags, logging

from acesearch_jax import files
from acesearch_jax.agents.conversation import Conversation
from acesearch_jax.agents.driver import run_episodes
from acesearch_jax.agents.selfplay import AGENTS, answer_episode
from acesearch_jax.errors import UsageError
from acesearch_jax.evaluation import scoring
from acesearch_jax.recipes.config import SelfPlayOptions, SystemConfig
from acesearch_jax.recipes.system import SearchSystem
from acesearch_jax.training.metrics import Progress
from launch import main as launcher
from launch.flags import define, read
from launch.options import self_play_options

_AGENT = flags.DEFINE_list('agent', ['acesearcher'], f'One or more of {", ".join(AGENTS)}.')
_SPLIT = flags.DEFINE_string('split', 'dev', 'Split of the data set.')
_LIMIT = flags.DEFINE_integer('limit', 0, 'First questions only; 0 for all.', lower_bound=0)
_OUTPUT = flags.DEFINE_string('output', None, 'Where the scores go, FILE.json.')
_FEW_SHOT = flags.DEFINE_bool('few_shot', False, 'Show two worked examples: for models that were not tuned.')
define(SystemConfig)
define(SelfPlayOptions)


def main(argv: list[str]) -> None:
  del argv
  config = read(SystemConfig)
  wrong = [agent for agent in _AGENT.value if agent not in AGENTS]
  if wrong or not _AGENT.value:
    raise UsageError(f"--agent: '{''.join(wrong[:1])}' is not one of {', '.join(AGENTS)}.")
  if not _OUTPUT.value:
    raise UsageError('--output is missing; give a file, for example --output=scores.json.')
  launcher.use_compilation_cache()
  output = pathlib.Path(_OUTPUT.value)
  options = self_play_options(config.model)
  system, policy = SearchSystem.open(config, (_SPLIT.value,))
  # The retriever first: what is wrong with the data should not wait for the sampler to compile.
  tasks, retriever = system.tasks(_SPLIT.value, _LIMIT.value), system.retriever
  sampler = system.sampler(policy)
  conversation = Conversation(system.model.tokenizer, _FEW_SHOT.value)
  results = {'model': config.model, 'dataset': config.dataset, 'split': _SPLIT.value, 'agents': {}}
  for agent in _AGENT.value:
    start = time.monotonic()
    episodes = (answer_episode(agent, task, conversation, options.self_play(), config.seed) for task in tasks)
    records = {}
    with Progress(agent, len(tasks), unit='question') as progress:
      for index, rollout in run_episodes(episodes, sampler, retriever, config.concurrency):
        records[index] = scoring.evaluation_record(scoring.with_rewards(rollout))
        progress.update()
    ordered = [records[i] for i in range(len(tasks))]
    seconds = (time.monotonic() - start) / len(tasks)
    scores = scoring.summary(ordered) | {'seconds_per_question': round(seconds, 3)}
    results['agents'][agent] = scores
    files.write_jsonl(output.with_suffix(f'.{agent}.jsonl'), ordered)
    files.write_json(output, results)
    low, high = scores['em_ci95']
    logging.info('%s: EM %.3f [%.3f, %.3f], n %d', agent, scores['em'], low, high, scores['n'])


if __name__ == '__main__':
  launcher.run(main)
