"""Which CUDA graphs a release captures: their number and the largest one."""

from __future__ import annotations

from draftwise.facts.gpus import Gpu
from draftwise.facts.rules import Rulebook
from draftwise.facts.vllm import Release

__all__ = ["capture_sizes", "count_graphs"]


def capture_sizes(
    release: Release, gpu: Gpu, *, max_num_seqs: int, max_num_batched_tokens: int, num_speculative_tokens: int
) -> tuple[int, ...]:
    """Return the batch sizes in tokens that are captured where no size is given (topic `cudagraph_sizes`)."""
    facts, step = release.table("cudagraph_sizes"), 1 + num_speculative_tokens
    cap = facts.get("cap_blackwell", facts["cap"]) if gpu.architecture == "blackwell" else facts["cap"]
    largest = min(cap, max_num_batched_tokens)
    if (factor := facts["factor"]) is not None:
        largest = min(largest, factor * max_num_seqs * (step if facts["counts_draft_tokens"] else 1))
    grid = _grid(largest)
    if step > 1 and facts["multiples_of_query"]:
        requests = min(max_num_seqs, cap)
        counts = {*_grid(requests), requests}
        grid = sorted({*grid, *(count * step for count in counts if count * step <= largest)})
    return tuple(grid)


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
