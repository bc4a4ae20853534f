"""How far a generated token sequence has degenerated into repetition."""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_PERIOD = 64
MIN_REPEATS = 3
MIN_LOOP_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A periodic tail: `length` tokens from `start` to the end repeat with `period`."""

    start: int
    period: int
    length: int


def find_loop(
    tokens: Sequence[int],
    *,
    max_period: int = MAX_PERIOD,
    min_repeats: int = MIN_REPEATS,
    min_tokens: int = MIN_LOOP_TOKENS,
) -> Loop | None:
    """Return the loop that `tokens` ends in, or None.

    The tail of a sequence is a loop of period p when its last L tokens satisfy
    tokens[i] == tokens[i + p] throughout, with L >= min_repeats * p and L >= min_tokens; the
    last repeat may be cut off. The smallest such p from 1 to `max_period` is returned, with
    the largest L for it. Tokens that end a sequence (EOS, padding) are the caller's to strip.
    """
    size = len(tokens)
    for period in range(1, min(max_period, size // min_repeats) + 1):
        start = size - period
        while start > 0 and tokens[start - 1] == tokens[start - 1 + period]:
            start -= 1
        length = size - start
        if length >= min_repeats * period and length >= min_tokens:
            return Loop(start=start, period=period, length=length)
    return None


def distinct_ngram_ratio(tokens: Sequence[int], n: int = 4) -> float:
    """Return the distinct n-grams of `tokens` over all its n-grams, in (0, 1].

    1.0 means that no n-gram occurs twice; a sequence too short to hold one gives 1.0 too.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    total = len(tokens) - n + 1
    if total < 1:
        return 1.0
    return len({tuple(tokens[i : i + n]) for i in range(total)}) / total
