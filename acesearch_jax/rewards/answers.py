"""Answer metrics: normalised exact match, token F1, accuracy, verdicts and numbers.

Definitions follow SQuAD and FlashRAG, with three repairs: an empty side never matches, number words
equal digits on both sides, and a yes/no answer is right only as that very verdict.
"""

import collections
import math
import re
import string
from collections.abc import Callable, Iterable

_ARTICLES = frozenset(('a', 'an', 'the'))
_VERDICTS = frozenset(('yes', 'no'))
_NUMBER_WORDS = {
    word: str(number)
    for number, word in enumerate('zero one two three four five six seven eight nine ten'.split())
}
_PUNCTUATION = str.maketrans('', '', string.punctuation)
_TAG = re.compile('<answer>|</answer>')
_NUMBER = re.compile(r'[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[-+]?\d+)?', re.IGNORECASE)
_UNITS = re.compile(r'\b(?:million|billion|thousand|usd|us|rmb|approximately)\b|[$£€¥%°`]', re.IGNORECASE)


def extract_answer(text: str, strict: bool = True) -> str | None:
  """The text in `<answer>…</answer>`.

  Args:
    text: what the policy wrote, and nothing else: text of the environment must not be in it.
    strict: only where `text` has exactly one pair of tags; otherwise the last complete pair counts.

  Returns:
    The stripped answer, None where there is none or it is empty.
  """
  tags = list(_TAG.finditer(text))
  if strict and [tag[0] for tag in tags] != ['<answer>', '</answer>']:
    return None
  for opening, closing in reversed(list(zip(tags, tags[1:], strict=False))):
    answer = text[opening.end() : closing.start()].strip()
    if opening[0] == '<answer>' and closing[0] == '</answer>' and answer:
      return answer
  return None


def normalise(text: str) -> str:
  """SQuAD's normal form, with the words zero to ten as digits.

  Lower case, no ASCII punctuation, no articles, single spaces. Where that leaves nothing ('A', 'The
  The', '!!!') the articles, or else the punctuation, stay.
  """
  lowered = text.lower()
  words = lowered.translate(_PUNCTUATION).split() or lowered.split()
  words = [word for word in words if word not in _ARTICLES] or words
  return ' '.join(_NUMBER_WORDS.get(word, word) for word in words)


def normalise_verdict(text: str | None) -> str | None:
  """'yes' or 'no' where the text is just that, case and punctuation aside; otherwise None."""
  verdict = normalise(text or '')
  return verdict if verdict in _VERDICTS else None


def exact_match(prediction: str | None, golds: Iterable[str]) -> float:
  """1.0 where the prediction equals any gold in normal form, else 0.0."""
  return _best(lambda answer, gold: float(answer == gold), prediction, golds)


def f1(prediction: str | None, golds: Iterable[str]) -> float:
  """Greatest token F1 over the golds, tokens counted with their multiplicity.

  Where either side is yes, no or noanswer, only equality counts (FlashRAG).
  """
  return _best(_f1, prediction, golds)


def accuracy(prediction: str | None, golds: Iterable[str]) -> float:
  """1.0 where the prediction contains any gold as a run of whole tokens, else 0.0.

  FlashRAG's `acc`, on tokens instead of characters ('art' is not in 'Stuttgart'). A yes/no gold must
  be the whole prediction.
  """
  return _best(_contains, prediction, golds)


def numeric_match(prediction: str | float | None, gold: str | float) -> bool:
  """DocMath-Eval's rule for numbers.

  True where (a) |prediction| and |gold| differ by an exact power of ten, 1 included, so the sign is
  ignored; (b) one is 100, 1,000 or 100,000 times the other within 0.15% (per cent and units of
  thousands); (c) both absolute values are equal after rounding up to 3 decimals; or (d) they are
  within 0.15% of the gold.

  Args:
    prediction: a number, or text with one number in it ('$1,234.5 million').
    gold: the same; text without a number matches nothing.
  """
  predicted, wanted = parse_number(prediction), parse_number(gold)
  if predicted is None or wanted is None:
    return False
  large, small = sorted((abs(predicted), abs(wanted)), reverse=True)
  if small > 0 and math.log10(large) - math.log10(small) < 300:
    power = math.log10(large / small)
    if power == int(power):
      return True
  if any(small <= large / (factor / 2) and _near(small * factor, large) for factor in (100, 1_000, 100_000)):
    return True
  if _round_up(large) == _round_up(small):
    return True
  return _near(predicted, wanted)


def parse_number(value: str | float | None) -> float | None:
  """The finite number that `value` is or holds; None where it holds none, or several.

  Currency and per-cent signs, scale words and thousands separators are dropped (the comparison rule
  takes scale into account); of an equation the right-hand side counts.
  """
  if value is None or isinstance(value, bool):
    return None
  if isinstance(value, str):
    text = re.split('[=≈]', value)[-1]
    numbers = [match for match in _NUMBER.findall(_UNITS.sub(' ', text)) if re.search(r'\d', match)]
    if len(numbers) != 1:
      return None
    value = numbers[0].replace(',', '')
  try:
    number = float(value)
  except ValueError:
    return None
  return number if math.isfinite(number) else None


def _best(metric: Callable[[str, str], float], prediction: str | None, golds: Iterable[str]) -> float:
  answer = normalise(prediction or '')
  if not answer:
    return 0.0
  return max((metric(answer, gold) for gold in map(normalise, golds) if gold), default=0.0)


def _f1(answer: str, gold: str) -> float:
  if answer != gold and {answer, gold} & (_VERDICTS | {'noanswer'}):
    return 0.0
  ours, theirs = answer.split(), gold.split()
  common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
  return 2 * common / (len(ours) + len(theirs))


def _contains(answer: str, gold: str) -> float:
  if gold in _VERDICTS:
    return float(answer == gold)
  return float(f' {gold} ' in f' {answer} ')


def _near(value: float, target: float) -> bool:
  slack = 0.0015 * abs(target)
  return target - slack <= value <= target + slack


def _round_up(value: float) -> float:
  return math.ceil(value * 1000) / 1000 if value < 1e12 else value  # No third decimal left up there.
