"""Attention and expert backends that a drafter needs, takes by itself, or cannot share with its target."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.report import Resolved

__all__ = ["find_backends"]

_FLAG = "--attention-backend"


def find_backends(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what the attention and expert backends mean for the drafter."""
    target = _read_name(context.given.get("attention_backend") or context.env.get("VLLM_ATTENTION_BACKEND"))
    own = _read_name(context.keys.get("attention_backend"))
    if not _is_causal(context):
        yield from _find_non_causal(context, resolved, target, own)
    if target and not own and "attention_backend" in context.given and resolved.runner == "V1":
        yield from context.rules.ruling(
            "draft-backend-not-inherited",
            f"{_FLAG} {target} holds for the target; the drafter picks its own.",
            where=_FLAG,
            fix=f'Add "attention_backend": "{target}" to the speculative config to share it.',
            method=resolved.method,
        )
    k = resolved.num_speculative_tokens
    if target == "HPC_ATTN" and k is not None and k > 3:
        yield from context.rules.ruling(
            "hpc-attention-limit",
            f"HPC attention verifies at most 3 drafted tokens, and num_speculative_tokens is {k}.",
            where="num_speculative_tokens",
            fix=f"Write at most 3, or take another {_FLAG}.",
        )
    yield from _find_cache_type(context, resolved)
    yield from _find_experts(context)


def _read_name(given: object) -> str:
    name = given.upper() if isinstance(given, str) else ""
    return "" if name == "AUTO" else name


def _is_causal(context: Context) -> bool:
    """Say whether the drafter declares that its block attends to earlier tokens only."""
    inner = context.draft_config.get("dflash_config")
    return context.rules.holds("dflash-may-be-causal") and isinstance(inner, dict) and bool(inner.get("causal"))


def _find_non_causal(context: Context, resolved: Resolved, target: str, own: str) -> Iterator[Ruling]:
    """Judge backends by whether they attend to later tokens, as DFlash's block does."""
    table = context.release.table("noncausal_backends")
    able = sorted(name for name, does in table.items() if does)
    text = f"attends to earlier tokens only, and DFlash's block both ways. In this release {', '.join(able)} can."
    unread = context.rules.holds("dflash-attention-backend-ignored-on-v2")
    if own and own not in able and (not unread or resolved.runner == "V1"):
        yield from context.rules.ruling(
            "dflash-draft-backend",
            f"{own} {text}",
            where="attention_backend",
            fix="Leave it out: the drafter then finds one by itself.",
            method=resolved.method,
        )
    if not target or target in able:
        return
    yield from context.rules.ruling(
        "dflash-target-backend",
        f"{target} is also the drafter's backend here, and {text}",
        where=_FLAG,
        fix=f"Write {able[0]}, or leave it out: vLLM then finds one." if able else "",
        method=resolved.method,
    )
    if resolved.runner == "V2":
        yield from context.rules.ruling(
            "dflash-target-backend-on-v2",
            f"{target} is also the drafter's backend on Model Runner V2, and {text}",
            where=_FLAG,
            fix="Leave it out, or set VLLM_USE_V2_MODEL_RUNNER=0.",
            method=resolved.method,
        )


def _find_cache_type(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Judge a KV-cache type chosen for the target, which the drafter's own layers share."""
    given = context.given.get("kv_cache_dtype")
    if given in (None, "auto") or context.keys.get("kv_cache_dtype"):
        return
    has_own = "kv_cache_dtype" in context.release.table("spec_fields")
    own = ' with "kv_cache_dtype": "auto" in the speculative config' if has_own else ""
    yield from context.rules.ruling(
        "kv-cache-type-inherited",
        f"The drafter keeps its keys and values in {given} too.",
        where="--kv-cache-dtype",
        fix=f"Compare acceptance{own}.",
        method=resolved.method,
    )


def _find_experts(context: Context) -> Iterator[Ruling]:
    """Judge an expert backend chosen for a quantised target, which a drafter with plain experts inherits."""
    target, drafter = context.target, context.drafter
    if target is None or drafter is None:
        return
    quantized = target.config.get("quantization_config") or context.given.get("quantization")
    own = drafter.config.get("quantization_config") or context.keys.get("quantization")
    backend = context.given.get("moe_backend")
    if not quantized or own or not drafter.num_experts or backend in (None, "auto") or "moe_backend" in context.keys:
        return
    yield from context.rules.ruling(
        "moe-backend-inherited",
        f"--moe-backend {backend} was chosen for the quantised target; the drafter's experts are not quantised and "
        "inherit it, and not every backend has kernels for both.",
        where="moe_backend",
        fix='Add "moe_backend": "auto" or "triton" to the speculative config.',
    )
