"""The CUDA graphs that a release captures, and batches of speculating requests that run without a full one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from draftwise.core import Ruling
from draftwise.knowledge.gpus import Gpu
from draftwise.knowledge.rules import Rulebook
from draftwise.knowledge.vllm import Release
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.engine.step_budget import SCHEDULE, StepLimits, find_gpu, get_limits
from draftwise.plan.check.stages import Context

_FEW = 8
"""Batch sizes that a message names."""
_MOST_TOKENS = 2**17
"""Largest size of a graph, or draft, up to which every size is looked at; more than any server has captured."""
_SEQUENCE_PARALLEL = ("enable_sp", "enable_sequence_parallelism")


def find_graphs(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield which batches of speculating requests have no graph: too large, of unfit size, or mixed."""
    if context.platform == "cpu" or context.runs_eagerly:
        return
    k = resolved.num_speculative_tokens
    if k and resolved.runner != "V2":
        yield from _find_shapes(context, k + 1)
    if k is not None and not context.keys.get(SCHEDULE):
        limits = get_limits(context)
        sizes = list_captured(context, k, limits)
        largest = _find_given(context)
        if not sizes and largest is not None:
            yield from context.rules.ruling("graphs-beyond-count", largest=largest, num=largest // 16)
        if sizes and k < _MOST_TOKENS:
            yield from _find_end(context, k, limits.requests, sizes[-1])
            yield from _find_holes(context, resolved, k, limits, sizes)
    if resolved.runner == "V1" and not context.lacks_full_graphs:
        yield from context.rules.ruling("lookups-run-piecewise", method=resolved.method)


def _find_shapes(context: Context, step: int) -> Iterator[Ruling]:
    ranks = context.sizes.get("tensor_parallel_size") or 1
    if ranks < 2 or context.lacks_full_graphs or context.cudagraph_mode == "FULL":
        return
    if max(step, ranks) % min(step, ranks):
        passes = context.objects.get("compilation_config", {}).get("pass_config")
        shares = isinstance(passes, dict) and any(passes.get(name) for name in _SEQUENCE_PARALLEL)
        yield from context.rules.ruling("graph-sizes-and-ranks", step=step, ranks=ranks)
        if shares:
            yield from context.rules.ruling("graph-sizes-and-sequence-parallel", step=step, ranks=ranks)


def list_captured(context: Context, k: int, limits: StepLimits) -> tuple[int, ...]:
    """Return the captured sizes in tokens, ascending; empty if unknown."""
    compilation = context.objects.get("compilation_config", {})
    given = (
        context.given.get("cudagraph_capture_sizes")
        or context.given.get("cuda_graph_sizes")
        or compilation.get("cudagraph_capture_sizes")
    )
    if isinstance(given, list):
        return tuple(sorted(size for size in given if isinstance(size, int)))
    largest = _find_given(context)
    if largest is not None and largest > _MOST_TOKENS:
        return ()
    return capture_sizes(
        context.release,
        find_gpu(context),
        max_num_seqs=limits.requests,
        max_num_batched_tokens=limits.tokens,
        num_speculative_tokens=k,
        largest=largest,
    )


def _find_given(context: Context) -> int | None:
    compilation = context.objects.get("compilation_config", {})
    largest = context.sizes.get("max_cudagraph_capture_size") or compilation.get("max_cudagraph_capture_size")
    return largest if type(largest) is int and largest > 0 else None


def _find_end(context: Context, k: int, seqs: int | None, largest: int) -> Iterator[Ruling]:
    step = k + 1
    covered = largest // step
    most = f"{covered} request{'s' * (covered > 1)}" if covered else ""
    beyond = f"with more than {most} decoding at once, a step" if most else "every step that drafts"
    told: dict[str, Any] = {"largest": largest, "step": step, "beyond": beyond}
    if seqs is None:
        yield from context.rules.ruling("cudagraph-reach", **told, fix=_advise_sizes(context, None, most))
    elif seqs > covered:
        needed = seqs * step
        fix = _advise_sizes(context, needed, most)
        yield from context.rules.ruling("cudagraph-cliff", **told, seqs=seqs, needed=needed, fix=fix)


def _advise_sizes(context: Context, tokens: int | None, most: str) -> str:
    flags = context.release.table("flags")
    flag = next(name for name in ("--max-cudagraph-capture-size", "--cuda-graph-sizes") if name in flags)
    amount = f"{flag} {tokens}" if tokens else f"{flag} with the token count of your largest batch"
    rest = f"lower k as the batch grows, or stay at {most} or fewer" if most else "or lower k"
    return f"Raise {amount}, {rest}."


def _find_holes(
    context: Context, resolved: Resolved, k: int, limits: StepLimits, sizes: tuple[int, ...]
) -> Iterator[Ruling]:
    if resolved.runner != "V2" or context.lacks_full_graphs or context.keys.get("enable_adaptive_verification"):
        return
    reach = limits.requests or sizes[-1] // (k + 1)
    holes = find_holes(sizes, max_num_seqs=reach, num_speculative_tokens=k)
    num = sum(map(len, holes))
    if num:
        named = ", ".join(map(str, islice(chain.from_iterable(holes), _FEW))) + (" ..." if num > _FEW else "")
        yield from context.rules.ruling(
            "graph-holes", k=k, num=num, reach=min(reach, sizes[-1] // (k + 1)), named=named
        )


def capture_sizes(
    release: Release,
    gpu: Gpu | None,
    *,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    num_speculative_tokens: int,
    largest: int | None = None,
) -> tuple[int, ...]:
    """Return the default batch sizes in tokens for capture (topic `cudagraph_sizes`).

    Args:
        release: release of vLLM.
        gpu: the GPU; None if unknown, which counts as an architecture without extra graphs.
        max_num_seqs: requests per step; None if unknown, which limits nothing.
        max_num_batched_tokens: tokens per step; None likewise.
        num_speculative_tokens: draft tokens per request.
        largest: largest size, if one is given.
    """
    step = 1 + num_speculative_tokens
    if largest is None:
        largest = _find_largest(release, gpu, max_num_seqs, max_num_batched_tokens, step)
    grid = _grid(largest)
    if step > 1 and release.table("cudagraph_sizes")["multiples_of_query"]:
        requests = max_num_seqs or largest // step
        counts = {*_grid(min(requests, largest // step)), requests}
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
    """Return the number of graphs: one per size for mixed batches, and one for each size of a decode step."""
    step = 1 + num_speculative_tokens
    if not Rulebook(release.version).holds("size-full-graphs"):
        return len(sizes)
    return len(sizes) + sum(step <= size <= max_num_seqs * step for size in sizes)


def find_holes(sizes: Iterable[int], *, max_num_seqs: int, num_speculative_tokens: int) -> tuple[range, ...]:
    """Return the numbers of decoding requests that run without a full graph while the rule `graph-holes` holds.

    They are ranges, one per graph.

    Those releases make full graphs at captured sizes rounded up to multiples of k + 1, and look a batch up at the next
    size of *any* graph. If that size is only for mixed batches, no full graph is found, although a larger one exists
    (`CudaGraphManager._init_candidates`).
    """
    sizes, step = sorted(sizes), 1 + num_speculative_tokens
    most = min(max_num_seqs * step, max(sizes, default=0))
    full = {rounded for size in sizes if (rounded := -(-size // step) * step) <= most}
    graphs = sorted({*sizes, *full})
    ends = [min(size, most) // step for size in graphs]
    reached = zip([0, *ends], ends, graphs, strict=False)
    return tuple(range(last + 1, end + 1) for last, end, size in reached if size not in full and end > last)
