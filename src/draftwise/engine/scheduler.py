"""Decides which sequences compute how many tokens in a step: integers only, never a tensor."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from enum import Enum

from draftwise.engine.pages import PagePool, page_key, root_key
from draftwise.engine.sequence import Sequence

__all__ = ["PrefixUse", "Scheduler", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """What one sequence computes in a step: `num_new` tokens, the last `num_draft` of them drafted."""

    sequence: Sequence
    num_new: int
    num_draft: int

    @property
    def samples(self) -> bool:
        """Whether its last final token is computed, so that new tokens follow."""
        sequence = self.sequence
        return sequence.num_computed + self.num_new - self.num_draft == len(sequence.tokens)


class PrefixUse(Enum):
    """How many of the cached pages for a prompt are used."""

    ALL = "all"
    BUT_LAST = "but last"
    """What is kept for a page's last token may depend on the token after it, which a shared prefix may not share;
    so the last page in common is computed again (as vLLM does for EAGLE)."""
    NONE = "none"


class Scheduler:
    """Continuous batching: running sequences first, then waiting ones as long as pages and tokens last.

    Long prompts are computed in chunks. When pages run out the youngest running sequence gives its
    pages back and waits to be computed again from its start.

    Args:
        pool: the pages.
        block_size: tokens a page.
        max_num_seqs: running sequences at most.
        max_num_batched_tokens: tokens a step at most.
        prefix: how much of a cached prefix may be spared.
        shared_pages: whether a proposer keeps its state in the pages too. Then the token that a step samples has its
            place at once, and full pages wait for `publish` until the proposer has seen what they hold.
    """

    def __init__(
        self,
        *,
        pool: PagePool,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        prefix: PrefixUse = PrefixUse.ALL,
        shared_pages: bool = False,
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.max_num_batched_tokens = max_num_batched_tokens
        self._prefix = prefix
        self._shared_pages = shared_pages
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._slots = list(range(max_num_seqs))[::-1]
        self.released_slots: list[int] = []
        """Slots given up since the engine last emptied this list."""
        self.num_preemptions = 0
        self.num_cache_queries = 0
        self.num_cache_hits = 0

    def add(self, sequence: Sequence, *, first: bool = False) -> None:
        """Queue a sequence; `first` puts it before those that wait already."""
        (self.waiting.appendleft if first else self.waiting.append)(sequence)

    def schedule(self) -> list[Work]:
        """Return this step's work; pages for all of it are held."""
        budget, before = self.max_num_batched_tokens, self.num_preemptions
        works: list[Work] = []
        for sequence in list(self.running):
            if budget == 0:
                break
            work = self._continue(sequence, budget) if sequence.slot is not None else None
            if work is not None:
                works.append(work)
                budget -= work.num_new
        if self.num_preemptions > before:
            return works  # what was just preempted would come straight back
        while self.waiting and self._slots and budget > 0:
            work = self._admit(self.waiting[0], budget)
            if work is None:
                break
            works.append(work)
            budget -= work.num_new
        return works

    def advance(self, work: Work, emitted: Tokens[int]) -> None:
        """Record that `work` is done and that `emitted` (accepted drafts and one token more) are final."""
        sequence = work.sequence
        sequence.num_computed += work.num_new - work.num_draft + max(len(emitted) - 1, 0)
        sequence.tokens.extend(emitted)
        sequence.draft, sequence.draft_probs_KV = [], None
        if not self._shared_pages:
            self.publish(sequence)

    def reserve(self, sequence: Sequence, num_draft: int) -> int:
        """Hold pages for the sequence's tokens and a draft; return how many drafted tokens have room.

        A page for each running sequence is left free: guesses are never worth a preemption.
        """
        spare = max(self.pool.num_free - len(self.running), 0)
        room = (len(sequence.pages) + spare) * self.block_size - len(sequence.tokens)
        num_draft = max(min(num_draft, room), 0)
        self._ensure_pages(sequence, len(sequence.tokens) + num_draft)
        return num_draft

    def has_unpublished(self, sequence: Sequence) -> bool:
        """Whether full pages of what is computed are not offered to later requests yet."""
        return self.pool.caching and sequence.num_computed // self.block_size > sequence.num_published

    def publish(self, sequence: Sequence) -> None:
        """Offer the full pages of what is computed to later requests with the same prefix."""
        if self.has_unpublished(sequence):
            num_full = sequence.num_computed // self.block_size
            self._extend_keys(sequence, num_full)
            for i in range(sequence.num_published, num_full):
                self.pool.publish(sequence.pages[i], sequence.page_keys[i])
            sequence.num_published = num_full

    def remove(self, sequence: Sequence) -> None:
        """Take a finished or aborted sequence out, running or waiting."""
        if sequence.slot is not None:
            self._give_up(sequence)
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def _continue(self, sequence: Sequence, budget: int) -> Work | None:
        """Return the next work of a running sequence, at the cost of younger ones if pages run out."""
        missing = len(sequence.tokens) - sequence.num_computed
        num_draft = min(len(sequence.draft), budget - missing) if budget > missing else 0
        num_new = min(missing, budget) + num_draft
        num_draft -= self._num_unaffordable(sequence, num_new, num_draft)
        num_new = min(missing, budget) + num_draft
        while not self._ensure_pages(sequence, sequence.num_computed + num_new + self._shared_pages):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return None
        return Work(sequence, num_new, num_draft)

    def _num_unaffordable(self, sequence: Sequence, num_new: int, num_draft: int) -> int:
        """Return how many of the drafted tokens have no page: guesses are never worth a preemption."""
        room = (len(sequence.pages) + self.pool.num_free) * self.block_size
        return min(num_draft, max(0, sequence.num_computed + num_new + self._shared_pages - room))

    def _admit(self, sequence: Sequence, budget: int) -> Work | None:
        """Start a waiting sequence if its whole text fits into free pages."""
        reused = self._find_cached_pages(sequence)
        self.pool.hold(reused)
        sequence.pages = list(reused)
        if not self._ensure_pages(sequence, len(sequence.tokens) + self._shared_pages):
            self.pool.free(reused)
            sequence.pages = []
            return None
        self.waiting.popleft()
        self.running.append(sequence)
        sequence.slot = self._slots.pop()
        sequence.num_computed = sequence.num_spared = len(reused) * self.block_size
        sequence.num_published = len(reused)
        if sequence.num_cached is None:
            sequence.num_cached = sequence.num_computed
            self.num_cache_queries += len(sequence.tokens)
            self.num_cache_hits += sequence.num_computed
        return Work(sequence, min(len(sequence.tokens) - sequence.num_computed, budget), 0)

    def _find_cached_pages(self, sequence: Sequence) -> list[int]:
        """Return published pages for the start of the text, leaving at least one token to compute."""
        if sequence.params.prompt_logprobs is not None or self._prefix is PrefixUse.NONE:
            return []  # they need every prompt position computed
        self._extend_keys(sequence, (len(sequence.tokens) - 1) // self.block_size)
        pages = self.pool.find_prefix(sequence.page_keys[: (len(sequence.tokens) - 1) // self.block_size])
        return pages[:-1] if self._prefix is PrefixUse.BUT_LAST else pages

    def _extend_keys(self, sequence: Sequence, count: int) -> None:
        keys, size = sequence.page_keys, self.block_size
        salt = sequence.request.cache_salt
        while len(keys) < count:
            start = len(keys) * size
            keys.append(page_key(keys[-1] if keys else root_key(salt), sequence.tokens[start : start + size]))

    def _ensure_pages(self, sequence: Sequence, num_tokens: int) -> bool:
        """Hold pages for `num_tokens` tokens; False when the pool has too few."""
        missing = -(-num_tokens // self.block_size) - len(sequence.pages)
        if missing > 0:
            pages = self.pool.allocate(missing)
            if pages is None:
                return False
            sequence.pages += pages
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._give_up(sequence)
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _give_up(self, sequence: Sequence) -> None:
        """Take everything that a running sequence holds; its tokens stay."""
        assert sequence.slot is not None
        self.pool.free(sequence.pages)
        sequence.pages, sequence.num_computed, sequence.num_published = [], 0, 0
        sequence.draft, sequence.draft_probs_KV = [], None
        self._slots.append(sequence.slot)
        self.released_slots.append(sequence.slot)
        sequence.slot, sequence.num_confirmed, sequence.features_NF = None, None, None
