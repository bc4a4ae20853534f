"""What is worth saying about a budget: too tight, too large a drafter, and what the release leaves out of its plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from draftwise.core import Finding, Severity
from draftwise.facts.rules import get_rule
from draftwise.plan.size.decoder import known_family
from draftwise.plan.size.measure import Sizing, measure
from draftwise.plan.size.request import NO_DRAFTER

__all__ = ["find_faults"]

_GIB = 1 << 30
_DRAFTER_SHARE, _TARGET_SHARE, _RESERVE_SHARE = 0.15, 0.70, 0.01
_SHARE_FLAG = "--gpu-memory-utilization"


def find_faults(sizing: Sizing) -> Iterator[Finding]:
    """Yield everything about a sizing, most pressing first."""
    yield from sizing.request.rulings
    yield from _find_lack(sizing)
    yield from _find_overrun(sizing)
    yield from _find_shares(sizing)
    yield from _find_graphs(sizing)
    yield from _find_buffers(sizing)
    yield from _find_compile(sizing)
    yield from _find_guesses(sizing)


def _find_lack(sizing: Sizing) -> Iterator[Finding]:
    budget = sizing.budget
    if budget.fits:
        return
    if budget.kv_bytes <= 0:
        lack = f"needs {_gib(budget.fixed)} of {_gib(budget.requested)} before the first token is cached."
    else:
        need = budget.kv.bytes_per_sequence(budget.max_model_len, budget.in_flight)
        lack = (
            f"one sequence of {budget.max_model_len:,} tokens takes {_gib(need)} of KV cache, {_gib(budget.kv_bytes)} "
            f"are left; {budget.longest_context():,} tokens would fit."
        )
    yield _finding("does-not-fit", Severity.ERROR, lack, fix=_suggest(sizing))


def _suggest(sizing: Sizing) -> str:
    """Return the smallest changes that make a setup fit: a shorter context, more GPUs, narrower weights."""
    request = sizing.request
    advice = []
    if (length := sizing.budget.longest_context()) >= 1024:
        advice.append(f"--max-model-len {length // 256 * 256}")
    if (size := _enough_gpus(sizing)) is not None:
        advice.append(f"--tensor-parallel-size {size}")
    if request.precision.bits == 16:
        advice.append("a checkpoint in FP8 or INT4")
    return f"Try {' or '.join(advice)}." if advice else "Choose a GPU with more memory or a smaller model."


def _enough_gpus(sizing: Sizing) -> int | None:
    """Return the smallest tensor-parallel size that fits and divides the attention heads; None up to eightfold."""
    request = sizing.request
    for size in (request.tensor_parallel_size * factor for factor in (2, 4, 8)):
        wider = replace(request, tensor_parallel_size=size, draft_tensor_parallel_size=size)
        if request.shape.num_heads % size == 0 and measure(wider).fits:
            return size
    return None


def _find_overrun(sizing: Sizing) -> Iterator[Finding]:
    """Yield that vLLM will use more than it plans with, and that nothing is left for it."""
    budget = sizing.budget
    least = budget.device * _RESERVE_SHARE
    if not budget.fits or budget.reserve > least:
        return
    share = (budget.requested + budget.reserve - least) / budget.device
    yield _finding(
        "out-of-memory-ahead", Severity.WARNING,
        f"vLLM plans with {_gib(budget.requested)} and uses up to {_gib(budget.outside)} that its plan does not "
        f"count, of {_gib(budget.device)}: {_gib(budget.reserve)} remain.",
        where=_SHARE_FLAG, fix=f"Set it to {max(0.1, share):.2f} or less.",
    )  # fmt: skip


def _find_shares(sizing: Sizing) -> Iterator[Finding]:
    budget = sizing.budget
    if (share := budget.drafter / budget.device) > _DRAFTER_SHARE:
        yield _finding(
            "drafter-takes-much", Severity.WARNING,
            f"the drafter's weights take {share:.0%} of the GPU, more than {_DRAFTER_SHARE:.0%}: the KV cache holds "
            f"{budget.kv_tokens:,} tokens with it and {sizing.plain.kv_tokens:,} without.",
            where="drafter", fix="Use a head (EAGLE-3, MTP, DFlash), a smaller or a quantised drafter.",
        )  # fmt: skip
    if (share := budget.target / budget.device) > _TARGET_SHARE:
        yield _finding(
            "target-takes-most", Severity.WARNING,
            f"the target's weights alone take {share:.0%} of the GPU, more than {_TARGET_SHARE:.0%}: little is left to "
            "draft and to cache with.",
            where="target", fix="Use more GPUs, quantised weights, or a method without weights (ngram, suffix).",
        )  # fmt: skip


def _find_graphs(sizing: Sizing) -> Iterator[Finding]:
    """Yield which part of the CUDA graphs the release plans with."""
    budget, request = sizing.budget, sizing.request
    if budget.graphs <= budget.graphs_counted:
        return
    codes = ["size-graphs-not-counted", "size-graphs-opt-in", "size-graphs-counted"]
    if request.runner == "V2":
        codes.insert(0, "size-graphs-first-runner-only")
    code = next(code for code in codes if request.holds(code))
    yield get_rule(code).ruling(
        f"CUDA graphs take about {_gib(budget.graphs)}, of which {_gib(budget.graphs_counted)} are taken off the KV "
        "cache beforehand.",
        where=_SHARE_FLAG,
    )


def _find_buffers(sizing: Sizing) -> Iterator[Finding]:
    if not sizing.budget.buffers_counted:
        message = f"{_gib(sizing.budget.buffers)} of buffers come on top of the plan."
        yield get_rule("size-buffers-not-counted").ruling(message, where=_SHARE_FLAG)


def _find_compile(sizing: Sizing) -> Iterator[Finding]:
    """Yield what a first start costs over one with a compile cache."""
    budget = sizing.budget
    warm = measure(replace(sizing.request, cold_start=False))
    if (more := budget.activations - warm.activations) > 0:
        yield get_rule("size-cold-compile").ruling(
            f"a start with an empty compile cache has {_gib(more)} less for keys and values ({budget.kv_tokens:,} "
            f"tokens) than a later one ({warm.kv_tokens:,}).", where="KV cache",
        )  # fmt: skip


def _find_guesses(sizing: Sizing) -> Iterator[Finding]:
    """Yield what is an estimate rather than a count."""
    request = sizing.request
    drafter, kind = request.drafter, str(request.config.get("model_type") or "")
    if request.directory is None and not known_family(kind):
        message = f"the layers of {kind or 'this model'} are counted as Llama's."
        fix = "Give the checkpoint's directory: its headers say the bytes."
        yield _finding("family-taken-as-llama", Severity.INFO, message, where="target", fix=fix)
    if drafter.typical and drafter.parts:
        message = f"no config.json of the drafter is at hand: the usual layout of {drafter.method} is counted."
        yield _finding("typical-drafter", Severity.INFO, message, where="drafter", fix="Give the drafter's directory.")
    for note in drafter.notes:
        yield _finding("drafter-not-counted", Severity.WARNING, note, where="drafter", fix="Give its directory.")
    if count := len(request.shape.stateful_layers):
        message = f"{count} layers keep a state of fixed size for each sequence, which is not counted."
        yield _finding("state-not-counted", Severity.INFO, message, where="KV cache")
    if request.tensor_parallel_size > 1 or request.pipeline_parallel_size > 1:
        message = "buffers of NCCL and of the custom all-reduce are not in the measured constants: up to 1 GiB less."
        yield _finding("communication-not-measured", Severity.INFO, message, where="--tensor-parallel-size")
    if drafter is not NO_DRAFTER and request.pipeline_parallel_size > 1:
        message = "the drafter is on the last stage alone."
        yield _finding("drafter-on-last-stage", Severity.INFO, message, where="--pipeline-parallel-size")


def _finding(code: str, severity: Severity, message: str, *, where: str = "", fix: str = "") -> Finding:
    return Finding(code=code, severity=severity, message=message, where=where, fix=fix)


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f} GiB" if abs(size) < 10 * _GIB else f"{size / _GIB:.1f} GiB"
