"""Features of the server beside speculation: since when each goes with it, which is a yes with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from draftwise.core import Ruling, Severity
from draftwise.facts.rules import get_rule
from draftwise.plan.check.context import Context
from draftwise.plan.check.report import Resolved

__all__ = ["find_combined"]

_FEATURES: Mapping[str, tuple[str, ...]] = {
    "lora-with-drafts": ("enable_lora",),
    "structured-outputs-with-drafts": ("structured_outputs_config", "guided_decoding_backend"),
    "logprobs-with-drafts": ("max_logprobs", "logprobs_mode"),
    "kv-transfer-with-drafts": ("kv_transfer_config",),
    "prefix-caching-with-drafts": ("enable_prefix_caching",),
    "chunked-prefill-with-drafts": ("enable_chunked_prefill",),
}
"""Rule that says yes -> the flags that ask for the feature."""


def find_combined(context: Context, resolved: Resolved, found: Sequence[Ruling]) -> Iterator[Ruling]:
    """Yield which features that are asked for go with speculation, and what the release does not combine yet.

    Args:
        context: the setup.
        resolved: its speculative config.
        found: what else is said of the setup: a flag that something is wrong with is not praised.
    """
    wrong = {each.where for each in found if each.severity is not Severity.INFO}
    for code, names in _FEATURES.items():
        flags = [f"--{name.replace('_', '-')}" for name in names if name in context.on]
        if flags and wrong.isdisjoint(flags):
            rule = get_rule(code)
            yield from context.rules.ruling(code, f"{rule.title}, from vLLM {rule.spans[0][0]} on.", where=flags[0])
    if "kv_transfer_config" in context.on:
        yield from context.rules.ruling(
            "kv-transfer-before-drafts",
            f"This release closes the KV connector before {resolved.method} has run: its keys and values are not "
            "transferred, and a request that moves is drafted for without them.",
            where="--kv-transfer-config",
            fix="Use 0.17.0 or newer.",
            method=resolved.method,
        )
    if resolved.async_scheduling and resolved.runner == "V1":
        yield from context.rules.ruling(
            "async-waits-for-acceptance",
            "With asynchronous scheduling this release waits for the number of accepted tokens before it prepares a "
            "step, so that the host overlaps with the drafter only.",
            where="--async-scheduling",
            fix="Use 0.19.0 or newer.",
        )
