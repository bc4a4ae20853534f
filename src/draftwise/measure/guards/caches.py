"""Whether caches helped one arm more than the other: prefix caches, and servers that remember their answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftwise.core import Answer, Counters, Finding, Interval, Run, Window
from draftwise.measure.cell import Cell
from draftwise.measure.guards.finding import error, warning
from draftwise.measure.guards.readings import step_tokens
from draftwise.measure.outputs import find_difference
from draftwise.measure.thresholds import Thresholds

__all__ = ["check_memory", "check_prefix_cache", "finds_prompts_cached", "has_memory"]


def has_memory(cell: Cell, thresholds: Thresholds) -> bool:
    """Return whether the candidate drafts better for prompts it has answered before.

    Repeating a prompt then measures that memory and not the method: a global suffix tree, for one, holds the
    whole answer the second time. Prompts whose answer wavers from pass to pass are left out: other text drafts
    better or worse for reasons of its own.
    """
    first, later = _in_time(_without_wavering(cell))
    for workload in cell.workloads:
        new, old = (each.counters(cell.candidate, workload=workload).tokens_per_step for each in (first, later))
        if new and old and old > new * (1 + thresholds.memory):
            return True
    return False


def _without_wavering(cell: Cell) -> Cell:
    wavering: set[int] = set()
    for unit in cell.units:
        first, *later = cell.outputs(cell.candidate, unit)
        if any(find_difference(unit, first, answer) is not None for answer in later):
            wavering |= {answer.turn for answer in (first, *later)}
    return cell.without(frozenset(wavering))


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


def check_memory(run: Run, cell: Cell, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield where a candidate that remembers was asked what it had answered under another load, or in the same turn.

    No pass is left then that shows it without that memory, and the comparison says nothing about new prompts.
    """
    mine = [window for window in cell.windows if window.arm == cell.candidate]
    if not mine:
        return
    begin, label = min(window.turn for window in mine), cell.condition.label
    others = [w for w in run.windows if w.arm == cell.candidate and w.workload in cell.workloads]
    before = [window for window in others if window.turn < begin and window.condition != label]
    if before and (grown := _growth_after(others)) is not None and grown > 1 + thresholds.memory:
        text = (
            f"it remembers answers ({grown:.2f}x the tokens per step when prompts come back), and had answered these "
            f"prompts under {before[0].condition} before"
        )
        fix = "Measure one load per run with it, or give each load prompts of its own."
        yield error("warmed-by-other-loads", f"{text}.", fix)
    copies = _growth_over_copies(cell.only(cell.passes(cell.candidate)[:1]).requests(cell.candidate))
    if copies is not None and copies > 1 + thresholds.memory:
        text = f"prompts are sent several times within a turn, and it remembers: {copies:.2f}x the tokens per step"
        yield error("warmed-within-a-turn", f"{text} from the second time on.", "Give the workload more prompts.")


def _growth_after(windows: Sequence[Window]) -> float | None:
    """Return tokens per step of all turns after the first pass under the first condition, over those of that pass."""
    start = min(windows, key=lambda window: window.turn)
    cold = [w for w in windows if (w.condition, w.repeat) == (start.condition, start.repeat)]
    warm = [w for w in windows if (w.condition, w.repeat) != (start.condition, start.repeat)]
    new, old = (sum((w.counters for w in each), Counters(generation_tokens=0)).tokens_per_step for each in (cold, warm))
    return old / new if new and old else None


def _growth_over_copies(answers: Sequence[Answer]) -> float | None:
    """Return tokens per chunk of repeated prompts over those of first sendings, for the prompts that were repeated."""
    good = [answer for answer in answers if answer.error is None]
    again = {(answer.workload, answer.prompt_id) for answer in good if answer.copy > 0}
    repeated = [answer for answer in good if (answer.workload, answer.prompt_id) in again]
    new = step_tokens(answer for answer in repeated if answer.copy == 0)
    old = step_tokens(answer for answer in repeated if answer.copy > 0)
    return old / new if new and old else None
