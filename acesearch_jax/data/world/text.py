"""Cleaning and comparing the strings of the sources: markup, letter case, accents, numbers, lists."""

import functools
import html
import importlib.util
import pathlib
import re
import unicodedata

from acesearch_jax.errors import UserError

_ROMAN = re.compile(r'^[IVX]+$')
_UNFOLDED = str.maketrans({
    'ø': 'o', 'Ø': 'O', 'ł': 'l', 'Ł': 'L', 'đ': 'd', 'Đ': 'D', 'ı': 'i', 'ß': 'ss', 'æ': 'ae', 'Æ': 'Ae',
    'œ': 'oe', 'ð': 'd', 'þ': 'th', '’': "'", '‘': "'", 'ʻ': "'",
})
# What may stand in a name: letters, digits and the punctuation of names. Markers of plans, tags and
# chat templates cannot get into a passage this way.
_PLAIN_NAME = re.compile(r"^[\w .,'&/()-]+$")


def package_folder(package: str, project: str) -> pathlib.Path:
  """Folder of an installed package, without importing it.

  Raises:
    UserError: the package is not installed.
  """
  spec = importlib.util.find_spec(package)
  if spec is None or not spec.submodule_search_locations:
    raise UserError(f"The built-in world needs the package '{project}'; run `pip install {project}`.")
  return pathlib.Path(spec.submodule_search_locations[0])


def plain(markup: str | None) -> str:
  """Text without tags, entities, non-breaking and repeated spaces."""
  text = re.sub(r'<[^>]*>', ' ', html.unescape(markup or ''))
  text = text.replace('\u2013', '-').replace('\u2019', "'").replace('\u2018', "'")
  return re.sub(r'\s+', ' ', text).strip()


def ascii_form(text: str) -> str:
  """Text without accents."""
  if text.isascii():
    return text
  text = unicodedata.normalize('NFKD', text.translate(_UNFOLDED))
  return ''.join(c for c in text if not unicodedata.combining(c))


def western(text: str) -> str:
  """Text with the accents of Western Europe; any others are left off ('Madinat an Nasr')."""
  return text if all(ord(c) < 256 for c in text) else ascii_form(text)


@functools.lru_cache(maxsize=1 << 17)
def fold(text: str) -> str:
  """Key under which names compare equal: no accents, case, punctuation, leading article."""
  words = re.sub(r'[^a-z0-9]+', ' ', ascii_form(text).lower()).split()
  return ' '.join(words[1:] if words[:1] == ['the'] else words)


def is_plain_name(name: str) -> bool:
  """Whether a name is short, in Latin letters and free of markers."""
  return (2 <= len(name) <= 60 and bool(_PLAIN_NAME.match(name)) and ascii_form(name).isascii()
          and name.count('(') == name.count(')') == 0)


def aliases(*names: str) -> tuple[str, ...]:
  """Names and their forms without accents, each once."""
  return tuple(dict.fromkeys(form for name in names if name for form in (name, ascii_form(name))))


def natural_case(name: str) -> str:
  """'Rumen RADEV' as 'Rumen Radev'; Roman numerals stay."""
  def word(token: str) -> str:
    if _ROMAN.match(token):
      return token
    return re.sub(r'[^\W\d_a-zß-ÿ]{2,}', lambda m: m[0][0] + m[0][1:].lower(), token)
  return ' '.join(word(token) for token in name.split())


def outside_parentheses(text: str) -> str:
  """Text with everything in round or square brackets cut out."""
  previous = None
  while previous != text:
    previous, text = text, re.sub(r'\([^()]*\)|\[[^\[\]]*\]', '', text)
  return re.sub(r'\s+([,;])', r'\1', re.sub(r'\s+', ' ', text)).strip()


def number_in(text: str) -> float | None:
  """First number of a text, 'million' and 'billion' applied."""
  match = re.search(r'-?\d[\d,]*(?:\.\d+)?', text)
  if not match:
    return None
  scale = 1e6 if re.match(r'\s*million', text[match.end():]) else 1.0
  scale = 1e9 if re.match(r'\s*billion', text[match.end():]) else scale
  return float(match[0].replace(',', '')) * scale


def round_words(value: float) -> str:
  """A number to three significant digits: '47.7 million', '852,000', '97'."""
  for scale, word in ((1e9, ' billion'), (1e6, ' million')):
    if abs(value) >= scale * 0.9995:
      return f'{float(f"{value / scale:.3g}"):g}{word}'
  rounded = float(f'{value:.3g}')
  return f'{rounded:,.0f}' if rounded == int(rounded) else f'{rounded:g}'


def join(items: list[str]) -> str:
  """'a', 'a and b', 'a, b and c'."""
  return items[0] if len(items) == 1 else ', '.join(items[:-1]) + ' and ' + items[-1]
