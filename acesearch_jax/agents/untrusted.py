"""Text that somebody else wrote, made harmless before it enters a prompt.

Nothing here is what keeps rewards and parsing safe: those read only the policy's own tokens. It keeps a
passage from passing itself off as an instruction, a plan line or an answer to the model that reads it.
"""

import re

MAX_ANSWER_CHARACTERS = 200

_BRACKETS = str.maketrans({'<': '‹', '>': '›'})
_INSTRUCTION_MARKER = re.compile(
    r'\[\s*(/?\s*(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS))\s*\]', re.IGNORECASE
)
_HEADING = re.compile('#{2,}')
_CONTROL = re.compile('[\x00-\x08\x0e-\x1b\x7f]')


def one_line(text: str, limit: int | None = None) -> str:
  """`text` as one line without look-alikes of tags, chat-template markers and plan lines.

  Angle brackets become ‹ and ›, so that neither `<answer>` nor `<|im_start|>` survives; runs of `#` go,
  so that no `### Q1:` does. A single `#1` stays: titles have it, and nothing resolves it.

  Args:
    text: any text.
    limit: greatest length in characters; the cut is at a word where there is one.
  """
  text = _CONTROL.sub(' ', text).translate(_BRACKETS)
  text = _HEADING.sub(' ', _INSTRUCTION_MARKER.sub(r'(\1)', text))
  text = ' '.join(text.split())
  if limit is None or len(text) <= limit:
    return text
  head, space, _ = text[: limit + 1].rpartition(' ')
  return head if space else text[:limit]


def clean_answer(text: str) -> str:
  """A sub-answer as it is kept, shown and searched for: one line, at most `MAX_ANSWER_CHARACTERS`.

  The policy wrote it, but it may repeat what a passage said.
  """
  return one_line(text, MAX_ANSWER_CHARACTERS)
