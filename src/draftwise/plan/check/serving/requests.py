"""What speculation makes of requests: sampling parameters that are refused, ignored, or that stop the drafting."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import SPEC, Draft, is_on, read_json, rule_if
from draftwise.plan.check.report import Resolved

__all__ = ["find_request_flags", "find_requests"]

OVERRIDE = "--override-generation-config"


def find_request_flags(context: Context) -> Iterator[Ruling]:
    """Yield engine flags about requests that need speculation and do not have it."""
    given = context.given.get("per_request_spec_decode_metrics")
    yield from rule_if(
        context, "request-metrics-without-speculation", context.spec is None and given not in (None, "none"),
        f"--per-request-spec-decode-metrics {given} needs speculation, and there is none.",
        where="--per-request-spec-decode-metrics", fix=f"Leave it out, or give {SPEC}.",
    )  # fmt: skip


def find_requests(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what requests meet, first what every request meets."""
    yield from _find_defaults(context)
    yield from _find_parameters(context, resolved)
    yield from _find_structured(context)
    yield from _find_processors(context, resolved)


def _find_defaults(context: Context) -> Iterator[Ruling]:
    """Judge the sampling parameters that every request gets unless it says otherwise."""
    defaults, where = _read_defaults(context)
    min_p = defaults.get("min_p")
    asks_min_p = isinstance(min_p, (int, float)) and min_p > 0
    yield from rule_if(
        context, "default-min-p-refused", asks_min_p,
        f"min_p {min_p} is the default of every request, and requests with min_p are refused under speculation.",
        where=where, fix=f"""Give {OVERRIDE} '{{"min_p": 0.0}}'.""",
    )  # fmt: skip
    penalties = {
        key: value
        for key, neutral in (("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0))
        if isinstance(value := defaults.get(key), (int, float)) and value != neutral
    }
    named = ", ".join(f"{key} {value}" for key, value in penalties.items())
    yield from rule_if(
        context, "default-penalty-stops-drafting", penalties,
        f"{named} is the default of every request, and requests with penalties are not speculated at all.",
        where=where, fix=f"""Give {OVERRIDE} '{{"repetition_penalty": 1.0}}', or use 0.14.0 or newer.""",
    )  # fmt: skip


def _read_defaults(context: Context) -> tuple[Mapping[str, Any], str]:
    """Return the default sampling parameters as far as they are known here, and where they are written."""
    override = read_json(context.given.get("override_generation_config"))
    override = override if isinstance(override, Mapping) else {}
    source = context.given.get("generation_config") or "auto"
    directory = None if context.target is None else context.target.directory
    if source != "auto" or directory is None:
        return override, OVERRIDE
    try:
        own = json.loads((directory / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        own = {}
    own = own if isinstance(own, dict) else {}
    return own | dict(override), OVERRIDE if override else "generation_config.json"


def _find_parameters(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    table = context.release.table("sampling_params")
    for code, fate, text in (
        ("requests-refused", "rejected", "requests that set one of them are refused (HTTP 400)."),
        (
            "requests-not-drafted",
            "not_speculated",
            "requests that set one of them are answered without drafting, silently.",
        ),
        ("requests-parameters-ignored", "ignored", "a request may set them, and they do nothing while speculating."),
    ):
        names = ", ".join(sorted(name for name, value in table.items() if value == fate))
        yield from rule_if(context, code, names, f"{names}: {text}", where=SPEC)
    text = "beam search with allowed_token_ids is refused."
    yield from rule_if(context, "requests-beam-allowlist-refused", True, text, where=SPEC)
    yield from rule_if(
        context, "requests-refused-async", context.given.get("async_scheduling") is True,
        f"With --async-scheduling {context.release} refuses requests with penalties, bad_words or structured outputs.",
        where="--async-scheduling", fix="Leave the flag out.",
    )  # fmt: skip
    adaptive = Draft.resolved(context, resolved).spec.get("enable_adaptive_verification")
    yield from rule_if(
        context, "requests-logprobs-refused", adaptive,
        "Requests with logprobs are refused under adaptive verification.", where="enable_adaptive_verification",
        fix="Use 0.29.0 or newer.",
    )  # fmt: skip


def _find_structured(context: Context) -> Iterator[Ruling]:
    config = read_json(context.given.get("structured_outputs_config"))
    backend = config.get("backend") if isinstance(config, Mapping) else None
    backend = backend or context.given.get("guided_decoding_backend")
    yield from rule_if(
        context, "structured-outputs-backend", backend == "lm-format-enforcer",
        "lm-format-enforcer cannot take back drafted tokens: every request with structured outputs fails.",
        where="--structured-outputs-config", fix="Use xgrammar or guidance.",
    )  # fmt: skip


def _find_processors(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    given = is_on(context, "logits_processors")
    yield from rule_if(
        context, "logits-processors-refused", given and resolved.runner == "V1",
        "custom logits processors and speculation end start-up on Model Runner V1.",
        where="--logits-processors", fix="Drop them, or from 0.31.0 on use a method that Model Runner V2 runs.",
    )  # fmt: skip
