"""Whether a server drafts better for prompts it has answered before, and what that leaves to compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from statistics import fmean, stdev

from draftwise.core import Answer, Finding, Run
from draftwise.decide.comparison.cell import Cell, Unit
from draftwise.decide.comparison.differences import find_difference
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.finding import error
from draftwise.decide.validity.readings import step_tokens
from draftwise.statistics import student_quantile

__all__ = ["check_memory", "has_memory"]

_CHANCE = 0.001
"""Chance of seeing growth where there is none; acceptance wavers by itself at a temperature, or when it is drawn."""
Split = tuple[Answer, list[Answer]]
"""The first answer to a prompt, which could hold no memory, and later ones, which could."""


def has_memory(cell: Cell, thresholds: Thresholds) -> bool:
    """Return whether the candidate drafts better for prompts it has answered in an earlier pass.

    Repeating a prompt then measures that memory and not the method: a global suffix tree, for one, holds the
    whole answer the second time. At temperature 0, prompts whose answer wavers from pass to pass are left out: other
    text drafts better or worse for reasons of its own.
    """
    first = min(cell.passes(cell.candidate), default=0)
    return _remembers(_split(_asked(cell), lambda answer: answer.repeat > first), cell, thresholds.memory)


def check_memory(run: Run, cell: Cell, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield where a candidate that remembers was asked what it had answered under another load, or in the same turn.

    No pass is left then that shows it without that memory, and the comparison says nothing about new prompts.
    """
    mine, earlier = _asked(cell), _earlier(run, cell)
    if earlier:
        begin = min(answer.turn for answer in mine)
        splits = _split([*earlier, *mine], lambda answer: answer.turn >= begin)
        if _remembers(splits, cell, thresholds.warmed):
            text = f"it remembers answers ({_growth(splits):.2f}x the tokens per step when prompts come back), and had "
            fix = "Measure one load per run with it, or give each load prompts of its own."
            where = earlier[0].condition
            yield error("warmed-by-other-loads", f"{text}answered these prompts under {where} before.", fix)
    first = min(cell.passes(cell.candidate), default=0)
    splits = _split((answer for answer in mine if answer.repeat == first), lambda answer: answer.measured)
    if _remembers(splits, cell, thresholds.warmed):
        text = f"prompts are sent several times within a turn, and it remembers: {_growth(splits):.2f}x the tokens per "
        yield error("warmed-within-a-turn", f"{text}step from the second time on.", "Give the workload more prompts.")


def _asked(cell: Cell) -> list[Answer]:
    """Return all that the candidate answered in a cell, requests that only kept the load up as well."""
    turns = (window.turn for window in cell.windows if window.arm == cell.candidate)
    return [answer for turn in turns for answer in cell.turns[turn]]


def _earlier(run: Run, cell: Cell) -> list[Answer]:
    """Return what the candidate had answered of these workloads, at this temperature, under loads before this one."""
    begin = min((window.turn for window in cell.windows if window.arm == cell.candidate), default=0)
    alike = {each.label for each in run.conditions if each.temperature == cell.condition.temperature}
    return [
        answer
        for answer in run.answers
        if answer.arm == cell.candidate
        and answer.turn < begin
        and answer.workload in cell.workloads
        and answer.condition in alike - {cell.condition.label}
    ]


def _split(answers: Iterable[Answer], is_of_interest: Callable[[Answer], bool]) -> dict[Unit, Split]:
    """Return, by prompt, its first answer and the later ones of interest, for prompts that have both.

    Answers that were cut off early (lead-ins of a load) taught little and show little, and are left out.
    """
    by_unit: dict[Unit, list[Answer]] = {}
    for answer in answers:
        if answer.error is None:
            by_unit.setdefault((answer.workload, answer.prompt_id), []).append(answer)
    splits = {}
    for unit, askings in by_unit.items():
        longest = max(answer.timing.num_tokens for answer in askings)
        long = (answer for answer in askings if answer.timing.num_tokens >= longest / 2)
        first, *later = sorted(long, key=lambda answer: (answer.turn, answer.timing.sent))
        if known := [answer for answer in later if is_of_interest(answer)]:
            splits[unit] = (first, known)
    return splits


def _remembers(splits: dict[Unit, Split], cell: Cell, least: float) -> bool:
    """Return whether prompts gain more than `least` from coming back, all in all and not by chance (t test)."""
    if cell.condition.temperature == 0:
        splits = {unit: split for unit, split in splits.items() if not _wavers(unit, split)}
    gains = _gains(splits)
    if len(gains) < 2 or fmean(gains) <= math.log1p(least):
        return False
    spread = stdev(gains) / math.sqrt(len(gains))
    return fmean(gains) > spread * student_quantile(1 - _CHANCE, len(gains) - 1)


def _wavers(unit: Unit, split: Split) -> bool:
    """Return whether whole answers differ (one that was cut off says nothing)."""
    whole = [answer for answer in (split[0], *split[1]) if answer.measured]
    return any(find_difference(unit, whole[0], other) is not None for other in whole[1:])


def _gains(splits: dict[Unit, Split]) -> list[float]:
    """Return the logarithm of what each prompt gained in tokens per step by coming back."""
    steps = ((step_tokens([new]), step_tokens(old)) for new, old in splits.values())
    return [math.log(old / new) for new, old in steps if new and old]


def _growth(splits: dict[Unit, Split]) -> float:
    return math.exp(fmean(_gains(splits)))
