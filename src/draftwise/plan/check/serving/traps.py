"""Settings that work and cost: lookups that copy too eagerly, drafters that run slower than they need to."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import Draft, get_size, is_on, rule_if
from draftwise.plan.check.report import Resolved

__all__ = ["find_length_changes", "find_traps"]

_SHORT = 2
"""Shortest lookup for which users reported broken tool calls; 8 cured them."""


def find_length_changes(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield whether a short draft model lowers what the server accepts."""
    draft = resolved.draft_max_model_len
    target = get_size(context, "max_model_len") or _find_length(context)
    shorter = resolved.method == "draft_model" and draft is not None and target is not None and draft < target
    yield from rule_if(
        context, "draft-model-limits-length", shorter and resolved.runner == "V2",
        f"the draft model takes {draft} tokens and the target {target}: the server refuses requests beyond {draft}.",
        where="model", fix="Use a draft model with the target's context length, or VLLM_USE_V2_MODEL_RUNNER=0.",
        becomes=f"max_model_len {draft}",
    )  # fmt: skip
    yield from rule_if(
        context, "draft-model-stops-early", shorter and resolved.runner == "V1",
        f"the draft model takes {draft} tokens and the target {target}: beyond {draft} nothing is drafted.",
        where="model",
    )  # fmt: skip


def _find_length(context: Context) -> int | None:
    value = None if context.target is None else context.target.text_config.get("max_position_embeddings")
    return value if isinstance(value, int) else None


def find_traps(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield settings that are accepted and known to hurt."""
    shortest = resolved.prompt_lookup_min
    looks_up = resolved.method in ("ngram", "ngram_gpu") and shortest is not None and shortest <= _SHORT
    yield from rule_if(
        context, "short-lookup-with-tools",
        looks_up and (is_on(context, "enable_auto_tool_choice") or is_on(context, "tool_call_parser")),
        f"prompt_lookup_min {shortest} copies after {shortest} matching tokens, which JSON is full of: users report "
        "malformed tool calls with 2 and none with 8.",
        where="prompt_lookup_min", fix="Write 8, and compare the outputs of your own tool calls.",
    )  # fmt: skip
    yield from rule_if(
        context, "draft-model-runs-eagerly", resolved.method == "draft_model" and resolved.runner == "V2",
        "Model Runner V2 has no CUDA graphs for a draft model yet: each of its passes is launched kernel by kernel.",
        where="method", fix="Compare with VLLM_USE_V2_MODEL_RUNNER=0, and with an EAGLE-3 head.",
    )  # fmt: skip
    draft = Draft.resolved(context, resolved)
    yield from rule_if(
        context, "heterogeneous-vocab-unmapped",
        resolved.method == "draft_model" and resolved.runner == "V2" and draft.spec.get("use_heterogeneous_vocab"),
        "Model Runner V2 does not map the draft model's token ids to the target's: guesses are wrong, or out of range.",
        where="use_heterogeneous_vocab", fix="Set VLLM_USE_V2_MODEL_RUNNER=0, or use 0.32.0 or newer.",
    )  # fmt: skip
