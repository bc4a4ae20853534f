"""CUDA graphs: how many speculating requests the captured sizes cover, and the cliff behind them."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.engine.limits import Limits, find_gpu, get_limits
from draftwise.plan.check.report import Resolved

__all__ = ["cudagraph_mode", "find_graphs", "lacks_full_graphs", "runs_eagerly"]

_CLIFF = "Measured on an H200, 8B model, EAGLE-3, k=3: 18.6 ms a step at 512 tokens (captured), 33.2 ms at 768."


def find_graphs(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield whether full batches of speculating requests run without a captured graph."""
    k = resolved.num_speculative_tokens
    scheduled = context.keys.get("num_speculative_tokens_per_batch_size")
    if k is None or scheduled or context.platform == "cpu" or runs_eagerly(context):
        return
    limits = get_limits(context)
    seqs, largest = limits.requests, _find_largest(context, k, limits)
    if largest is None:
        return
    step = k + 1
    covered = largest // step
    if seqs is None:
        message = (
            f"CUDA graphs reach {largest} tokens a step: with more than {covered} requests decoding at once "
            f"({step} tokens each) a step runs without one. {_CLIFF}"
        )
        fix = _advise(context, None, covered)
        yield from context.rules.ruling("cudagraph-reach", message, where="--max-num-seqs", fix=fix)
    elif seqs > covered:
        message = (
            f"max_num_seqs {seqs} * (k + 1) {step} = {seqs * step} tokens a step, and graphs reach {largest}: with "
            f"more than {covered} requests decoding at once a step runs without one. {_CLIFF}"
        )
        fix = _advise(context, seqs * step, covered)
        yield from context.rules.ruling("cudagraph-cliff", message, where="--max-num-seqs", fix=fix)


def runs_eagerly(context: Context) -> bool:
    """Say whether the operator has turned CUDA graphs off."""
    return context.is_on("enforce_eager") or cudagraph_mode(context) == "NONE"


def lacks_full_graphs(context: Context) -> bool:
    """Say whether the mode asked for has no graphs of whole steps."""
    return cudagraph_mode(context) in ("NONE", "PIECEWISE")


def cudagraph_mode(context: Context) -> str:
    """Return the mode asked for, in capitals; empty where none is."""
    return str(context.json_object("compilation_config").get("cudagraph_mode") or "").upper()


def _find_largest(context: Context, k: int, limits: Limits) -> int | None:
    """Return the largest captured size in tokens; None where it cannot be known here."""
    compilation = context.json_object("compilation_config")
    sizes = (
        context.given.get("cudagraph_capture_sizes")
        or context.given.get("cuda_graph_sizes")
        or compilation.get("cudagraph_capture_sizes")
    )
    if isinstance(sizes, list):
        numbers = [size for size in sizes if isinstance(size, int)]
        return max(numbers, default=None)
    largest = context.size("max_cudagraph_capture_size") or compilation.get("max_cudagraph_capture_size")
    if isinstance(largest, int):
        return largest
    facts, gpu = context.release.table("cudagraph_sizes"), find_gpu(context)
    blackwell = gpu is not None and gpu.architecture == "blackwell"
    cap = int(facts.get("cap_blackwell", facts["cap"]) if blackwell else facts["cap"])
    most = min(cap, limits.tokens or cap)
    if limits.requests is None or facts["factor"] is None:
        return most
    step = k + 1 if facts["counts_draft_tokens"] else 1
    return min(int(facts["factor"]) * limits.requests * step, most)


def _advise(context: Context, tokens: int | None, covered: int) -> str:
    flags = context.release.table("flags")
    flag = next(name for name in ("--max-cudagraph-capture-size", "--cuda-graph-sizes") if name in flags)
    amount = f"{flag} {tokens}" if tokens else f"{flag} with the tokens of your largest batch"
    return f"Raise {amount}, lower k as the batch grows, or keep to {covered} requests."
