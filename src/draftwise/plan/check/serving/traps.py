"""Settings that work and cost: lookups that copy too eagerly, drafters that run slower than they need to."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.report import Resolved

__all__ = ["find_traps"]

_SHORT = 2
"""Shortest lookup for which users reported broken tool calls; 8 cured them."""


def find_traps(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield settings that are accepted and known to hurt."""
    if context.is_on("enable_auto_tool_choice") or context.is_on("tool_call_parser"):
        yield from _find_short_lookup(context, resolved)
    if resolved.facts.drafts_from == "own_model" and resolved.runner == "V2":
        yield from _find_draft_model_on_v2(context)


def _find_short_lookup(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    shortest = resolved.prompt_lookup_min
    if shortest is None or shortest > _SHORT:
        return
    yield from context.rules.ruling(
        "short-lookup-with-tools",
        f"prompt_lookup_min {shortest} copies after {shortest} matching tokens, which JSON is full of: users report "
        "malformed tool calls with 2 and none with 8.",
        where="prompt_lookup_min",
        fix="Write 8, and compare the outputs of your own tool calls.",
        method=resolved.method,
    )


def _find_draft_model_on_v2(context: Context) -> Iterator[Ruling]:
    yield from context.rules.ruling(
        "draft-model-runs-eagerly",
        "Model Runner V2 has no CUDA graphs for a draft model yet: each of its passes is launched kernel by kernel.",
        where="method",
        fix="Compare with VLLM_USE_V2_MODEL_RUNNER=0, and with an EAGLE-3 head.",
    )
    if context.keys.get("use_heterogeneous_vocab"):
        yield from context.rules.ruling(
            "heterogeneous-vocab-unmapped",
            "Model Runner V2 does not map the draft model's token ids to the target's: drafted tokens are wrong, or "
            "out of range.",
            where="use_heterogeneous_vocab",
            fix="Set VLLM_USE_V2_MODEL_RUNNER=0, or use 0.32.0 or newer.",
        )
