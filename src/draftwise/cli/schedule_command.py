"""`draftwise schedule`: chooses how many tokens to draft: one k, or a schedule where your release makes it pay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from draftwise.cli._options import options
from draftwise.cli._results import show
from draftwise.verbs.schedule import FORMATS, WORTH_A_CHANGE, ScheduleRequest, ScheduleResult, ScheduleRow
from draftwise.verbs.schedule import schedule as run_schedule


@click.command()
@click.argument("profile", type=click.Path(path_type=Path))
@click.argument("calibration", type=click.Path(path_type=Path))
@options("schedule", of=ScheduleRequest, format=click.Choice(tuple(FORMATS)))
def schedule(as_json: bool, **given: Any) -> None:
    """Choose how many tokens to draft, from PROFILE (of `replay`) and CALIBRATION (of `calibrate`)."""
    show(run_schedule.run(ScheduleRequest(**given)), render, as_json=as_json)


def render(console: Console, result: ScheduleResult) -> None:
    """Print the best fixed k of each server, and the schedule or the reason for its absence."""
    for row in result.rows:
        for line in _describe(row, result.vllm):
            console.print(line, soft_wrap=True, markup=False, highlight=False)


def _describe(row: ScheduleRow, vllm: str) -> Iterator[str]:
    heading = f"{row.setting} [{row.group}]" if row.group else row.setting
    if row.fixed_speedup <= 1:
        yield f"{heading}: no k pays over these loads; the best, {row.fixed_k}, makes {row.fixed_speedup:.2f}x."
        return
    yield f"{heading}: num_speculative_tokens {row.fixed_k} for every load: {row.fixed_speedup:.2f}x in the mean."
    gain, ideal = 100 * (row.schedule_gain - 1), 100 * (row.ideal_gain - 1)
    judged = row.advice.judged
    if row.scheduled is not None:
        yield f"  A schedule gains {gain:.1f} % more:"
        yield f"  {row.scheduled}"
    elif judged is not None and not judged.is_honoured:
        yield f"  vLLM {vllm} does not follow a schedule here; one that is followed would gain {ideal:.1f} %."
    elif judged is not None and judged.drafts_in_full:
        yield f"  vLLM {vllm} drafts in full whatever a schedule says: it would change the speed by {gain:+.1f} %."
    elif row.advice.choice.is_schedule_worth_it:
        yield f"  vLLM {vllm} loses graphs by a schedule; one that costs nothing else would gain {gain:.1f} %."
    else:
        yield f"  One k is enough: a schedule would gain {gain:.1f} %, less than {100 * (WORTH_A_CHANGE - 1):.0f} %."
    if judged is not None and row.ideal_gain >= WORTH_A_CHANGE:
        yield from (f"  {remark}" for remark in row.remarks)
    yield "  Not measured: make it a candidate of `draftwise decide`."
