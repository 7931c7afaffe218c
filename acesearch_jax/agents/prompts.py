"""Prompt templates of AceSearcher's two roles and of the plain agents it is compared with.

One module serves fine-tuning, rollouts, preference pairs and inference, so that a model always reads
what it was trained on. Each function returns the text of one user turn, with no system message; the
instruction comes first so that prompts of a role share a prefix. Replies by role and kind:

| role | 'qa' | 'claim' |
|---|---|---|
| decompose | a plan | a plan |
| step | a bare span | Yes or No |
| final, direct, retrieved | reasoning, then `<answer>span</answer>` | the same with Yes or No |
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from acesearch_jax.agents.prompt_examples import EXAMPLES, Example
from acesearch_jax.agents.untrusted import clean_answer, one_line
from acesearch_jax.data.tasks import Kind, Passage

# Raised with every change of wording or layout: weights trained on one version misread another.
VERSION = 1

Role = Literal['decompose', 'step', 'final', 'direct', 'retrieved']

_DECOMPOSE = {
    'qa': (
        'Split the question into simple sub-questions, one a line, as ### Q1: text. '
        'Write #1, #2 for the answers of earlier lines.',
        'Question',
        'Decomposed Question:',
    ),
    'claim': (
        'Split the claim into simple sub-claims or questions to check, one a line, as ### Q1: text. '
        'Write #1, #2 for the answers of earlier lines.',
        'Claim',
        'Decomposed claim:',
    ),
}
_STEP = {
    'qa': (
        'Answer the question with a short span from the passages, or from your own knowledge if they '
        'lack it.',
        'Question',
    ),
    'claim': (
        'Is the claim true? Use the passages, or your own knowledge if they lack it. Reply only Yes or No.',
        'Claim',
    ),
}
_FINAL = {
    'qa': (
        'Answer the question from the passages and the sub-answers. '
        'Reason briefly, then give a short span as <answer>span</answer>.',
        'Question',
    ),
    'claim': (
        'Is the claim true? Judge by the passages and the sub-answers. '
        'Reason briefly, then write <answer>Yes</answer> or <answer>No</answer>.',
        'Claim',
    ),
}
_RETRIEVED = {
    'qa': (
        'Answer the question from the passages. Reason briefly, then give a short span as '
        '<answer>span</answer>.',
        'Question',
    ),
    'claim': (
        'Is the claim true? Judge by the passages. Reason briefly, then write <answer>Yes</answer> or '
        '<answer>No</answer>.',
        'Claim',
    ),
}
_DIRECT = {
    'qa': (
        'Answer the question. Reason briefly, then give a short span as <answer>span</answer>.',
        'Question',
    ),
    'claim': (
        'Is the claim true? Reason briefly, then write <answer>Yes</answer> or <answer>No</answer>.',
        'Claim',
    ),
}


def decompose(question: str, kind: Kind = 'qa') -> str:
  """Asks for a plan (templates D1 and D2)."""
  instruction, label, ending = _DECOMPOSE[_wording(kind)]
  return f'{instruction}\n\n{label}: {one_line(question)}\n{ending}'


def step(question: str, passages: Iterable[Passage], kind: Kind = 'qa') -> str:
  """Asks for the bare answer of one resolved sub-question or sub-claim (S1 and S2).

  Args:
    question: with its references resolved.
    passages: in the order to show; see `zigzag`.
    kind: as `step_kind` tells it.
  """
  return _layout(_STEP[_wording(kind)], question, passages)


def final(
    question: str, passages: Iterable[Passage], answered: Iterable[tuple[str, str]], kind: Kind = 'qa'
) -> str:
  """Asks for the answer of the whole question (S3 and S4).

  Args:
    question: the task's question or claim.
    passages: in the order to show; see `final_passages`.
    answered: (resolved sub-question, its answer) in the plan's order.
    kind: the task's kind.
  """
  return _layout(_FINAL[_wording(kind)], question, passages, answered)


def direct(question: str, kind: Kind = 'qa') -> str:
  """Asks for the answer without any retrieval."""
  return _layout(_DIRECT[_wording(kind)], question, ())


def retrieved(question: str, passages: Iterable[Passage], kind: Kind = 'qa') -> str:
  """Asks for the answer over the passages of one retrieval with the question itself."""
  return _layout(_RETRIEVED[_wording(kind)], question, passages)


def examples(role: Role, kind: Kind = 'qa') -> tuple[tuple[str, str], ...]:
  """Two worked (user turn, reply) examples of a role, for a model that was not tuned on it."""
  kind = _wording(kind)
  prompt: dict[Role, Callable[[Example], str]] = {
      'decompose': lambda example: decompose(example.question, kind),
      'step': lambda example: step(example.question, example.passages, kind),
      'final': lambda example: final(example.question, example.passages, example.answered, kind),
      'direct': lambda example: direct(example.question, kind),
      'retrieved': lambda example: retrieved(example.question, example.passages, kind),
  }
  return tuple((prompt[role](example), example.reply) for example in EXAMPLES[role, kind])


def messages(prompt: str, shots: Iterable[tuple[str, str]] = ()) -> list[dict[str, str]]:
  """The chat of `prompt`, after `shots` as earlier turns."""
  turns = []
  for user, assistant in shots:
    turns += [{'role': 'user', 'content': user}, {'role': 'assistant', 'content': assistant}]
  return [*turns, {'role': 'user', 'content': prompt}]


def step_kind(question: str, kind: Kind) -> Kind:
  """The wording a step needs: a claim's steps are judged as claims unless they are questions."""
  return 'claim' if kind == 'claim' and not question.rstrip().endswith('?') else 'qa'


def render_passages(passages: Iterable[Passage]) -> str:
  """One line `Title: text` a passage, unnumbered, with nothing in it that looks like markup."""
  lines = []
  for passage in passages:
    title, text = one_line(passage.title), one_line(passage.text)
    lines.append(f'{title}: {text}' if title and text else title or text)
  return '\n'.join(lines)


def zigzag(passages: Sequence[Passage]) -> list[Passage]:
  """Ranks 1, 3, 5, …, 6, 4, 2: the best at both ends, where models read best."""
  return [*passages[0::2], *passages[1::2][::-1]]


def final_passages(by_step: Sequence[Sequence[Passage]], budget: int) -> list[Passage]:
  """The passages of the final prompt.

  Args:
    by_step: the passages of each sub-question, best first.
    budget: passages in all, split evenly: max(1, ⌊budget / n⌋) for each of n sub-questions.

  Returns:
    The kept passages in order, each once.
  """
  if not by_step:
    return []
  share = max(1, budget // len(by_step))
  kept = {(p.title, p.text): p for passages in reversed(by_step) for p in reversed(passages[:share])}
  return list(reversed(kept.values()))


def _layout(
    template: tuple[str, str],
    question: str,
    passages: Iterable[Passage],
    answered: Iterable[tuple[str, str]] = (),
) -> str:
  instruction, label = template
  lines = [
      f'### Q{number}: {one_line(step)}, Answer for Q{number}: {clean_answer(answer)}'.rstrip()
      for number, (step, answer) in enumerate(answered, start=1)
  ]
  sections = [instruction, render_passages(passages), '\n'.join(lines), f'{label}: {one_line(question)}']
  return '\n\n'.join(filter(None, sections))


def _wording(kind: Kind) -> Kind:
  return 'claim' if kind == 'claim' else 'qa'
