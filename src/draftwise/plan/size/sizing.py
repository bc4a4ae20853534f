"""The memory of a setup with and without its drafter, and the findings about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from draftwise.core import Finding, InvalidSetup, Setup, Severity
from draftwise.core.budget import Budget
from draftwise.core.finding import join_names
from draftwise.knowledge.flag_types import SPEC_FLAGS
from draftwise.knowledge.gpus import Gpu
from draftwise.knowledge.kv_proofs import FEATURES, find_unproved
from draftwise.knowledge.messages import fault, note, warning
from draftwise.knowledge.rules import find_doubts, of_release
from draftwise.plan.size.decoder_parts import known_family
from draftwise.plan.size.memory_budget import measure
from draftwise.plan.size.size_request import NO_DRAFTER, SizeRequest, read_request
from draftwise.plan.size.weight_bytes import find_headers

_GIB = 1 << 30
_DRAFTER_SHARE, _TARGET_SHARE, _RESERVE_SHARE = 0.15, 0.70, 0.01
_SHARE_FLAG = "--gpu-memory-utilization"


def find_faults(request: SizeRequest, budget: Budget, plain: Budget) -> Iterator[Finding]:
    """Yield everything about a request's budget, most pressing first."""
    yield from request.rulings
    yield from _find_lack(request, budget)
    yield from _find_overrun(budget)
    yield from _find_shares(budget, plain)
    yield from _find_graphs(request, budget)
    if not budget.buffers_counted:
        yield from request.rules.ruling("size-buffers-not-counted", buffers=_gib(budget.buffers))
    warm = measure(replace(request, cold_start=False))
    if (more := budget.activations - warm.activations) > 0:
        yield from request.rules.ruling(
            "size-cold-compile", more=_gib(more), kv_tokens=budget.kv_tokens, later=warm.kv_tokens
        )
    yield from _find_estimates(request)


def find_unknown(request: SizeRequest) -> Iterator[Finding]:
    """Yield each unknown term of a request's memory; a number needs all terms."""
    drafter, kind = request.drafter, str(request.config.get("model_type") or "")
    if not known_family(kind) and find_headers(request.directory) is None:
        yield _unknown(f"the weights of {kind or 'this model'}", "target", "Give the checkpoint's directory.")
    for why in drafter.notes:
        fix = "Pass its directory." if drafter.facts.has_weights else "Size the target without it."
        yield _unknown(why, "drafter", fix)
    for flag in request.uncounted:
        yield _unknown(f"the effect of {flag}", flag, "Size the setup without it.")
    shape = request.shape
    unknown, different = find_unproved(
        request.architecture,
        request.release.version,
        _features(request),
        is_simple=not (shape.windows or shape.stateful_layers or shape.state_layers or shape.latent_dim),
    )
    for names, why in (
        (unknown, "has not been compared with vLLM's own planner"),
        (different, "was compared with vLLM's own planner, and differs"),
    ):
        if names:
            named = " and ".join(FEATURES.get(each, f"a KV cache in {each}") for each in names)
            what = f"the KV cache of {request.architecture or 'this model'} in vLLM {request.release}, with {named}"
            fix = "Start the server once: its log shows the size of its KV cache."
            yield _unknown(f"{what}, {why}", "KV cache", fix)


def _unknown(what: str, where: str, fix: str) -> Finding:
    return Finding.error("memory-unknown", f"Memory unknown: {what}.", where=where, fix=fix)


def _features(request: SizeRequest) -> set[str]:
    needed = {"plain"}
    if (dtype := request.kv_cache_dtype) not in ("auto", "bfloat16", "float16", "half"):
        needed.add("fp8" if dtype == "fp8_e4m3" else dtype)
    if request.tensor_parallel_size > 1:
        needed.add("tp")
    if request.pipeline_parallel_size > 1:
        needed.add("pp")
    if request.drafter is not NO_DRAFTER:
        facts = request.drafter.facts
        needed.add("lookup" if request.drafter.shape is None else "mtp" if facts.weights == "target" else "head")
    return needed


def _find_lack(request: SizeRequest, budget: Budget) -> Iterator[Finding]:
    if budget.fits:
        return
    advice, limit = _suggest(request, budget), budget.max_model_len
    if budget.kv_bytes <= 0:
        yield fault("does-not-fit", fixed=_gib(budget.fixed), requested=_gib(budget.requested), advice=advice)
    elif (blocks := budget.num_blocks) < budget.min_blocks:
        yield fault("does-not-fit", case="state", num_blocks=blocks, max_num_seqs=budget.max_num_seqs, advice=advice)
    else:
        need, left = _gib(budget.kv.bytes_per_sequence(limit, budget.in_flight)), _gib(budget.kv_bytes)
        longest = budget.longest_context()
        yield fault(
            "does-not-fit", case="sequence", max_model_len=limit, need=need, left=left, longest=longest, advice=advice
        )


def _suggest(request: SizeRequest, budget: Budget) -> str:
    """Return the smallest changes that make a setup fit: a shorter context, more GPUs, narrower weights."""
    advice = []
    if 0 < budget.num_blocks < budget.min_blocks:
        return f"Set --max-num-seqs to {budget.num_blocks} or less."
    if (length := budget.longest_context()) >= 1024:
        advice.append(f"--max-model-len {length // 256 * 256}")
    if (size := _enough_gpus(request)) is not None:
        advice.append(f"--tensor-parallel-size {size}")
    if request.precision.bits == 16:
        advice.append("a checkpoint in FP8 or INT4")
    return f"Try {' or '.join(advice)}." if advice else "Choose a GPU with more memory or a smaller model."


def _enough_gpus(request: SizeRequest) -> int | None:
    """Return the smallest tensor-parallel size that fits and divides the attention heads. None up to eightfold."""
    for size in (request.tensor_parallel_size * factor for factor in (2, 4, 8)):
        wider = replace(request, tensor_parallel_size=size, draft_tensor_parallel_size=size)
        if request.shape.num_heads % size == 0 and measure(wider).fits:
            return size
    return None


def _find_overrun(budget: Budget) -> Iterator[Finding]:
    """Yield that vLLM will use more than it plans with, and that nothing is left for it."""
    least = budget.device * _RESERVE_SHARE
    if not budget.fits or budget.reserve > least:
        return
    share = (budget.requested + budget.reserve - least) / budget.device
    yield warning(
        "out-of-memory-ahead",
        requested=_gib(budget.requested),
        device=_gib(budget.device),
        outside=_gib(budget.outside),
        reserve=_gib(budget.reserve),
        flag=_SHARE_FLAG,
        share=max(0.1, share),
    )


def _find_shares(budget: Budget, plain: Budget) -> Iterator[Finding]:
    if (share := budget.drafter / budget.device) > _DRAFTER_SHARE:
        yield warning(
            "drafter-takes-much",
            share=share,
            limit=_DRAFTER_SHARE,
            kv_tokens=budget.kv_tokens,
            plain_kv_tokens=plain.kv_tokens,
        )
    if (share := budget.target / budget.device) > _TARGET_SHARE:
        yield warning("target-takes-most", share=share, limit=_TARGET_SHARE)


def _find_graphs(request: SizeRequest, budget: Budget) -> Iterator[Finding]:
    if budget.graphs <= budget.graphs_counted:
        return
    codes = ["size-graphs-not-counted", "size-graphs-opt-in", "size-graphs-counted"]
    if request.runner == "V2":
        codes.insert(0, "size-graphs-first-runner-only")
    code = next(code for code in codes if request.rules.holds(code))
    yield from request.rules.ruling(code, graphs=_gib(budget.graphs), counted=_gib(budget.graphs_counted))


def _find_estimates(request: SizeRequest) -> Iterator[Finding]:
    drafter = request.drafter
    if request.default_graphs and not request.enforce_eager:
        yield note("default-graphs", flags=join_names(request.default_graphs))
    if drafter.typical and drafter.parts:
        yield note("typical-drafter", method=drafter.method)
    if request.tensor_parallel_size > 1 or request.pipeline_parallel_size > 1:
        yield note("communication-not-measured")
    if drafter is not NO_DRAFTER and request.pipeline_parallel_size > 1:
        yield note("drafter-on-last-stage")


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f} GiB" if abs(size) < 10 * _GIB else f"{size / _GIB:.1f} GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """A setup's memory, and the same without its drafter."""

    request: SizeRequest
    budget: Budget
    """Budget of the GPU with the least room for keys and values; GPUs of a tensor-parallel group are equal."""
    plain: Budget
    """Budget without speculation; equal to `budget` without it."""
    findings: tuple[Finding, ...]


def size(setup: Setup, *, gpu: Gpu | str | None = None, cold_start: bool = True, stored: str | None = None) -> Sizing:
    """Return the memory that a setup takes on each GPU.

    Args:
        setup: target, speculation, flags and vLLM version.
        gpu: GPU that it runs on; by default the setup's device.
        cold_start: whether vLLM compiles the model first, as it does in a fresh container.
        stored: precision of a quantized copy of the target that is served instead; None for the target as it is.

    Raises:
        InvalidSetup: vLLM would reject the setup, or a term of its memory is unknown.
    """
    request = read_request(setup, gpu=gpu, cold_start=cold_start, stored=stored)
    # The embedded engine has methods that vLLM never had.
    refused = [each for each in request.rulings if each.severity is Severity.ERROR and each.code != "unknown-method"]
    if faults := [*refused, *find_unknown(request)]:
        raise InvalidSetup(faults)
    budget = measure(request)
    plain = budget
    if request.drafter is not NO_DRAFTER:
        alone = _without_speculation(setup, request)
        plain = measure(read_request(alone, gpu=request.gpu, cold_start=cold_start, stored=stored))
    found = (of_release(each, request.release) for each in find_faults(request, budget, plain))
    findings = (*find_doubts(request.release), *found)
    return Sizing(request=request, budget=budget, plain=plain, findings=findings)


def _without_speculation(setup: Setup, request: SizeRequest) -> Setup:
    """Return the same server without speculation, which may run on another model runner."""
    args = {name: value for name, value in setup.args.items() if name not in SPEC_FLAGS}
    return replace(setup, target=request.served, spec=None, args=args)
