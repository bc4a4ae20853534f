"""Sampling parameters of one request, with vLLM's names, meanings and defaults."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from draftwise.core import Finding, InvalidSetup, cause_of

_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_ELSEWHERE = ("disable_additional_properties", "structural_tag")
"""Keys that only vLLM supports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The format of a whole completion, in exactly one of five forms.

    Raises:
        InvalidSetup: no form or several forms are given, or a value is invalid.
    """

    json: str | Mapping[str, Any] | None = None
    """A JSON schema, as text or mapping."""
    regex: str | None = None
    """Regex for the whole completion, in the syntax of Rust's regex crate, without look-around."""
    choice: Sequence[str] | None = None
    grammar: str | None = None
    """Context-free grammar, in llguidance's Lark dialect or in GBNF."""
    json_object: bool | None = None
    """True: any JSON object."""
    disable_any_whitespace: bool = False
    """Forbid whitespace between parts of JSON."""
    whitespace_pattern: str | None = None
    """Regex of the text allowed between parts of JSON; None: up to 40 characters of whitespace."""

    def __post_init__(self) -> None:
        given = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise _invalid(
                f"structured_outputs needs one of {', '.join(_KINDS)}; "
                + (f"it has {' and '.join(given)}." if given else "it has none.")
            )
        value = getattr(self, given[0])
        if given[0] == "choice":
            is_right = isinstance(value, list | tuple) and bool(value) and all(isinstance(each, str) for each in value)
        else:
            is_right = isinstance(value, {"json": str | Mapping, "json_object": bool}.get(given[0], str))
        if not is_right:
            raise _invalid(f"structured_outputs.{given[0]} must be {_NOUNS[given[0]]}, got {type(value).__name__}.")
        if isinstance(self.json, Mapping):  # as text, which is handed on and compared at once, however large it is
            try:
                object.__setattr__(self, "json", json.dumps(self.json, default=dict))
            except (TypeError, ValueError, RecursionError) as error:
                raise _invalid(f"structured_outputs.json is not JSON: {cause_of(error)}.") from None
        if type(self.disable_any_whitespace) is not bool:
            raise _invalid("structured_outputs.disable_any_whitespace must be true or false.")
        if not isinstance(self.whitespace_pattern, str | None):
            raise _invalid("structured_outputs.whitespace_pattern must be a string.")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> StructuredOutputsParams:
        """Parse a request's `structured_outputs` object. null counts as not given.

        Raises:
            InvalidSetup: it has an unknown key; or see the class.
        """
        present = {name: value for name, value in given.items() if value is not None}
        known = [each.name for each in fields(cls)]
        for name in present.keys() - set(known):
            if name in _ELSEWHERE:
                raise _invalid(f"structured_outputs.{name} is not supported by the embedded engine.", "Leave it out.")
            raise _invalid(f"structured_outputs has no {name!r}.", f"Known: {', '.join(known)}.")
        return cls(**present)

    @property
    def kind(self) -> str:
        """Name of the form that is set."""
        return next(name for name in _KINDS if getattr(self, name) not in (None, False))

    @property
    def key(self) -> str:
        """Cache key: equal for equal requirements."""
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)})


_NOUNS = {
    "json": "a JSON schema, as a string or an object",
    "regex": "a string",
    "choice": "a list of strings, not empty",
    "grammar": "a string",
    "json_object": "true or false",
}


def _invalid(message: str, fix: str = "") -> InvalidSetup:
    return InvalidSetup.because("bad-structured-outputs", message, where="structured_outputs", fix=fix)


_RULES: tuple[tuple[str, Callable[[SamplingParams], bool], str], ...] = (
    ("n", lambda p: p.n >= 1, "must be at least 1"),
    ("temperature", lambda p: math.isfinite(p.temperature) and p.temperature >= 0, "must be 0 (greedy) or positive"),
    ("top_p", lambda p: 0 < p.top_p <= 1, "must lie in (0, 1]"),
    ("top_k", lambda p: p.top_k >= -1, "must be 0 or -1 (off) or positive"),
    ("min_p", lambda p: 0 <= p.min_p <= 1, "must lie in [0, 1]"),
    ("repetition_penalty", lambda p: p.repetition_penalty > 0, "must be positive"),
    ("presence_penalty", lambda p: -2 <= p.presence_penalty <= 2, "must lie in [-2, 2]"),
    ("frequency_penalty", lambda p: -2 <= p.frequency_penalty <= 2, "must lie in [-2, 2]"),
    ("max_tokens", lambda p: p.max_tokens is None or p.max_tokens >= 1, "must be at least 1"),
    ("min_tokens", lambda p: 0 <= p.min_tokens <= (p.max_tokens or math.inf), "must lie in 0..max_tokens"),
    ("logprobs", lambda p: p.logprobs is None or p.logprobs >= 0, "must not be negative"),
    ("prompt_logprobs", lambda p: p.prompt_logprobs is None or p.prompt_logprobs >= 0, "must not be negative"),
    ("stop", lambda p: all(p.stop_strings), "must not contain an empty string"),
    ("bad_words", lambda p: all(p.bad_words), "must not contain an empty string"),
    (
        "num_speculative_tokens",
        lambda p: p.num_speculative_tokens is None or p.num_speculative_tokens >= 0,
        "must not be negative",
    ),
    ("forced_token_ids", lambda p: p.forced_token_ids is None or len(p.forced_token_ids) > 0, "must not be empty"),
    (
        "forced_token_ids",
        lambda p: p.forced_token_ids is None or p.structured_outputs is None,
        "does not work with structured_outputs",
    ),
    ("seed", lambda p: p.seed is None or 0 <= p.seed < 2**63, "must lie in 0..2^63-1"),
    ("logit_bias", lambda p: all(math.isfinite(b) for b in (p.logit_bias or {}).values()), "must be finite numbers"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of a request. Names, defaults and meanings are vLLM's. All of them work under speculation.

    Raises:
        InvalidSetup: values are out of range (one finding each).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] = field(default_factory=list)
    bad_word_ids: tuple[tuple[int, ...], ...] | None = None
    """`bad_words` after `encode_bad_words`, if already encoded. Not in vLLM."""
    stop: str | list[str] | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    seed: int | None = None
    logprobs: int | None = None
    """Number of top log-probabilities per output token, in addition to the sampled one. None: no log-probabilities."""
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    num_speculative_tokens: int | None = None
    """Maximum draft tokens per step for this request; 0: plain decoding. Not in vLLM."""
    forced_token_ids: Sequence[int] | None = None
    """Output tokens to emit, whatever the target predicts. Drafts are verified against them, and the request ends with
    the last. (vLLM's `trace_decode_token_ids` is the same without speculation.)"""

    structured_outputs: StructuredOutputsParams | None = None
    """Format that the output must match. The text ends where nothing may follow, even with ignore_eos or before
    min_tokens."""

    def __post_init__(self) -> None:
        findings = [
            Finding.error("sampling-out-of-range", f"{name} {text}, got {getattr(self, name)!r}.", where=name)
            for name, holds, text in _RULES
            if not holds(self)
        ]
        if findings:
            raise InvalidSetup(findings)

    @property
    def greedy(self) -> bool:
        """Whether sampling is greedy (temperature 0)."""
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether sampling is restricted by top-k, top-p or min_p."""
        return not self.greedy and (self.min_p > 0 or self.top_k > 0 or self.top_p < 1)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def penalizes(self) -> bool:
        """Whether any penalty applies."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def needs_history(self) -> bool:
        """Whether sampling depends on output tokens that the host must know. (Penalties count tokens on the device.)"""
        return self.min_tokens > 0 or bool(self.bad_words) or self.forced_token_ids is not None

    @property
    def needs_adjusting(self) -> bool:
        """Whether logits change before temperature applies, at this or a later step."""
        return self.needs_history or self.penalizes or bool(self.logit_bias)
