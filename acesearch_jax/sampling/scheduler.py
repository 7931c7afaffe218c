"""Which request is computed when and into which pages: host bookkeeping, without arrays on a device.

A request waits, then has pages and is computed into them page by page together with others, is ready, and
sits in a slot while it is decoded. Where pages run out the youngest request gives its own back and waits
again; its draws depend on its identity alone, so it comes to the same tokens.
"""

import collections
import dataclasses
import heapq

import numpy as np

from acesearch_jax.sampling.prefix import Page, PrefixTree
from acesearch_jax.sampling.request import Request

# Requests that have pages and no slot yet, a slot.
_AHEAD = 3


@dataclasses.dataclass(eq=False)
class Job:
  """A request on its way.

  Attributes:
    id: in the order of arrival.
    request: what to sample.
    limit: most tokens of the answer.
    pages: that hold the prompt; shared.
    private: places of the pages after them; the first begins with a copy of what is left of the prompt.
    computed: pages known to be ready.
    length: tokens in its pages once it sits in a slot.
    parts: (tokens, logps, behaviour_logps) of each decode call.
  """

  id: int
  request: Request
  limit: int
  pages: list[Page] = dataclasses.field(default_factory=list)
  private: list[int] = dataclasses.field(default_factory=list)
  computed: int = 0
  length: int = 0
  parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = dataclasses.field(default_factory=list)

  def __lt__(self, other: 'Job') -> bool:
    return self.id < other.id

  @property
  def prompt(self) -> tuple[int, ...]:
    """What is prefilled: the last token is computed as the first step of decoding."""
    return self.request.prompt[:-1]

  def next_page(self) -> Page | None:
    """The first of its pages that is still to be computed."""
    while self.computed < len(self.pages) and self.pages[self.computed].ready:
      self.computed += 1
    return self.pages[self.computed] if self.computed < len(self.pages) else None

  def places(self) -> list[int]:
    """Its pages in the order of their tokens."""
    return [*(page.index for page in self.pages), *self.private]


@dataclasses.dataclass(frozen=True)
class Seating:
  """A job that takes a slot; `source` is to be copied to `target` where its last page is shared."""

  slot: int
  job: Job
  source: int | None
  target: int | None


class Lane:
  """The slots and pages of one share of the devices."""

  def __init__(self, num_slots: int, num_pages: int, page_size: int, share_prefixes: bool):
    self.tree = PrefixTree(num_pages, page_size, share_prefixes)
    self.slots: list[Job | None] = [None] * num_slots
    self.planned: dict[Job, None] = {}  # have pages, not all of them computed
    self.ready: collections.deque[Job] = collections.deque()
    self._page_size = page_size

  @property
  def num_active(self) -> int:
    return sum(job is not None for job in self.slots)

  @property
  def ahead(self) -> int:
    """Sequences with pages and no slot."""
    return len(self.planned) + len(self.ready)

  @property
  def open(self) -> bool:
    """Takes another job."""
    return self.ahead < _AHEAD * len(self.slots)

  def cost(self, job: Job) -> int:
    """How unwelcome it is here: pages to compute, and those it would wait for."""
    return self.tree.missing(job.prompt) + self.num_active + self.ahead

  def plan(self, job: Job) -> bool:
    """Gives it pages for its prompt, if one more will be left for everyone who is here then."""
    pages = self.tree.acquire(job.prompt)
    if pages is None:
      return False
    if self.tree.num_pages - self.tree.num_held < self.num_active + self.ahead + 1:
      self.tree.release(pages)
      return False
    job.pages = pages
    self.planned[job] = None
    self._sort_out(job)
    return True

  def rows(self, most: int) -> dict[Page, list[Page]]:
    """The next pages to compute, each with those before it."""
    rows: dict[Page, list[Page]] = {}
    for job in self.planned:
      if len(rows) == most:
        break
      page = job.next_page()
      rows[page] = job.pages[: page.depth]
    return rows

  def computed(self, pages: dict[Page, list[Page]]) -> None:
    """Notes that these have been computed."""
    for page in pages:
      page.ready = True
    for job in list(self.planned):
      self._sort_out(job)

  def seat(self) -> Seating | None:
    """Gives a free slot to the first that is ready."""
    if not self.ready or None not in self.slots:
      return None
    job = self.ready[0]
    shared = None
    if len(job.prompt) % self._page_size:
      place = self.tree.borrow()
      if place is None:
        return None
      shared = job.pages.pop()
      job.private = [place]
      self.tree.release([shared])  # Copied before anything else is written.
    self.ready.popleft()
    job.length = len(job.prompt)
    slot = self.slots.index(None)
    self.slots[slot] = job
    return Seating(slot, job, shared and shared.index, shared and place)

  def grow(self, steps: int) -> list[tuple[Job, int | None]]:
    """Gets everyone who sits the pages for so many tokens more.

    Returns:
      Those who lost all they had for it, and their slots.
    """
    victims = []
    for job in sorted(job for job in self.slots if job):
      end = min(job.length + steps, len(job.prompt) + job.limit)
      while job in self.slots and len(job.places()) * self._page_size < end:
        place = self.tree.borrow()
        if place is None:
          victim = max([*self.planned, *self.ready] or (other for other in self.slots if other))
          victims.append((victim, self.remove(victim)))
        else:
          job.private.append(place)
    return victims

  def remove(self, job: Job) -> int | None:
    """Takes everything from a job, as if it had just arrived; returns its slot."""
    self.planned.pop(job, None)
    if job in self.ready:
      self.ready.remove(job)
    slot = self.slots.index(job) if job in self.slots else None
    if slot is not None:
      self.slots[slot] = None
    self.tree.release(job.pages)
    self.tree.give_back(job.private)
    job.pages, job.private, job.parts = [], [], []
    job.computed = job.length = 0
    return slot

  def _sort_out(self, job: Job) -> None:
    if job.next_page() is None:
      del self.planned[job]
      self.ready.append(job)


class Scheduler:
  """Deals requests out to lanes."""

  def __init__(self, lanes: list[Lane]):
    self.lanes = lanes
    self._waiting: list[Job] = []  # a heap: the oldest first

  @property
  def busy(self) -> bool:
    return bool(self._waiting) or any(lane.num_active or lane.ahead for lane in self.lanes)

  def wait(self, job: Job) -> None:
    """Queues a job that has no pages."""
    heapq.heappush(self._waiting, job)

  def plan(self) -> None:
    """Gives pages to waiting jobs, in order, as far as they go."""
    while self._waiting:
      job = self._waiting[0]
      lanes = [lane for lane in self.lanes if lane.open]
      if not lanes or not min(lanes, key=lambda lane: lane.cost(job)).plan(job):
        return
      heapq.heappop(self._waiting)

  def cancel(self, id: int) -> tuple[Lane, int] | None:
    """Forgets a job; returns its lane and slot if it sat in one."""
    self._waiting = [job for job in self._waiting if job.id != id]
    heapq.heapify(self._waiting)
    for lane in self.lanes:
      for job in [*lane.planned, *lane.ready, *(other for other in lane.slots if other)]:
        if job.id == id:
          slot = lane.remove(job)
          return None if slot is None else (lane, slot)
    return None
