"""Drafts by SuffixDecoding: tokens that followed the same text in this request or in earlier responses.

Shape letters: B sequences, N new tokens of all sequences after each other, J fields of a job, K draft tokens (padded).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from draftwise.core.finding import InvalidSetup
from draftwise.knowledge.messages import fault
from draftwise.lookup.suffix_forest import SuffixForest, check_integrity
from draftwise.lookup.suffix_nodes import NIL, OPTIONS, ROOT, Arena
from draftwise.lookup.suffix_tree import append, find_best_match, follow, remove

# Fields of a row of jobs: what the kernel does for one sequence of a batch.
OWN = 0  # sequence of its own tree: prompt and response
CACHED = 1  # sequence of the global tree: response; NIL if missing
EVICTED = 2  # sequence to remove from the global tree first, or NIL
RESPONSE_FROM = 3  # its new tokens from this one on also go to the global tree
MAX_DRAFT = 4
NUM_NEW = 5  # its new tokens, which follow those of the jobs before
JOB_WIDTH = 6


@njit(**OPTIONS)
def _advance(
    arena: Arena,
    global_root: int,
    tokens_N: np.ndarray,
    jobs_BJ: np.ndarray,
    factor: np.float32,
    min_prob: np.float32,
    drafts_BK: np.ndarray,
    sizes_B: np.ndarray,
) -> None:
    """Run all jobs of a batch in order: evict, append the new tokens, draft into `drafts_BK` and `sizes_B`."""
    begin = 0
    for b in range(len(jobs_BJ)):
        own, cached, limit = jobs_BJ[b, OWN], jobs_BJ[b, CACHED], jobs_BJ[b, MAX_DRAFT]
        if jobs_BJ[b, EVICTED] != NIL:
            remove(arena, jobs_BJ[b, EVICTED])
        end = begin + jobs_BJ[b, NUM_NEW]
        for n in range(begin, end):
            append(arena, own, tokens_N[n])
        if cached != NIL:
            for n in range(begin + jobs_BJ[b, RESPONSE_FROM], end):
                append(arena, cached, tokens_N[n])
        begin = end
        if limit > 0:
            draft = drafts_BK[b]
            best = find_best_match(arena, arena.seqs[own + ROOT], own, own, limit, factor, min_prob, draft)
            shared = find_best_match(arena, global_root, cached, own, limit, factor, min_prob, draft)
            if shared[3] > best[3]:
                best = shared
            if best[0] != NIL:
                sizes_B[b], _ = follow(arena, best[0], best[1], best[2], min_prob, draft)


@dataclass(slots=True)
class _Request:
    """A sequence that is being decoded, or whose response is still cached."""

    own: int
    cached: int = NIL
    num_tokens: int = 0
    responding: bool = False


class SuffixCache:
    """Suffix trees of requests and responses, and drafts from them (Oliaro et al. 2024, arXiv:2411.04975).

    Each request has a tree of its prompt and response; one global tree holds the responses of the latest
    `max_cached_requests` requests (0: no cache). A draft follows the most frequent branches after the
    best-scored match, so lengths vary from 0 to k. Drafts are those of ArcticInference 0.1.1 under vLLM, ties
    included; option names are vLLM's without `suffix_decoding_`.

    A preempted sequence returns with its earlier output among its first tokens. That output is already in the global
    tree, so only its last token starts the new entry.

    Raises:
        InvalidSetup: options are out of range. Names all of them.
    """

    def __init__(
        self,
        *,
        max_tree_depth: int = 24,
        max_cached_requests: int = 10_000,
        max_spec_factor: float = 1.0,
        min_token_prob: float = 0.1,
    ) -> None:
        _check_options(max_tree_depth, max_cached_requests, max_spec_factor, min_token_prob)
        self._max_cached_requests = max_cached_requests
        self._factor = np.float32(max_spec_factor)
        self._min_prob = np.float32(min_token_prob)
        self._forest = SuffixForest(max_tree_depth)
        self._global_root = self._forest.plant()
        self._requests: dict[int, _Request] = {}
        self._cached: deque[_Request] = deque()
        self._run(np.zeros(0, np.int64), [], 0)  # compiles

    @property
    def memory_bytes(self) -> int:
        """Bytes held by all trees and their tokens."""
        return self._forest.memory_bytes

    def extend(
        self,
        slots: Sequence[int],
        sizes: Sequence[int],
        tokens_N: np.ndarray,
        k: int,
        *,
        num_prompt: Sequence[int],
        limits: Sequence[int],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Append new tokens to sequences and draft up to k tokens each. A draft can use responses of earlier rows.

        Args:
            slots: slot of each sequence. An unknown slot starts a new one.
            sizes: number of new tokens of each, at least one.
            tokens_N: int64, contiguous, sequence after sequence.
            k: maximum draft tokens.
            num_prompt: number of prompt tokens of each sequence, from its start.
            limits: maximum draft tokens of each sequence.

        Returns:
            drafts_BK, and the length of each draft, int64 [B].
        """
        columns = zip(slots, sizes, num_prompt, limits, strict=True)
        jobs = [self._job(slot, size, prompt, min(limit, k)) for slot, size, prompt, limit in columns]
        drafts_BK, sizes_B = self._run(tokens_N, jobs, k)
        for job in jobs:
            if job[EVICTED] != NIL:
                self._forest.drop_sequence(job[EVICTED])
        return drafts_BK, sizes_B

    def release(self, slot: int) -> None:
        """Free the sequence's own tree; its response stays in the global one until newer requests evict it."""
        request = self._requests.pop(slot, None)
        if request is not None:
            self._forest.fell(int(self._forest.arena.seqs[request.own + ROOT]))
            self._forest.drop_sequence(request.own)

    def check_integrity(self) -> None:
        """Check all trees against the texts of their sequences (slow; for tests)."""
        trees = {int(self._forest.arena.seqs[r.own + ROOT]): [r.own] for r in self._requests.values()}
        check_integrity(self._forest.arena, trees | {self._global_root: [r.cached for r in self._cached]})

    def _run(self, tokens_N: np.ndarray, jobs: list[tuple[int, ...]], k: int) -> tuple[np.ndarray, np.ndarray]:
        jobs_BJ = np.array(jobs, np.int64).reshape(-1, JOB_WIDTH)
        drafts_BK, sizes_B = np.zeros((len(jobs), k), np.int64), np.zeros(len(jobs), np.int64)
        options = (self._factor, self._min_prob)
        _advance(self._forest.arena, self._global_root, tokens_N, jobs_BJ, *options, drafts_BK, sizes_B)
        return drafts_BK, sizes_B

    def _job(self, slot: int, size: int, num_prompt: int, limit: int) -> tuple[int, ...]:
        """Reserve space for a sequence's new tokens and return its row of jobs."""
        request = self._requests.get(slot)
        if request is None:
            request = self._requests[slot] = _Request(self._forest.open_sequence(self._forest.plant()))
        response_from = max(0, num_prompt - request.num_tokens)
        request.num_tokens += size
        self._forest.reserve(request.own, size)
        evicted = NIL
        if not request.responding and response_from < size:
            request.responding = True
            response_from = size - 1  # what comes before is the former output of a preempted sequence
            evicted = self._open_cached(request)
        if request.cached != NIL and response_from < size:
            self._forest.reserve(request.cached, size - response_from)
        return request.own, request.cached, evicted, response_from, limit if request.responding else 0, size

    def _open_cached(self, request: _Request) -> int:
        """Give the request an entry of the global tree. Return the sequence that it evicts, or NIL."""
        if self._max_cached_requests == 0:
            return NIL
        evicted = NIL
        if len(self._cached) == self._max_cached_requests:
            oldest = self._cached.popleft()
            evicted, oldest.cached = oldest.cached, NIL
        request.cached = self._forest.open_sequence(self._global_root)
        self._cached.append(request)
        return evicted


def _check_options(depth: int, max_cached_requests: int, factor: float, min_prob: float) -> None:
    rules = (
        ("max_tree_depth", depth, depth >= 1, "at least 1"),
        ("max_cached_requests", max_cached_requests, max_cached_requests >= 0, "at least 0 (0: no global tree)"),
        ("max_spec_factor", factor, factor >= 0, "at least 0"),
        ("min_token_prob", min_prob, 0 <= min_prob <= 1, "between 0 and 1"),
    )
    findings = [
        fault("suffix-option", name=name, value=value, rule=rule) for name, value, good, rule in rules if not good
    ]
    if findings:
        raise InvalidSetup(findings)
