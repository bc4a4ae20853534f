"""What is left to compare of a server that drafts better for prompts it has answered before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftwise.core import Answer, Finding, Run
from draftwise.decide.comparison.cache_effect import list_answers, measure_growth, shows_gain, split_by_first
from draftwise.decide.comparison.cell import Cell
from draftwise.decide.comparison.estimates import Estimates
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.finding import error, info

__all__ = ["check_cache_effect", "report_left_out"]


def check_cache_effect(run: Run, cell: Cell, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield where every measured answer may have been helped by an earlier answer to the same prompt.

    That is so where the candidate answered it under another load before, or earlier in the same turn. No repetition
    is left then that shows it without its cross-request cache, and the comparison says nothing about new prompts.
    """
    mine, earlier = list_answers(cell), _list_earlier(run, cell)
    if earlier:
        begin = min(answer.turn for answer in mine)
        splits = split_by_first([*earlier, *mine], lambda answer: answer.turn >= begin)
        if shows_gain(splits, cell, thresholds.warmed):
            growth = f"{measure_growth(splits):.2f}x the tokens per step when prompts come back"
            text = f"a cross-request cache helps it ({growth}), and it had answered these prompts under "
            text += f"{earlier[0].condition} before."
            fix = "Measure one load per run with it, or give each load prompts of its own."
            yield error("warmed-by-other-loads", text, fix)
    first = min(cell.repetitions, default=0)
    of_first: Sequence[Answer] = [answer for answer in mine if answer.repeat == first]
    splits = split_by_first(of_first, lambda answer: answer.measured)
    if shows_gain(splits, cell, thresholds.warmed):
        text = (
            "prompts are sent several times within a turn, and a cross-request cache helps it: "
            f"{measure_growth(splits):.2f}x the tokens per step from the second time on."
        )
        yield error("warmed-within-a-turn", text, "Give the workload more prompts.")


def report_left_out(estimates: Estimates) -> Iterator[Finding]:
    """Yield that the later repetitions were left out, where they were."""
    if estimates.repeated is None:
        return
    new, old = (each.sum_counters(each.candidate).tokens_per_step or 0 for each in (estimates.cell, estimates.repeated))
    warm = (
        "" if estimates.warm_speedup is None else f"; with every prompt known it would be {estimates.warm_speedup:.2f}x"
    )
    yield info(
        "repeated-prompts-warm-cache",
        f"a cross-request cache helps it: {old:.2f} tokens per step when prompts come back, {new:.2f} the first time. "
        f"Its numbers rest on the first repetition alone{warm}.",
    )


def _list_earlier(run: Run, cell: Cell) -> list[Answer]:
    """Return what the candidate had answered of these workloads, at this temperature, under loads before this one."""
    begin = min((turn.turn for turn in cell.turns if turn.arm == cell.candidate), default=0)
    alike = {each.label for each in run.conditions if each.temperature == cell.condition.temperature}
    return [
        answer
        for answer in run.answers
        if answer.arm == cell.candidate
        and answer.turn < begin
        and answer.workload in cell.workloads
        and answer.condition in alike - {cell.condition.label}
    ]
