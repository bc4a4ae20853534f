"""Counters that say something else than they seem to."""

from __future__ import annotations

from draftwise.core import Finding, Severity, Window

__all__ = ["find_misleading"]

_MUCH = 0.1
"""Share of the output tokens from which first tokens change what tokens per step says."""


def find_misleading(window: Window) -> Finding | None:
    """Return the note that most steps are prefill's, where answers are short; None where tokens per step can be read.

    Prefill emits the first token of an answer without a draft: with answers of four tokens, every fourth token cannot
    be speculated on, whatever the drafter does.
    """
    first, tokens = window.sums.first_tokens, window.output_tokens
    after = window.tokens_per_decode_step
    if not first or not tokens or first < _MUCH * tokens or after is None or window.tokens_per_step is None:
        return None
    return Finding(
        code="first-tokens-count",
        severity=Severity.INFO,
        message=(
            f"Of {tokens} tokens {first:.0f} are the first of an answer, which prefill emits: tokens per step are "
            f"{window.tokens_per_step:.2f} with them, and {after:.2f} in decoding."
        ),
        where=window.pool,
        fix="Hold it against a break-even that was measured with answers as short.",
    )
