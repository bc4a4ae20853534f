"""What speculation makes of requests: sampling parameters that are refused, ignored, or that stop the drafting."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from draftwise.core import Ruling
from draftwise.plan.check.context import SPEC, Context
from draftwise.plan.check.report import Resolved

__all__ = ["find_requests"]

OVERRIDE = "--override-generation-config"

_NEUTRAL: Mapping[str, float] = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Penalties and the value at which each does nothing."""
_FATES: Mapping[str, tuple[str, str]] = {
    "requests-refused": ("rejected", "Requests that set one of these are refused (HTTP 400)"),
    "requests-not-drafted": (
        "not_speculated",
        "Requests that set one of these are answered without drafting, silently",
    ),
    "requests-parameters-ignored": ("ignored", "A request may set these, and they do nothing while speculating"),
}
"""Rule -> what the release's table calls the parameters that it is about, and what is said of them."""


def find_requests(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what requests meet, first what every request meets."""
    yield from _find_defaults(context)
    yield from _find_parameters(context)
    yield from _find_structured(context)
    if context.is_on("logits_processors") and resolved.runner == "V1":
        yield from context.rules.ruling(
            "logits-processors-refused",
            "Custom logits processors and speculation end start-up on Model Runner V1.",
            where="--logits-processors",
            fix="Drop them, or from 0.31.0 on use a method that Model Runner V2 runs.",
        )


def _find_defaults(context: Context) -> Iterator[Ruling]:
    """Judge the sampling parameters that every request gets unless it says otherwise."""
    defaults, where = _read_defaults(context)
    min_p = defaults.get("min_p")
    if isinstance(min_p, (int, float)) and min_p > 0:
        yield from context.rules.ruling(
            "default-min-p-refused",
            f"min_p {min_p} is the default of every request, and requests with min_p are refused under speculation.",
            where=where,
            fix=f"""Give {OVERRIDE} '{{"min_p": 0.0}}'.""",
        )
    penalties = [
        f"{key} {value}"
        for key, neutral in _NEUTRAL.items()
        if isinstance(value := defaults.get(key), (int, float)) and value != neutral
    ]
    if penalties:
        yield from context.rules.ruling(
            "default-penalty-stops-drafting",
            f"{', '.join(penalties)} is the default of every request, and requests with penalties are not speculated "
            "at all.",
            where=where,
            fix=f"""Give {OVERRIDE} '{{"repetition_penalty": 1.0}}', or use 0.14.0 or newer.""",
        )


def _read_defaults(context: Context) -> tuple[Mapping[str, Any], str]:
    """Return the default sampling parameters as far as they are known here, and where they are written."""
    override = context.json_object("override_generation_config")
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


def _find_parameters(context: Context) -> Iterator[Ruling]:
    table = context.release.table("sampling_params")
    for code, (fate, said) in _FATES.items():
        names = ", ".join(sorted(name for name, value in table.items() if value == fate))
        if names:
            yield from context.rules.ruling(code, f"{said}: {names}.", where=SPEC)
    message = "Beam search with allowed_token_ids is refused."
    yield from context.rules.ruling("requests-beam-allowlist-refused", message, where=SPEC)
    if context.given.get("async_scheduling") is True:
        yield from context.rules.ruling(
            "requests-refused-async",
            f"With --async-scheduling vLLM {context.release} refuses requests with penalties, bad_words or structured "
            "outputs.",
            where="--async-scheduling",
            fix="Leave the flag out.",
        )
    if context.keys.get("enable_adaptive_verification"):
        yield from context.rules.ruling(
            "requests-logprobs-refused",
            "Requests with logprobs are refused under adaptive verification.",
            where="enable_adaptive_verification",
            fix="Use 0.29.0 or newer.",
        )


def _find_structured(context: Context) -> Iterator[Ruling]:
    backend = context.json_object("structured_outputs_config").get("backend")
    if (backend or context.given.get("guided_decoding_backend")) == "lm-format-enforcer":
        yield from context.rules.ruling(
            "structured-outputs-backend",
            "lm-format-enforcer cannot take back drafted tokens: every request with structured outputs fails.",
            where="--structured-outputs-config",
            fix="Use xgrammar or guidance.",
        )
