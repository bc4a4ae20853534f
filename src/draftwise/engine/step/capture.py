"""Captures and replays CUDA graphs of steps, and plans their sizes and memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Generic, TypeVar

import torch

from draftwise.core import Finding
from draftwise.engine.step.prompt_passes import PromptSize
from draftwise.knowledge.advice import get_advice
from draftwise.knowledge.memory_overheads import get_embedded_overheads

_STRIDES = ((16, 4), (64, 8), (256, 16), (512, 32))
"""(limit, stride): below `limit` sequences, capture a graph every `stride`, which keeps padding small."""
_LAST_STRIDE = 64


def capture_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return the numbers of sequences to capture: 1, 2, 4, 8, 12, 16, 24 ... and max_num_seqs itself."""
    sizes = {1, 2, max_num_seqs}
    size = 4
    while size < max_num_seqs:
        sizes.add(size)
        size += next((stride for end, stride in _STRIDES if size < end), _LAST_STRIDE)
    return tuple(sorted(each for each in sizes if each <= max_num_seqs))


def estimate_graph_bytes(num_graphs: int, *, kernels_per_graph: int, activation_bytes: int) -> int:
    """Return the bytes of `num_graphs` graphs that share one pool.

    Args:
        num_graphs: number of captured steps, one per batch size and number of draft tokens.
        kernels_per_graph: kernels of a step: drafter, target, verification and bookkeeping.
        activation_bytes: allocations of the largest step; the others share its memory.
    """
    per_kernel = get_embedded_overheads().graph_per_kernel
    return num_graphs * kernels_per_graph * per_kernel + activation_bytes if num_graphs else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePlan:
    """Batch sizes to capture in ascending order, memory to reserve for graphs, and uncovered sizes."""

    sizes: tuple[int, ...]
    num_bytes: int
    findings: tuple[Finding, ...] = ()
    prompts: tuple[PromptSize, ...] = ()
    """Sizes of prompt passes to capture; empty if memory does not suffice for all."""

    def with_prompts(
        self, sizes: tuple[PromptSize, ...], *, kernels_per_graph: int, bytes_per_row: int, budget_bytes: int | None
    ) -> CapturePlan:
        """Return the plan with passes over prompts, if they fit.

        Args:
            bytes_per_row: bytes that a pass allocates per token, including its outputs.
        """
        if not self.sizes or not sizes:
            return self
        num_bytes = self.num_bytes + estimate_graph_bytes(
            len(sizes), kernels_per_graph=kernels_per_graph, activation_bytes=sizes[-1].num_rows * bytes_per_row
        )
        fits = budget_bytes is None or num_bytes <= budget_bytes
        return replace(self, num_bytes=num_bytes, prompts=sizes) if fits else self


def plan_capture(
    max_num_seqs: int,
    *,
    ks: Sequence[int],
    kernels_per_graph: int,
    activation_bytes_per_seq: int,
    given: Sequence[int] | None = None,
    budget_bytes: int | None = None,
) -> CapturePlan:
    """Return the sizes to capture for an engine, as many as fit.

    Args:
        max_num_seqs: maximum sequences decoded together.
        ks: possible numbers of draft tokens per step (0 without speculation); each has separate graphs.
        activation_bytes_per_seq: bytes that a captured step allocates per sequence.
        given: the user's sizes (`cudagraph_capture_sizes`), in ascending order. None: `capture_sizes`.
        budget_bytes: memory limit for graphs. None: no limit.
    """

    def weigh(sizes: Sequence[int]) -> int:
        largest = sizes[-1] if sizes else 0
        return estimate_graph_bytes(
            len(sizes) * len(ks),
            kernels_per_graph=kernels_per_graph,
            activation_bytes=largest * activation_bytes_per_seq,
        )

    wanted = tuple(capture_sizes(max_num_seqs) if given is None else (each for each in given if each <= max_num_seqs))
    if given is not None and len(wanted) < len(given):
        wanted = (*wanted, max_num_seqs) if max_num_seqs not in wanted else wanted  # its next larger size covers it
    sizes = wanted
    while sizes and budget_bytes is not None and weigh(sizes) > budget_bytes:
        sizes = sizes[:-1]
    lacking = weigh(wanted) - (budget_bytes or 0) if sizes != wanted else 0
    finding = _find_uncovered(sizes, max_num_seqs, max(ks), lacking_bytes=lacking)
    return CapturePlan(sizes=sizes, num_bytes=weigh(sizes), findings=() if finding is None else (finding,))


def _find_uncovered(sizes: Sequence[int], max_num_seqs: int, k: int, *, lacking_bytes: int) -> Finding | None:
    """Return what larger batches than the largest captured one cost, or None where all are covered."""
    largest = sizes[-1] if sizes else 0
    if largest >= max_num_seqs:
        return None
    rows = f" ({max_num_seqs} x (k + 1) = {max_num_seqs * (k + 1)} rows)" if k else ""
    consequence = f"steps of {largest + 1} to {max_num_seqs} sequences{rows} run eagerly, kernel by kernel from Python"
    if lacking_bytes:
        gib = lacking_bytes / 2**30
        cause = f"memory holds CUDA graphs of up to {largest} sequences ({gib:.2f} GiB short)"
        fix = f"Raise gpu_memory_utilization, or lower max_num_seqs to {max(largest, 1)} or max_num_batched_tokens."
    else:
        cause = f"end at {largest} sequences"
        fix = f"Add {max_num_seqs} to cudagraph_capture_sizes or leave it out, or lower max_num_seqs to {largest}."
    return Finding.warning(
        "graphs-not-covering",
        f"{cause}, so {consequence}, and can take nearly twice as long.",
        where="max_num_seqs" if lacking_bytes else "cudagraph_capture_sizes",
        fix=fix,
        source=get_advice("graph-cliff").source,
    )


T = TypeVar("T")

_ROOM = 2 << 30
"""Bytes of a GPU that must be free for a capture, which can only take what nobody keeps for later."""


@dataclass(frozen=True, slots=True)
class _CapturedGraph(Generic[T]):
    graph: torch.cuda.CUDAGraph
    result: T


class Graphs:
    """The graphs of an engine, by key. If graphs are off, work runs directly.

    Work for a key must always use the same input tensors, not read their values, and have static shapes. The first call
    runs it directly (which compiles kernels and initializes libraries); the second captures it. All graphs share one
    memory pool, so a replay's result is valid only until the next replay: graphs captured earlier may reuse its memory.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.paused = False
        """Whether capturing is: work that is done meanwhile counts as its first time."""
        self._seen: set[Hashable] = set()
        self._captured: dict[Hashable, _CapturedGraph[Any]] = {}
        self._pool: Any = None

    def run(self, key: Hashable, work: Callable[[], T]) -> T:
        """Do the work and return its result, in the same tensors each time once captured."""
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

    def _capture(self, work: Callable[[], T]) -> _CapturedGraph[T]:
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
        return _CapturedGraph(graph, result)


@cache
def _capture_stream() -> torch.cuda.Stream:
    """Return the stream of all captures: for each stream cuBLAS keeps memory of its own."""
    return torch.cuda.Stream()
