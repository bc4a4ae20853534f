"""Whether prefix caches and first tokens are alike on both sides."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Finding, Interval
from draftwise.decide.comparison.cell import Cell
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.finding import error, warning

__all__ = ["check_prefix_cache", "finds_prompts_cached"]


def finds_prompts_cached(cell: Cell, thresholds: Thresholds) -> bool:
    """Return whether plain's prefix cache serves later passes with the prompts of the first one."""
    new, old = (each.counters(cell.plain).prefix_hit_rate for each in _in_time(cell))
    return new is not None and old is not None and old > new + thresholds.prefix_hit_loss


def _in_time(cell: Cell) -> tuple[Cell, Cell]:
    """Return the cell of the first pass and the cell of all later ones."""
    passes = cell.passes(cell.candidate)
    return cell.only(passes[:1]), cell.only(passes[1:])


def check_prefix_cache(cell: Cell, ttft: Interval | None, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield what prefix caches and first tokens lost or gained beside plain."""
    before, after = (cell.counters(arm).prefix_hit_rate for arm in (cell.plain, cell.candidate))
    lost = 0.0 if before is None or after is None else before - after
    rates = "" if before is None or after is None else f"served {after:.0%} of the prompt tokens, plain's {before:.0%}"
    if lost > thresholds.prefix_hit_loss:
        fix = "A drafter's weights and KV leave fewer pages for the cache, and some methods drop its last block."
        yield error("prefix-hits-lost", f"the prefix cache {rates}.", fix)
    if -lost > thresholds.prefix_hit_loss:
        fix = "Speculation cannot find more: its server has seen these prompts before. Restart both servers."
        yield error("prefix-hits-gained", f"the prefix cache {rates}: the prompts were warm on one side.", fix)
    if ttft is not None and ttft.low > 1 + thresholds.ttft_damage:
        text = f"the first token comes {ttft.value:.2f}x as late as plain's ({ttft.low:.2f}-{ttft.high:.2f})"
        yield warning("ttft-damaged", f"{text}.", _why_late(cell, lost > thresholds.prefix_hit_loss))


def _why_late(cell: Cell, lost_hits: bool) -> str:
    if lost_hits:
        return "First cause to look at: the prefix cache above."
    if cell.condition.concurrency == 1:
        return (
            "With one stream the usual causes are a drafter that reads the prompt as well, and a method for which the "
            "engine turns asynchronous scheduling off."
        )
    return (
        "Under load the usual cause is that each step verifies k + 1 tokens a sequence, so that a new prompt waits "
        "longer for its part of the step: try a smaller k there, or a larger max_num_batched_tokens."
    )
