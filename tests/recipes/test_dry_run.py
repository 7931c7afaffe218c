"""The rows that --dry_run shows: what is marked is the reply, all of it, and nothing of the prompt."""

import json
import re

import pytest
import small_world

from acesearch_jax.models import tiny
from acesearch_jax.recipes.config import AceSearcherConfig
from acesearch_jax.recipes.dry_run import dry_run, marked

END = '<|im_end|>'
# By hand, from the claims of the small world: two of each, claims 0 and 1 being true and false.
REPLIES = {
    'decompose (claim)': ['### Q1: Is it?', '### Q1: Is it?'],
    'step (qa)': ['Yes', 'No'],
    'final (claim)': ['<answer>Yes</answer>', '<answer>No</answer>'],
}
TITLE = re.compile(r'--- (.*), row \d+: (\d+) tokens, (\d+) trained\n')


@pytest.fixture(scope='module')
def config(tmp_path_factory):
  path = tmp_path_factory.mktemp('dry_run') / 'tasks.jsonl'
  small_world.write_tasks(path)
  return AceSearcherConfig(
      model='tiny', dataset=str(path), max_length=384, passages_per_step=1, final_passages=1, mesh='data:1'
  )


def rows(texts):
  """(name, tokens, trained, text) of each row."""
  found = [(TITLE.match(text), text) for text in texts]
  return [(m[1], int(m[2]), int(m[3]), text[m.end():]) for m, text in found if m]


def parts(text):
  """What is marked, and the rest."""
  return re.findall(r'⟦(.*?)⟧', text, re.DOTALL), re.sub(r'⟦.*?⟧', '', text, flags=re.DOTALL)


@pytest.fixture(scope='module')
def without_rollouts(config):
  texts = list(dry_run(config, None))
  border = next(i for i, text in enumerate(texts) if text.lstrip().startswith('Preferences'))
  return texts[:border], texts[border:]


def test_what_is_marked_is_the_reply_with_its_end_of_turn(without_rollouts):
  shown = {}
  for name, length, trained, text in rows(without_rollouts[0]):
    [reply], prompt = parts(text)
    shown.setdefault(name, []).append(reply)
    # The tiny tokenizer has a token a byte and one for each control token.
    bytes_of = lambda text: len(re.sub(r'<\|im_\w+\|>', '.', text).encode())  # noqa: E731
    assert (length, trained) == (bytes_of(prompt + reply), bytes_of(reply))
    assert text == prompt + f'⟦{reply}⟧'
    assert prompt.startswith('<|im_start|>user\n') and prompt.endswith(f'{END}\n<|im_start|>assistant\n')
  for name, replies in REPLIES.items():
    assert sorted(shown[name]) == sorted(reply + END for reply in replies)
  assert len(shown['retrieved (claim)']) == len(shown['direct (claim)']) == 2


def test_without_rollouts_pairs_are_examples_and_say_so(without_rollouts):
  title, *texts = without_rollouts[1]
  assert 'EXAMPLES ONLY' in title
  for _, _, trained, text in rows(texts):
    prompt, chosen, rejected = re.split(r'^\[\w+, positions .*?\] ', text, flags=re.MULTILINE)[1:]
    assert parts(prompt)[0] == []
    # Each answer begins with the prompt's last token, which predicts its first one and is not trained.
    assert (chosen[0], rejected[0]) == ('\n', '\n')
    assert [parts(one)[1].strip('\n') for one in (chosen, rejected)] == ['', '']
    replies = [*parts(chosen)[0], *parts(rejected)[0]]
    assert len(set(replies)) == 2 and all(reply.endswith(END) for reply in replies)
    assert trained == sum(len(reply.removesuffix(END)) + 1 for reply in replies)


def test_pairs_of_a_run_are_shown_with_both_answers(config, tmp_path):
  encode, eos = tiny.tokenizer().encode, tiny.tokenizer().eos_id
  ids = {'prompt': encode('Who? '), 'chosen': [*encode('He, é'), eos], 'rejected': encode('It')}
  pair = {'kind': 'final', 'chosen_reward': 1.0, 'rejected_reward': 0.0, 'task_id': 'a', 'iteration': 1,
          'seed': 0, 'fingerprint': 'f', 'prompt_text': 'Who? '} | ids
  (tmp_path / 'preferences').mkdir()
  (tmp_path / 'preferences' / '1.jsonl').write_text(json.dumps(pair) + '\n')
  texts = list(dry_run(config, tmp_path))
  [row] = [text for text in texts if text.startswith('--- final, ')]
  assert row.splitlines()[1:] == [
      '[prompt, positions 0 to 3, 0 trained] Who?',
      f'[chosen, positions 4 to 11, 7 trained]  ⟦He, é{END}⟧',
      '[rejected, positions 4 to 6, 2 trained]  ⟦It⟧',
  ]
  assert not any('EXAMPLES ONLY' in text for text in texts)
  assert sorted(path.name for path in tmp_path.rglob('*')) == ['1.jsonl', 'preferences']


def test_marks_follow_the_mask_by_position():
  tokenizer = tiny.tokenizer()
  ids = tokenizer.encode('abcabc')
  assert marked(tokenizer, ids, [0, 1, 1, 0, 0, 1]) == 'a⟦bc⟧ab⟦c⟧'
  assert marked(tokenizer, ids, [0] * 6) == 'abcabc'
