"""Whether a candidate drafts better for prompts that it has answered before: the cross-request cache effect."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean, stdev

from draftwise.core import Answer
from draftwise.decide.comparison.acceptance import count_steps
from draftwise.decide.comparison.cell import Cell, Unit, find_difference
from draftwise.decide.thresholds import Thresholds
from draftwise.statistics import student_quantile

__all__ = ["Split", "has_cache_effect", "list_answers", "measure_growth", "shows_gain", "split_by_first"]

_CHANCE = 0.001
"""Chance of seeing growth where there is none; acceptance varies by itself at a temperature, or when synthetic."""
Split = tuple[Answer, list[Answer]]
"""The first answer to a prompt, which no cache could help, and later ones, which one could."""


def has_cache_effect(cell: Cell, thresholds: Thresholds) -> bool:
    """Return whether the candidate drafts better for prompts it has answered in an earlier repetition.

    Repeating a prompt then measures that cache and not the method: a global suffix tree, for one, holds the
    whole answer the second time. At temperature 0, prompts whose answer changes between repetitions are left out:
    other text drafts better or worse for reasons of its own.
    """
    first = min(cell.repetitions, default=0)
    splits = split_by_first(list_answers(cell), lambda answer: answer.repeat > first)
    return shows_gain(splits, cell, thresholds.memory)


def list_answers(cell: Cell) -> list[Answer]:
    """Return all that the candidate answered in a cell, requests that only kept the load up as well."""
    turns = (turn.turn for turn in cell.turns if turn.arm == cell.candidate)
    return [answer for turn in turns for answer in cell.answers_by_turn[turn]]


def split_by_first(answers: Iterable[Answer], is_of_interest: Callable[[Answer], bool]) -> dict[Unit, Split]:
    """Return, by prompt, its first answer and the later ones of interest, for prompts that have both.

    Answers that were cut off early (ramp-up of a load) filled and used little of a cache, and are left out.
    """
    by_unit: dict[Unit, list[Answer]] = {}
    for answer in answers:
        if answer.error is None:
            by_unit.setdefault((answer.workload, answer.prompt_id), []).append(answer)
    splits = {}
    for unit, attempts in by_unit.items():
        longest = max(answer.timing.num_tokens for answer in attempts)
        long = (answer for answer in attempts if answer.timing.num_tokens >= longest / 2)
        first, *later = sorted(long, key=lambda answer: (answer.turn, answer.timing.sent))
        if known := [answer for answer in later if is_of_interest(answer)]:
            splits[unit] = (first, known)
    return splits


def shows_gain(splits: Mapping[Unit, Split], cell: Cell, least: float) -> bool:
    """Return whether prompts gain more than `least` from coming back, all in all and not by chance (t test)."""
    if cell.condition.temperature == 0:
        splits = {unit: split for unit, split in splits.items() if not _changes(unit, split)}
    gains = _list_gains(splits)
    if len(gains) < 2 or fmean(gains) <= math.log1p(least):
        return False
    spread = stdev(gains) / math.sqrt(len(gains))
    return fmean(gains) > spread * student_quantile(1 - _CHANCE, len(gains) - 1)


def measure_growth(splits: Mapping[Unit, Split]) -> float:
    """Return the tokens per step of prompts that come back over those of the first time (geometric mean)."""
    return math.exp(fmean(_list_gains(splits)))


def _changes(unit: Unit, split: Split) -> bool:
    """Return whether whole answers differ (one that was cut off says nothing)."""
    whole = [answer for answer in (split[0], *split[1]) if answer.measured]
    return any(find_difference(unit, whole[0], other) is not None for other in whole[1:])


def _list_gains(splits: Mapping[Unit, Split]) -> list[float]:
    """Return the logarithm of what each prompt gained in tokens per step by coming back."""
    steps = ((_tokens_per_step([first]), _tokens_per_step(later)) for first, later in splits.values())
    return [math.log(after / before) for before, after in steps if before and after]


def _tokens_per_step(answers: Iterable[Answer]) -> float | None:
    """Return the tokens per decoding step of some answers, None without a step."""
    counts = [count_steps(answer) for answer in answers]
    steps = sum(steps for steps, _ in counts)
    return sum(tokens for _, tokens in counts) / steps if steps else None
