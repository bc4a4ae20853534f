"""Judges speculation's effect on requests: harmful lookups, defaults, rejected parameters, other features."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from draftwise.core import Ruling, Severity
from draftwise.knowledge.rules import get_rule
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.stages import SPEC, Context

_OVERRIDE = "--override-generation-config"
_NEUTRAL_PENALTIES: Mapping[str, float] = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Penalties and the value at which each does nothing."""
_FATES: Mapping[str, tuple[str, str]] = {
    "requests-refused": ("rejected", "vLLM rejects requests that set one of these (HTTP 400)"),
    "requests-not-drafted": ("not_speculated", "vLLM silently answers requests that set one of these without drafting"),
    "requests-parameters-ignored": ("ignored", "Requests may set these, but they do nothing while speculating"),
}
"""Rule -> what the release's table calls the parameters that it is about, and what is said of them."""
_SHORT_LOOKUP = 2
"""Shortest lookup for which users reported broken tool calls; 8 cured them."""
_FEATURES: Mapping[str, tuple[str, ...]] = {
    "lora-with-drafts": ("enable_lora",),
    "structured-outputs-with-drafts": ("structured_outputs_config", "guided_decoding_backend"),
    "logprobs-with-drafts": ("max_logprobs", "logprobs_mode"),
    "kv-transfer-with-drafts": ("kv_transfer_config",),
    "prefix-caching-with-drafts": ("enable_prefix_caching",),
    "chunked-prefill-with-drafts": ("enable_chunked_prefill",),
}
"""Rule that says since when a feature goes with speculation -> the flags that ask for the feature."""


def find_requests(context: Context, resolved: Resolved) -> Sequence[Ruling]:
    """Return effects on requests: first on every request, then on those with certain parameters."""
    return [
        *_find_traps(context, resolved),
        *_find_defaults(context),
        *_find_parameters(context),
        *_find_structured(context, resolved),
        *_find_processors(context, resolved),
    ]


def _find_traps(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    if "enable_auto_tool_choice" in context.on or "tool_call_parser" in context.on:
        yield from _find_short_lookup(context, resolved)
    if resolved.facts.drafts_from == "own_model" and resolved.runner == "V2":
        yield from context.rules.ruling("draft-model-runs-eagerly")
        if context.keys.get("use_heterogeneous_vocab"):
            yield from context.rules.ruling("heterogeneous-vocab-unmapped")


def _find_short_lookup(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    shortest = resolved.prompt_lookup_min
    if shortest is None or shortest > _SHORT_LOOKUP:
        return
    yield from context.rules.ruling("short-lookup-with-tools", method=resolved.method, shortest=shortest)


def _find_defaults(context: Context) -> Iterator[Ruling]:
    """Judge the sampling parameters that every request gets unless it says otherwise."""
    defaults, where = _read_defaults(context)
    min_p = defaults.get("min_p")
    if isinstance(min_p, (int, float)) and min_p > 0:
        yield from context.rules.ruling("default-min-p-refused", min_p=min_p, where=where)
    penalties = [
        f"{key} {value}"
        for key, neutral in _NEUTRAL_PENALTIES.items()
        if isinstance(value := defaults.get(key), (int, float)) and value != neutral
    ]
    if penalties:
        yield from context.rules.ruling("default-penalty-stops-drafting", penalties=penalties, where=where)


def _read_defaults(context: Context) -> tuple[Mapping[str, Any], str]:
    """Return the default sampling parameters as far as they are known here, and where they are written."""
    override = context.objects.get("override_generation_config", {})
    source = context.given.get("generation_config") or "auto"
    directory = None if context.target is None else context.target.directory
    if source != "auto" or directory is None:
        return override, _OVERRIDE
    try:
        own = json.loads((directory / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        own = {}
    own = own if isinstance(own, dict) else {}
    return own | dict(override), _OVERRIDE if override else "generation_config.json"


def _find_parameters(context: Context) -> Iterator[Ruling]:
    table = context.release.table("sampling_params")
    for code, (fate, said) in _FATES.items():
        names = ", ".join(sorted(name for name, value in table.items() if value == fate))
        if names:
            yield from context.rules.ruling(code, message=f"{said}: {names}.", where=SPEC)
    yield from context.rules.ruling("requests-beam-allowlist-refused")
    if context.given.get("async_scheduling") is True:
        yield from context.rules.ruling("requests-refused-async")
    if context.keys.get("enable_adaptive_verification"):
        yield from context.rules.ruling("requests-logprobs-refused")


def _find_structured(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    if resolved.async_scheduling and resolved.runner == "V1":
        yield from context.rules.ruling("structured-outputs-misaligned", method=resolved.method)
    backend = context.objects.get("structured_outputs_config", {}).get("backend")
    if (backend or context.given.get("guided_decoding_backend")) == "lm-format-enforcer":
        yield from context.rules.ruling("structured-outputs-backend")


def _find_processors(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    if "logits_processors" in context.on and resolved.runner == "V1":
        yield from context.rules.ruling("logits-processors-refused")


def find_combined(context: Context, resolved: Resolved, found: Sequence[Ruling]) -> Iterator[Ruling]:
    """Yield which requested features work with speculation, and which the release does not combine yet."""
    wrong = {each.where for each in found if each.severity is not Severity.INFO}
    for code, names in _FEATURES.items():
        flags = [f"--{name.replace('_', '-')}" for name in names if name in context.on]
        if flags and wrong.isdisjoint(flags):
            rule = get_rule(code)
            yield from context.rules.ruling(
                code, message=f"{rule.title}, from vLLM {rule.spans[0][0]} on.", where=flags[0]
            )
    if "kv_transfer_config" in context.on:
        yield from context.rules.ruling("kv-transfer-before-drafts", method=resolved.method)
    if resolved.async_scheduling and resolved.runner == "V1":
        yield from context.rules.ruling("async-waits-for-acceptance")
