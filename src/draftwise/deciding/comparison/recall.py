"""Measures how much a candidate gains from prompts that it answered before, and finds the blocks without them.

A server that may remember answers (`RunPlan.remembering`) is assumed to do so until an equivalence test shows that
repeated prompts gain nothing: a gain not seen proves nothing, least of all with few prompts. A server that cannot
remember is trusted until a gain is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev

from draftwise.core import Answer, Run, TurnRecord
from draftwise.core.grouping import group_by
from draftwise.deciding.comparison.cell import Cell, Unit, find_difference
from draftwise.deciding.thresholds import Thresholds
from draftwise.statistics import FEWEST_PROMPTS, shows_equivalence, student_quantile

_CHANCE = 0.001
"""Chance of a false sign of growth: acceptance varies by itself above temperature 0 or if synthetic."""
Split = tuple[Answer, list[Answer]]
"""The first answer to a prompt, which no cache can help, and later ones, which a cache can."""


class Recall(StrEnum):
    """Whether a candidate gains from earlier answers."""

    NONE = "none"
    """It cannot remember and shows no gain, or it was shown to gain nothing."""
    PRESUMED = "presumed"
    """It may remember, and it was not shown to gain nothing."""
    SHOWN = "shown"
    """Repeated prompts gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBasis:
    """The requests that a cell's numbers rest on, for a candidate that may remember."""

    recall: Recall
    cell: Cell
    """If it may gain from earlier answers: the paired blocks with only new prompts. Without such blocks: the first
    repetition if a gain is shown, else the whole cell."""
    repeated: Cell | None
    """The other paired blocks; None without any."""
    is_new: bool
    """Whether no number can rest on remembered answers."""


def divide_cell(run: Run, cell: Cell, thresholds: Thresholds) -> CellBasis:
    """Return the requests that a cell's numbers rest on. Both arms leave out the same ones."""
    recall = _find_recall(run, cell, thresholds)
    if recall is Recall.NONE:
        return CellBasis(recall=recall, cell=cell, repeated=None, is_new=True)
    turns = _find_new_turns(run, cell.candidate)
    new = cell.keep_blocks(lambda turn: turn.turn in turns)
    if new.units:
        rest = cell.keep_blocks(lambda turn: turn.turn not in turns)
        return CellBasis(recall=recall, cell=new, repeated=rest if rest.turns else None, is_new=True)
    first = cell.keep_repetitions(cell.repetitions[:1])
    if recall is Recall.SHOWN and first.units:
        later = cell.keep_repetitions(cell.repetitions[1:])
        return CellBasis(recall=recall, cell=first, repeated=later, is_new=False)
    return CellBasis(recall=recall, cell=cell, repeated=None, is_new=False)


def _find_recall(run: Run, cell: Cell, thresholds: Thresholds) -> Recall:
    first = min(cell.repetitions, default=0)
    if shows_gain(split_by_first(list_answers(cell), lambda answer: answer.repeat > first), cell, thresholds.memory):
        return Recall.SHOWN
    if cell.candidate not in run.plan.remembering or _shows_none(run, cell, thresholds):
        return Recall.NONE
    return Recall.PRESUMED


def _shows_none(run: Run, cell: Cell, thresholds: Thresholds) -> bool:
    """Return whether prompts are shown to gain nothing by coming back: in speed, and where known in tokens per step."""
    mine = [answer for answer in run.answers if answer.arm == cell.candidate and answer.workload in cell.workloads]
    splits = _leave_out_changed(split_by_first(mine), cell)
    gains = [_list_speed_gains(cell, splits), *([steps] if (steps := _list_gains(splits)) else [])]
    margin, alpha = math.log1p(thresholds.memory), thresholds.memory_alpha
    return all(len(each) >= FEWEST_PROMPTS and shows_equivalence(each, margin, alpha) for each in gains)


def _list_speed_gains(cell: Cell, splits: Mapping[Unit, Split]) -> list[float]:
    """Return the logarithm of each prompt's gain in speed over the baseline's, after its first answer of all.

    Prompts that were first answered under another load tell nothing: there the speed is another one.
    """
    ratios: dict[Unit, list[float]] = {}
    known: set[Unit] = set()
    for pair in cell.paired:
        ours, theirs = pair.candidate.timing.tokens_per_s, pair.baseline.timing.tokens_per_s
        if ours and theirs and pair.candidate.error is None and pair.baseline.error is None:
            if pair.unit in splits and pair.candidate is splits[pair.unit][0]:
                known.add(pair.unit)
            ratios.setdefault(pair.unit, []).append(math.log(ours / theirs))
    return [fmean(later) - first for unit in known if (later := ratios[unit][1:]) and (first := ratios[unit][0])]


def _find_new_turns(run: Run, arm: str) -> set[int]:
    """Return the turns in which an arm was asked nothing for a measured request that it had been asked before.

    Turns that were set aside count as asked: their answers are gone, and their block tells which prompts it held.
    """
    lost = {(turn.workload, turn.condition, turn.block): turn.turn for turn in run.set_aside if turn.arm == arm}
    mine = sorted((each for each in run.answers if each.arm == arm), key=lambda each: (each.turn, each.timing.sent))
    asked: set[Unit] = set()
    repeating: set[int] = set()
    for answer in mine:
        unit = (answer.workload, answer.prompt_id)
        if answer.measured and unit in asked:
            repeating.add(answer.turn)
        asked.add(unit)

    def was_lost(turn: TurnRecord) -> bool:
        return lost.get((turn.workload, turn.condition, turn.block), turn.turn) < turn.turn

    return {turn.turn for turn in run.turns if turn.arm == arm and turn.turn not in repeating and not was_lost(turn)}


def list_answers(cell: Cell) -> list[Answer]:
    """Return all of the candidate's answers in a cell, including background requests."""
    turns = (turn.turn for turn in cell.turns if turn.arm == cell.candidate)
    return [answer for turn in turns for answer in cell.answers_by_turn[turn]]


def split_by_first(
    answers: Iterable[Answer], is_of_interest: Callable[[Answer], bool] = lambda _: True
) -> dict[Unit, Split]:
    """Return the first answer and the relevant later ones by prompt, for prompts with both.

    Leaves out answers cut off early (ramp-up of a load): they hardly fill or use a cache.
    """
    whole = (answer for answer in answers if answer.error is None)
    splits = {}
    for unit, attempts in group_by(lambda answer: (answer.workload, answer.prompt_id), whole).items():
        longest = max(answer.timing.num_tokens for answer in attempts)
        long = (answer for answer in attempts if answer.timing.num_tokens >= longest / 2)
        first, *later = sorted(long, key=lambda answer: (answer.turn, answer.timing.sent))
        if known := [answer for answer in later if is_of_interest(answer)]:
            splits[unit] = (first, known)
    return splits


def shows_gain(splits: Mapping[Unit, Split], cell: Cell, least: float) -> bool:
    """Return whether repeated prompts gain more than `least` on average, beyond chance (t test)."""
    gains = _list_gains(_leave_out_changed(splits, cell))
    if len(gains) < 2 or fmean(gains) <= math.log1p(least):
        return False
    spread = stdev(gains) / math.sqrt(len(gains))
    return fmean(gains) > spread * student_quantile(1 - _CHANCE, len(gains) - 1)


def measure_growth(splits: Mapping[Unit, Split]) -> float:
    """Return tokens per step of repeated prompts over those of their first answers (geometric mean)."""
    return math.exp(fmean(_list_gains(splits)))


def _leave_out_changed(splits: Mapping[Unit, Split], cell: Cell) -> Mapping[Unit, Split]:
    """Return the prompts whose answer stays the same, at temperature 0: other text drafts better or worse by itself."""
    if cell.condition.temperature > 0:
        return splits
    return {unit: split for unit, split in splits.items() if not _changes(unit, split)}


def _changes(unit: Unit, split: Split) -> bool:
    """Return whether whole answers differ (one that was cut off says nothing)."""
    whole = [answer for answer in (split[0], *split[1]) if answer.measured]
    return any(find_difference(unit, whole[0], other) is not None for other in whole[1:])


def _list_gains(splits: Mapping[Unit, Split]) -> list[float]:
    """Return the logarithm of what each prompt gained in tokens per step by coming back."""
    steps = ((_tokens_per_step([first]), _tokens_per_step(later)) for first, later in splits.values())
    return [math.log(after / before) for before, after in steps if before and after]


def _tokens_per_step(answers: Sequence[Answer]) -> float | None:
    """Return the tokens per decoding step of some answers, None without a step."""
    counts = [answer.steps for answer in answers]
    steps = sum(steps for steps, _ in counts)
    return sum(tokens for _, tokens in counts) / steps if steps else None
