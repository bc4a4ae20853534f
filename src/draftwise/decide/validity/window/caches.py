"""Whether prefix caches and first tokens are alike on both sides."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Counters, Finding, Interval
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.finding import error, warning

__all__ = ["check_prefix_cache", "serves_more_hits"]


def serves_more_hits(before: Counters, after: Counters, thresholds: Thresholds) -> bool:
    """Return whether a prefix cache serves clearly more of the prompt tokens in a later window than in an earlier."""
    old, new = before.prefix_hit_rate, after.prefix_hit_rate
    return old is not None and new is not None and new > old + thresholds.prefix_hit_loss


def check_prefix_cache(
    baseline: Counters, candidate: Counters, ttft: Interval | None, thresholds: Thresholds, *, alone: bool
) -> Iterator[Finding]:
    """Yield what prefix caches and first tokens lost or gained beside the baseline.

    Args:
        ttft: ratio of the times to the first token.
        alone: whether one request is in flight at a time.
    """
    before, after = baseline.prefix_hit_rate, candidate.prefix_hit_rate
    lost = 0.0 if before is None or after is None else before - after
    rates = ""
    if before is not None and after is not None:
        rates = f"served {after:.0%} of the prompt tokens, the baseline's {before:.0%}"
    if lost > thresholds.prefix_hit_loss:
        fix = "A drafter's weights and KV leave fewer blocks for the cache, and some methods drop its last block."
        yield error("prefix-hits-lost", f"the prefix cache {rates}.", fix)
    if -lost > thresholds.prefix_hit_loss:
        fix = "Speculation cannot find more: its server has seen these prompts before. Restart both servers."
        yield error("prefix-hits-gained", f"the prefix cache {rates}: the prompts were warm on one side.", fix)
    if ttft is not None and ttft.low > 1 + thresholds.ttft_damage:
        text = f"the first token comes {ttft.value:.2f}x as late as the baseline's ({ttft.low:.2f}-{ttft.high:.2f})"
        yield warning("ttft-damaged", f"{text}.", _why_late(alone=alone, lost_hits=lost > thresholds.prefix_hit_loss))


def _why_late(*, alone: bool, lost_hits: bool) -> str:
    if lost_hits:
        return "First cause to look at: the prefix cache above."
    if alone:
        return (
            "With one stream the usual causes are a drafter that reads the prompt as well, and a method for which the "
            "engine turns asynchronous scheduling off."
        )
    return (
        "Under load the usual cause is that each step verifies k + 1 tokens a sequence, so that a new prompt waits "
        "longer for its part of the step: try a smaller k there, or a larger max_num_batched_tokens."
    )
