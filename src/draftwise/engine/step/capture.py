"""Captures and replays CUDA graphs of steps: which sizes, their memory, and the steps without one."""

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
"""(limit, stride): below `limit` sequences, capture a graph every `stride`: padding stays a small part of a step."""
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
    """Return the memory of `num_graphs` graphs that share one pool.

    Args:
        num_graphs: captured steps, one for each batch size and number of draft tokens.
        kernels_per_graph: kernels of one of them: drafter, target, verification and bookkeeping.
        activation_bytes: what the largest of them allocates while it runs; the others use the same memory.
    """
    per_kernel = get_embedded_overheads().graph_per_kernel
    return num_graphs * kernels_per_graph * per_kernel + activation_bytes if num_graphs else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePlan:
    """Batch sizes to capture, in ascending order, the memory to set aside for graphs, and what they leave uncovered."""

    sizes: tuple[int, ...]
    num_bytes: int
    findings: tuple[Finding, ...] = ()
    prompts: tuple[PromptSize, ...] = ()
    """Passes over prompts to capture, if memory is left for all of them."""

    def with_prompts(
        self, sizes: tuple[PromptSize, ...], *, kernels_per_graph: int, bytes_per_row: int, budget_bytes: int | None
    ) -> CapturePlan:
        """Return the plan with passes over prompts too, if they fit.

        Args:
            bytes_per_row: what a pass allocates for each token, and what is kept of it.
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
    """Return what to capture for an engine, as much of it as fits.

    Args:
        max_num_seqs: sequences decoded together at most.
        ks: numbers of draft tokens that steps may have (0 without speculation); each has graphs of its own.
        activation_bytes_per_seq: what a captured step allocates for each of its sequences.
        given: sizes that the user wants (`cudagraph_capture_sizes`), in ascending order; None: `capture_sizes`.
        budget_bytes: memory that graphs may take; None: no limit.
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
    """The graphs of an engine, by what they were captured for. Where they are off, work simply runs.

    Work must be the same for the same key: the same tensors as input, no look at their values, static shapes. The first
    time it runs as it is (which compiles its kernels and lets libraries set themselves up), the second time it is
    captured. All graphs share one memory pool, so what a replay leaves is valid until the next one, the result of the
    work as well: no graph that is captured later uses its memory, but one that was captured before may.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.paused = False
        """Whether capturing is: work that is done meanwhile counts as its first time."""
        self._seen: set[Hashable] = set()
        self._captured: dict[Hashable, _CapturedGraph[Any]] = {}
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
