"""The words that BM25 counts."""

import re
import unicodedata

_WORD = re.compile(r'[^\W_]+')
_POSSESSIVE = re.compile(r"['’]s\b")
_ACCENTS = re.compile('[\u0300-\u036f]')
_STOP_WORDS = frozenset(
    """
    a about after all also am an and any are as at be because been being both but by can could did do does
    doing during each for from had has have having he her hers herself him himself his how i if in into is
    it its itself just me more most my of on or other our ours own she should so some such than that the
    their theirs them themselves then there these they this those through to too under until was we were
    what when where which while who whom whose why will with would you your yours
    """.split()
)


def words(text: str) -> list[str]:
  """Lower-cased words and numbers of `text` without accents, possessive 's and English stop words.

  One-character words stay. Stop words stay where there is nothing else ('The Who').
  """
  text = _ACCENTS.sub('', unicodedata.normalize('NFKD', text)).lower()
  found = _WORD.findall(_POSSESSIVE.sub('', text))
  return [word for word in found if word not in _STOP_WORDS] or found
