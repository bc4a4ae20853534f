"""How one request wants its tokens sampled, with vLLM's names, meanings and defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftwise.core import Finding, InvalidSetup
from draftwise.engine.sampling.structured_outputs import StructuredOutputsParams

__all__ = ["SamplingParams"]

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
        "does not go together with structured_outputs",
    ),
    ("seed", lambda p: p.seed is None or 0 <= p.seed < 2**63, "must lie in 0..2^63-1"),
    ("logit_bias", lambda p: all(math.isfinite(b) for b in (p.logit_bias or {}).values()), "must be finite numbers"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings; every one of them is honoured under speculation too.

    Raises:
        InvalidSetup: with a finding for each value out of range.
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
    stop: str | list[str] | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    seed: int | None = None
    logprobs: int | None = None
    """How many top log-probabilities to return for each output token (the sampled one is added)."""
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    num_speculative_tokens: int | None = None
    """Draft at most so many tokens a step for this request; 0 decodes it plainly. Not in vLLM."""
    forced_token_ids: Sequence[int] | None = None
    """Output tokens to emit whatever the target says: drafts are verified against them. The request ends with the last
    of them. (vLLM's `trace_decode_token_ids` is the same without speculation.)"""

    structured_outputs: StructuredOutputsParams | None = None
    """What the output must match. It ends where nothing more may follow, even with ignore_eos or before min_tokens."""

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
        """Whether the most likely token is always taken."""
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether tokens are sampled, and not from the whole distribution."""
        return not self.greedy and (self.min_p > 0 or self.top_k > 0 or self.top_p < 1)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def penalises(self) -> bool:
        """Whether any penalty applies."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def needs_history(self) -> bool:
        """Whether what is emitted depends on output tokens that the host must know: not for what penalties count."""
        return self.min_tokens > 0 or bool(self.bad_words) or self.forced_token_ids is not None

    @property
    def needs_adjusting(self) -> bool:
        """Whether the logits change before they are tempered, at this or a later step."""
        return self.needs_history or self.penalises or bool(self.logit_bias)
