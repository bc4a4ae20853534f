"""Limits of single methods that show when their proposer is made: heads, blocks, trees, class paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.report import Resolved

__all__ = ["find_method_faults"]

_KEY = "num_speculative_tokens"
_DEFAULT_MEDUSA_HEADS = 5
"""Of vLLM's MedusaConfig, for a config.json that does not say."""


def find_method_faults(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what the method's own proposer cannot do; each rule is about the methods that its row names."""
    k = resolved.num_speculative_tokens
    if context.drafter is not None:
        yield from _find_medusa_heads(context, resolved, k)
        yield from _find_cut_vocabulary(context, resolved)
    yield from _find_beyond_block(context, resolved, k)
    yield from _find_beyond_depth(context, resolved, k)
    yield from context.rules.ruling(
        "mlp-speculator-not-on-v1",
        f"The V1 engine has no code for {resolved.method}; start-up ends with 'Unknown speculative decoding method'.",
        where="method",
        fix="Train or find an EAGLE-3 head for this target, or use ngram.",
        method=resolved.method,
    )
    if "." not in (resolved.model or ""):
        yield from context.rules.ruling(
            "custom-class-path",
            f"The model {resolved.model!r} is not the dotted path of a Python class.",
            where="model",
            fix="Write it as package.module.Class, importable on the server.",
            method=resolved.method,
        )


def _find_medusa_heads(context: Context, resolved: Resolved, k: int | None) -> Iterator[Ruling]:
    heads = _count_heads(context.draft_config)
    if k is not None and k > heads:
        yield from context.rules.ruling(
            "medusa-too-few-heads",
            f"{_KEY} {k} asks for more heads than the {heads} in the checkpoint; loading ends with 'weights were not "
            "initialized'.",
            where=_KEY,
            fix=f"Write at most {heads}.",
            method=resolved.method,
        )


def _count_heads(config: Mapping[str, Any]) -> int:
    """Return the trained heads as vLLM reads them: any key with "num" and "heads" counts."""
    heads = [value for key, value in config.items() if "num" in key and "heads" in key and isinstance(value, int)]
    return heads[-1] if heads else _DEFAULT_MEDUSA_HEADS


def _find_cut_vocabulary(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    cut, whole = (context.draft_config.get(key) for key in ("truncated_vocab_size", "vocab_size"))
    if isinstance(cut, int) and isinstance(whole, int) and cut < whole:
        yield from context.rules.ruling(
            "medusa-truncated-vocabulary",
            f"The heads have truncated_vocab_size {cut} of {whole}: loading takes the token_map for a weight that is "
            "missing.",
            where="model",
            fix="Save the heads over the whole vocabulary.",
            method=resolved.method,
        )


def _find_beyond_block(context: Context, resolved: Resolved, k: int | None) -> Iterator[Ruling]:
    block = context.draft_config.get("block_size")
    if isinstance(block, int) and k is not None and k > block:
        yield from context.rules.ruling(
            "dflash-beyond-block",
            f"{_KEY} {k} exceeds the drafter's block_size {block}: it loads, and was not trained for that.",
            where=_KEY,
            fix=f"Write at most {block}, or one less if the block counts the token before the draft.",
            method=resolved.method,
        )


def _find_beyond_depth(context: Context, resolved: Resolved, k: int | None) -> Iterator[Ruling]:
    key = "suffix_decoding_max_tree_depth"
    depth = context.keys.get(key)
    depth = depth if isinstance(depth, int) else resolved.fields.get(key)
    if isinstance(depth, int) and k is not None and k > depth:
        yield from context.rules.ruling(
            "suffix-beyond-depth",
            f"{_KEY} {k} cannot be reached: matched and drafted tokens share a tree of depth {depth}.",
            where=_KEY,
            fix=f"Raise {key}, or keep k below it; memory is reserved for k.",
            method=resolved.method,
        )
