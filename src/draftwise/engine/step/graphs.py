"""Captures a step's device work as a CUDA graph the second time it is wanted, and replays it from then on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import torch

__all__ = ["Graphs"]

T = TypeVar("T")

_ROOM = 2 << 30
"""Bytes of a GPU that must be free for a capture, which can only take what nobody keeps for later."""


@dataclass(frozen=True, slots=True)
class _Captured(Generic[T]):
    graph: torch.cuda.CUDAGraph
    result: T


class Graphs:
    """The graphs of an engine, by what they were captured for. Where they are off, work simply runs.

    Work must be the same for the same key: the same tensors as input, no look at their values, static shapes. The first
    time it runs as it is (which compiles its kernels and lets libraries set themselves up), the second time it is
    captured. All graphs share one memory pool, so what a replay leaves is valid until the next one, the result of the
    work as well: no graph that is captured later uses its memory, but one that was captured before may.

    Args:
        enabled: whether to capture at all.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.paused = False
        """Whether capturing is: work that is done meanwhile counts as its first time."""
        self._seen: set[Hashable] = set()
        self._captured: dict[Hashable, _Captured[Any]] = {}
        self._pool: Any = None

    def run(self, key: Hashable, work: Callable[[], T]) -> T:
        """Do the work; return what it returned, in the same tensors each time once it is captured."""
        if not self.enabled:
            return work()
        captured = self._captured.get(key)
        if captured is None:
            if self.paused or key not in self._seen:
                self._seen.add(key)
                return work()
            captured = self._captured[key] = self._capture(work)
        captured.graph.replay()
        return captured.result

    def _capture(self, work: Callable[[], T]) -> _Captured[T]:
        """Capture work, without `torch.cuda.graph`, which gives back all memory that is free: what runs next would ask
        for it again, and a start captures hundreds of graphs."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize()
        if torch.cuda.mem_get_info()[0] < _ROOM:
            torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(_capture_stream()):
            graph.capture_begin(pool=self._pool)
            try:
                result = work()
            finally:
                graph.capture_end()
        return _Captured(graph, result)


@cache
def _capture_stream() -> torch.cuda.Stream:
    """Return the stream of all captures: for each stream cuBLAS keeps memory of its own."""
    return torch.cuda.Stream()
