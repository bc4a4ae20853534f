"""The server's configuration as a whole: batch sizes, who runs the setup, and what its flags reject or change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.engine.budget import fit_steps
from draftwise.plan.check.engine.features import find_unfit
from draftwise.plan.check.engine.runner import find_runner_alone, settle_runner
from draftwise.plan.check.model import Model, find_target, read_target
from draftwise.plan.check.report import Resolved
from draftwise.plan.check.spec import resolve
from draftwise.plan.check.steps import Step

__all__ = ["configure", "fill_in_batch", "find_early", "find_v0", "judge_engine"]

_TOKENS = "max_num_batched_tokens"
_SEQS = "max_num_seqs"
_GIB = 2**30
_HUGE, _LARGE = 160 * _GIB, 70 * _GIB
"""GPU memory from which on servers default to larger batches, in bytes."""
_ADAPTIVE = "enable_adaptive_verification"
_REJECTED_FLAGS: Mapping[str, str] = {
    "adaptive-rejects-routed-experts": "enable_return_routed_experts",
    "adaptive-rejects-sampling-mask": "return_sampling_mask",
}


def configure(context: Context) -> Step[tuple[Context, Resolved | None]]:
    """Go through the making of the server's configuration, in the order of vLLM's `create_engine_config`.

    Return the context with the batch sizes that the server takes by itself, and the speculative config as it is held:
    None without speculation, and where it cannot be known here.
    """
    target = yield from read_target(context)
    context = fill_in_batch(context, target)
    yield from find_early(context)
    resolved = None
    if context.spec is not None:
        resolved = yield from resolve(context, target)
    yield from _find_batch(context, target)
    if target is not None:
        yield from find_target(context, target, None if resolved is None else resolved.method)
    yield from find_unfit(context, target)
    return context, (yield from _complete(context, resolved))


def fill_in_batch(context: Context, target: Model | None) -> Context:
    """Return the context with the batch sizes that the server takes where none are given and its GPU is known.

    The defaults are those of `vllm serve`; the offline class takes others.
    """
    defaults = _find_batch_defaults(context)
    if defaults is None or target is None:
        return context
    tokens, seqs = context.given.get(_TOKENS), context.given.get(_SEQS)
    double = 2 if context.flags.get("performance_mode") == "throughput" else 1
    some = seqs if isinstance(seqs, int) else defaults[1] * double
    if not isinstance(tokens, int):
        tokens = defaults[0] * double
        if not context.chunks_prefill:
            tokens = max(tokens, target.max_model_len)
        if context.rules.holds("batch-bounded-by-context"):
            tokens = min(tokens, some * target.max_model_len)
    if not isinstance(seqs, int):
        seqs = min(some, tokens) if context.rules.holds("requests-bounded-by-batch") else some
    return replace(context, flags={**context.flags, _TOKENS: tokens, _SEQS: seqs})


def _find_batch_defaults(context: Context) -> tuple[int, int] | None:
    """Return tokens and requests a step, None where they depend on a GPU that is not known."""
    device = context.setup.device
    if context.platform == "cpu":
        ranks = _read_count(context.flags, "pipeline_parallel_size") * _read_count(
            context.flags, "tensor_parallel_size"
        )
        return 2048 * ranks, 128 * ranks
    if context.runs_on_v0:
        return 2048, 256
    if device is None or device.memory_bytes is None:
        return None
    if device.memory_bytes >= _HUGE and context.rules.holds("batch-defaults-for-huge-gpus"):
        return 16384, 1024
    if device.memory_bytes >= _LARGE and "a100" not in device.name.lower():
        return 8192, 1024
    return 2048, 256


def _read_count(flags: Mapping[str, Any], name: str) -> int:
    value = flags.get(name, 1)
    return value if isinstance(value, int) else 1


def find_early(context: Context) -> Iterator[Ruling]:
    """Yield what stops the server before the speculative config is looked at."""
    if context.given.get("async_scheduling") is not True:
        return
    stages = context.flags.get("pipeline_parallel_size", 1)
    without = "async_scheduling does not go with"
    if isinstance(stages, int) and stages > 1:
        message = f"{without} pipeline stages in this release."
        yield from context.rules.ruling("async-rejects-stages", message, where="async_scheduling", fix="Leave it out.")
    if context.spec is not None:
        message = f"{without} speculative decoding in this release."
        yield from context.rules.ruling(
            "async-rejects-speculation", message, where="async_scheduling", fix="Leave it out."
        )


def _find_batch(context: Context, target: Model | None) -> Iterator[Ruling]:
    """Yield why the scheduler refuses the batch sizes."""
    tokens, seqs = context.flags.get(_TOKENS), context.flags.get(_SEQS)
    if not isinstance(tokens, int):
        return
    if target is not None and tokens < target.max_model_len and not context.chunks_prefill:
        yield from context.rules.ruling(
            "batch-below-context",
            f"{_TOKENS} is {tokens}, below the context of {target.max_model_len}, and prompts are not chunked.",
            where=_TOKENS,
            fix=f"Give at least {target.max_model_len}, or leave enable_chunked_prefill on.",
        )
    if isinstance(seqs, int) and tokens < seqs:
        message = f"{_TOKENS} is {tokens}, below max_num_seqs, {seqs}."
        yield from context.rules.ruling("batch-below-requests", message, where=_TOKENS, fix=f"Give at least {seqs}.")


def _complete(context: Context, resolved: Resolved | None) -> Step[Resolved | None]:
    """Return the config with its runner and its scheduling filled in, and yield what the engine makes of it."""
    yield from find_v0(context, resolved)
    if context.spec is None:
        yield from find_runner_alone(context)
    if resolved is None:
        return None
    resolved = yield from settle_runner(context, resolved)
    return resolved if context.runs_on_v0 else (yield from judge_engine(context, resolved))


def find_v0(context: Context, resolved: Resolved | None) -> Iterator[Ruling]:
    """Yield what becomes of a method that the V1 engine does not know by the name that is written."""
    if context.spec is None or context.is_known_to_v1:
        return
    if context.runs_on_v0:
        yield from _find_v0_conflicts(context, resolved)
    method = context.spec.get("method")
    unknown = f"{f'The method {method}' if method else 'A config without method'} is not known to the V1 engine"
    fix = "Write the method of an EAGLE or Medusa head, or use a newer release."
    if context.insists_on_v1:
        message = f"{unknown} of vLLM {context.release}, and VLLM_USE_V1=1 forbids V0."
        yield from context.rules.ruling("v0-engine-refused", message, where="method", fix=fix)
    else:
        message = f"{unknown} of vLLM {context.release}: the V0 engine takes the whole server."
        yield from context.rules.ruling("v0-engine-taken", message, where="method", fix=fix, becomes="the V0 engine")


def _find_v0_conflicts(context: Context, resolved: Resolved | None) -> Iterator[Ruling]:
    """Yield what V0 refuses and V1 does not."""
    if resolved is not None and context.chunks_prefill:
        yield from context.rules.ruling(
            "v0-rejects-chunked-eagle",
            "The V0 engine takes the server, and does not split prompts with EAGLE.",
            where="--enable-chunked-prefill",
            fix="Write the method, so that V1 is taken, or leave the flag out.",
            method=resolved.method,
        )
    length = context.given.get("max_model_len")
    if isinstance(length, int) and length < 0:
        yield from context.rules.ruling(
            "v0-rejects-negative-length",
            f"The V0 engine takes the server, and max_model_len is {length}.",
            where="--max-model-len",
            fix="Leave it out.",
        )


def judge_engine(context: Context, resolved: Resolved) -> Step[Resolved]:
    """Return the config without what the V1 engine drops of it, and yield what it rejects or changes.

    Args:
        context: the setup.
        resolved: its speculative config, with `runner` filled in.
    """
    yield from _find_adaptive(context)
    yield from _find_conflicts(context, resolved)
    return (yield from fit_steps(context, resolved))


def _find_adaptive(context: Context) -> Iterator[Ruling]:
    """Yield what adaptive verification cannot be combined with."""
    if not context.keys.get(_ADAPTIVE):
        return
    fix = f"Leave one of the two out; without {_ADAPTIVE} every draft is verified."
    without = "Adaptive verification does not go with"
    if "enable_lora" in context.on:
        yield from context.rules.ruling("adaptive-rejects-lora", f"{without} --enable-lora.", where=_ADAPTIVE, fix=fix)
    if (stages := context.stages) > 1:
        message = f"{without} pipeline parallelism ({stages} stages)."
        yield from context.rules.ruling("adaptive-rejects-pipeline", message, where=_ADAPTIVE, fix=fix)
    yield from _find_adaptive_graphs(context)
    for code, flag in _REJECTED_FLAGS.items():
        if flag in context.on:
            yield from context.rules.ruling(code, f"{without} --{flag.replace('_', '-')}.", where=_ADAPTIVE, fix=fix)


def _find_adaptive_graphs(context: Context) -> Iterator[Ruling]:
    eager = context.runs_eagerly
    if eager:
        yield from context.rules.ruling(
            "adaptive-needs-graphs",
            "Adaptive verification chooses by step times measured on CUDA graphs, and they are turned off.",
            where=_ADAPTIVE,
            fix="Drop --enforce-eager.",
        )
    if eager or context.lacks_full_graphs:
        state = "they are off" if eager else f"the mode is {context.cudagraph_mode}"
        yield from context.rules.ruling(
            "adaptive-needs-full-graphs",
            f"Adaptive verification needs full CUDA graphs, and {state}.",
            where=_ADAPTIVE,
            fix="Use cudagraph_mode FULL_AND_PIECEWISE, the default.",
        )


def _find_conflicts(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what the engine's config refuses or lowers beside this drafter."""
    yield from _find_fast_prefill(context, resolved)
    yield from _find_shorter_drafter(context, resolved)


def _find_fast_prefill(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    flag = "--kv-sharing-fast-prefill"
    if "kv_sharing_fast_prefill" not in context.on:
        return
    for code in ("fast-prefill-rejects-drafter", "fast-prefill-not-written-for-drafter"):
        yield from context.rules.ruling(
            code,
            f"{flag} leaves the prompt's logits wrong, and {resolved.method} drafts from them.",
            where=flag,
            fix="Drop the flag, or use ngram or suffix.",
            method=resolved.method,
        )


def _find_shorter_drafter(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what a drafter with a shorter context than the server's does to long requests, and to those beside them."""
    draft, target = resolved.draft_max_model_len, context.sizes.get("max_model_len") or _find_length(context)
    if draft is None or target is None or draft >= target:
        return
    lengths = f"The drafter takes {draft} tokens and the server {target}:"
    if resolved.runner == "V2" and resolved.facts.drafts_from == "own_model":
        yield from context.rules.ruling(
            "draft-model-limits-length",
            f"{lengths} the server refuses requests beyond {draft}.",
            where="model",
            fix="Use a draft model with the target's context length, or VLLM_USE_V2_MODEL_RUNNER=0.",
            becomes=f"max_model_len {draft}",
        )
    if resolved.runner == "V1":
        yield from context.rules.ruling(
            "context-gate",
            f"{lengths} while one running request is longer than {draft} tokens less k, nothing is drafted for any "
            "request of its batch.",
            where="model",
            fix=f"Give --max-model-len {draft} where that is enough, send longer requests to a server without "
            "speculation, or use a drafter with the target's context length.",
        )


def _find_length(context: Context) -> int | None:
    value = None if context.target is None else context.target.text_config.get("max_position_embeddings")
    return value if isinstance(value, int) else None
