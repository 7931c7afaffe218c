"""Which page of the cache holds which tokens: a tree of pages over token prefixes, on the host."""

import collections
import dataclasses
from collections.abc import Iterable

Tokens = tuple[int, ...]


@dataclasses.dataclass(eq=False)
class Page:
  """A node of the tree: one page, holding `tokens` after everything its ancestors hold.

  Attributes:
    index: place in the page pool.
    tokens: what it holds; fewer than a page only at the end of a prompt.
    parent: the page before, None for the first.
    depth: pages before it.
    references: requests that need it; it is never evicted while there are any.
    ready: its keys and values have been computed.
  """

  index: int
  tokens: Tokens
  parent: 'Page | None'
  depth: int
  references: int = 0
  ready: bool = False
  children: dict[Tokens, 'Page'] = dataclasses.field(default_factory=dict)


class PrefixTree:
  """Allocates pages to prompts so that equal prefixes share them.

  Prefixes are shared in whole pages, and in a last partial page by prompts that are equal to their
  end. Pages nobody needs stay until their room is, least recently used first. Pages for what follows a
  prompt are borrowed one by one and are not in the tree.
  """

  def __init__(self, num_pages: int, page_size: int, keep: bool = True):
    """Args:
      num_pages: size of the pool.
      page_size: tokens a page.
      keep: keep pages that nobody needs at the moment, for later prompts.
    """
    self._page_size = page_size
    self._keep = keep
    self._free = list(range(num_pages - 1, -1, -1))
    self._idle: collections.OrderedDict[Page, None] = collections.OrderedDict()
    self._roots: dict[Tokens, Page] = {}
    self.num_pages = num_pages
    self.peak = 0

  @property
  def num_free(self) -> int:
    return len(self._free)

  @property
  def num_idle(self) -> int:
    return len(self._idle)

  @property
  def num_held(self) -> int:
    """Pages that somebody needs."""
    return self.num_pages - self.num_free - self.num_idle

  def missing(self, tokens: Tokens) -> int:
    """Pages that `acquire` would have to make."""
    chunks = self._chunks(tokens)
    return len(chunks) - len(self._find(chunks))

  def acquire(self, tokens: Tokens) -> list[Page] | None:
    """The pages of `tokens` in order, referenced once each; new ones are not ready.

    Returns None, and changes nothing, when the pool has no room now.
    """
    chunks = self._chunks(tokens)
    path = self._find(chunks)
    # Idle pages on the path are about to be used: they make no room.
    room = len(self._free) + len(self._idle) - sum(not page.references for page in path)
    if len(chunks) - len(path) > room:
      return None
    for page in path:
      self._reference(page)
    for chunk in chunks[len(path) :]:
      parent = path[-1] if path else None
      page = Page(self._take(), chunk, parent, len(path))
      (parent.children if parent else self._roots)[chunk] = page
      self._reference(page)
      path.append(page)
    return path

  def release(self, path: list[Page]) -> None:
    """Gives back what `acquire` returned."""
    # Last page first: a parent is then always more recent than its children, and the least recently
    # used page is always a leaf.
    for page in reversed(path):
      page.references -= 1
      if page.references:
        continue
      if page.ready and self._keep:
        self._idle[page] = None
      else:
        self._drop(page)

  def borrow(self) -> int | None:
    """The place of a page outside the tree, None when there is no room now."""
    return self._take() if self._free or self._idle else None

  def give_back(self, indices: Iterable[int]) -> None:
    """Returns borrowed pages."""
    self._free.extend(indices)

  def flush(self) -> None:
    """Forgets every idle page (the weights have changed)."""
    while self._idle:
      self._drop(self._idle.popitem(last=False)[0])

  def _reference(self, page: Page) -> None:
    page.references += 1
    self._idle.pop(page, None)

  def _take(self) -> int:
    if not self._free:
      self._drop(self._idle.popitem(last=False)[0])
    index = self._free.pop()
    self.peak = max(self.peak, self.num_pages - len(self._free))
    return index

  def _chunks(self, tokens: Tokens) -> list[Tokens]:
    size = self._page_size
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]

  def _find(self, chunks: list[Tokens]) -> list[Page]:
    """Pages that hold the first of the chunks."""
    path, children = [], self._roots
    for chunk in chunks:
      page = children.get(chunk)
      if page is None:
        break
      path.append(page)
      children = page.children
    return path

  def _drop(self, page: Page) -> None:
    del (page.parent.children if page.parent else self._roots)[page.tokens]
    self._free.append(page.index)
