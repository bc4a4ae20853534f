"""Which CUDA graphs a release captures: their sizes, their number, and the decode batches that none of them takes."""

from __future__ import annotations

from collections.abc import Iterable

from draftwise.facts.gpus import Gpu
from draftwise.facts.rules import Rulebook
from draftwise.facts.vllm import Release

__all__ = ["capture_sizes", "count_graphs", "find_holes"]


def capture_sizes(
    release: Release,
    gpu: Gpu | None,
    *,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    num_speculative_tokens: int,
    largest: int | None = None,
) -> tuple[int, ...]:
    """Return the batch sizes in tokens that are captured where they are not given (topic `cudagraph_sizes`).

    Args:
        release: of vLLM.
        gpu: None for one that is not known: not of the architecture with more graphs.
        max_num_seqs: requests a step; None for a number that is not known, which then limits nothing.
        max_num_batched_tokens: tokens a step; None likewise.
        num_speculative_tokens: drafted for each request.
        largest: size to end at, if one is given.
    """
    step = 1 + num_speculative_tokens
    if largest is None:
        largest = _find_largest(release, gpu, max_num_seqs, max_num_batched_tokens, step)
    grid = _grid(largest)
    if step > 1 and release.table("cudagraph_sizes")["multiples_of_query"]:
        requests = max_num_seqs or largest // step
        counts = {*_grid(requests), requests}
        grid = sorted({*grid, *(count * step for count in counts if count * step <= largest)})
    return tuple(grid)


def _find_largest(
    release: Release, gpu: Gpu | None, max_num_seqs: int | None, max_num_batched_tokens: int | None, step: int
) -> int:
    facts = release.table("cudagraph_sizes")
    blackwell = gpu is not None and gpu.architecture == "blackwell"
    cap = int(facts.get("cap_blackwell", facts["cap"]) if blackwell else facts["cap"])
    largest = min(cap, max_num_batched_tokens or cap)
    if max_num_seqs is None or (factor := facts["factor"]) is None:
        return largest
    return min(largest, int(factor) * max_num_seqs * (step if facts["counts_draft_tokens"] else 1))


def _grid(largest: int) -> list[int]:
    """Return 1, 2, 4, then every eighth size below 256, then every sixteenth."""
    small = [size for size in (1, 2, 4) if size <= largest]
    return [*small, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]


def count_graphs(release: Release, sizes: tuple[int, ...], *, max_num_seqs: int, num_speculative_tokens: int) -> int:
    """Return the graphs: one a size for mixed batches, and one for each size that a decode step can have."""
    step = 1 + num_speculative_tokens
    if not Rulebook(release.version).holds("size-full-graphs"):
        return len(sizes)
    return len(sizes) + sum(step <= size <= max_num_seqs * step for size in sizes)


def find_holes(sizes: Iterable[int], *, max_num_seqs: int, num_speculative_tokens: int) -> tuple[int, ...]:
    """Return the numbers of decoding requests that run without a full graph while the rule `graph-holes` holds.

    Those releases make full graphs at captured sizes rounded up to multiples of k + 1, and look a batch up at the next
    size of *any* graph: where that is a size of mixed batches only, no full graph is found, although a larger one is
    there (`CudaGraphManager._init_candidates`).
    """
    sizes, step = sorted(sizes), 1 + num_speculative_tokens
    most = min(max_num_seqs * step, max(sizes, default=0))
    full = {rounded for size in sizes if (rounded := -(-size // step) * step) <= most}
    graphs = sorted({*sizes, *full})
    reached = range(1, most // step + 1)
    return tuple(count for count in reached if next(size for size in graphs if size >= count * step) not in full)
