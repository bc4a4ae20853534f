"""Counters that say something else than they seem to."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Finding, Window

__all__ = ["find_misleading"]

_MUCH = 0.1
"""Share of the tokens, or of the steps, from which a ratio says something else than it seems to."""
_FEW_DRAFTS = 200
"""Under which a share of the steps is an accident."""


def find_misleading(window: Window) -> Iterator[Finding]:
    """Yield notes on ratios of a pool that would be misread."""
    first, tokens = window.sums.first_tokens, window.output_tokens
    if first and tokens and first >= _MUCH * tokens and window.tokens_per_decode_step and window.tokens_per_step:
        yield _note(
            "first-tokens-count",
            f"Of {tokens} tokens {first:.0f} are the first of an answer, which prefill emits: tokens per step are "
            f"{window.tokens_per_step:.2f} with them, and {window.tokens_per_decode_step:.2f} in decoding.",
            window,
            "Hold it against a break-even that was measured with answers as short.",
        )
    drafts, steps = window.counters.spec.num_drafts, window.sequence_steps
    decoding = None if steps is None else steps - (first or 0)
    if decoding and _FEW_DRAFTS <= drafts <= (1 - _MUCH) * decoding:
        yield _note(
            "drafts-on-some-steps",
            f"Only {drafts / decoding:.0%} of the steps have a draft: acceptance length {window.acceptance_length:.2f} "
            f"is of these, and all steps give {window.tokens_per_step:.2f} tokens.",
            window,
            "Judge by tokens per step; acceptance length and rate leave out the steps without a draft.",
        )


def _note(code: str, message: str, window: Window, fix: str) -> Finding:
    return Finding.info(code, message, where=window.pool, fix=fix)
