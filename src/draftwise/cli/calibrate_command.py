"""`draftwise calibrate`: measures how long the steps of servers last, in a few minutes of load."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from draftwise.cli._console import open_console, show_table
from draftwise.cli._group import BEGAN
from draftwise.cli._options import PanelCommand, options
from draftwise.cli._session import (
    RENAMED,
    WHOLE_NUMBERS,
    end_measurement,
    refuse_others,
    run_measurement,
)
from draftwise.verbs.calibrate import CalibratedCosts, CalibrateRequest, CalibrateResult
from draftwise.verbs.calibrate import calibrate as run_calibrate
from draftwise.verbs.measuring import ENGINES, get_resume_command

_OF_REST = frozenset({"resume", "headers", "key_variables", "minutes", "model", "out", "candidates", "as_json"})
"""Parameters that `--resume` takes: the others are those of the run as it was planned."""
_LARGE_ERROR = 0.10
"""Error of a point that the others fail to predict."""


@click.command(cls=PanelCommand, renamed=RENAMED,
               )  # fmt: skip
@click.argument("target", required=False)
@options("calibrate", of=CalibrateRequest, engine=click.Choice(ENGINES), concurrency=WHOLE_NUMBERS)
@click.pass_context
def calibrate(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
    """Measure how long your servers' decoding steps take, as input for `draftwise forecast`."""
    if given["resume"] is not None and given["from_run"] is None:
        refuse_others(ctx, _OF_REST)
        given["workloads"] = ()  # a default of draftwise.toml: the run has its own
    result, failure = run_measurement(run_calibrate, CalibrateRequest(**given, began_s=ctx.meta.get(BEGAN)))
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=1))
    else:
        render(open_console(stderr=False), result)
    click.echo(f"\nCalibration: {given['out']}; raw readings: {result.directory}", err=True)
    if not result.is_finished:
        click.echo(
            f"Unfinished: go on with: {get_resume_command('calibrate', result.directory, given['out'])}", err=True
        )
    end_measurement(result, failure)


def render(console: Console, result: CalibrateResult) -> None:
    """Print step times by server and load, and how well the points predict one another."""
    calibration, costs = result.calibration, CalibratedCosts(result.calibration)
    tell = partial(console.print, soft_wrap=True, markup=False, highlight=False)
    loads = list(dict.fromkeys(point.load for point in calibration.points))
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("ms a step")
    for load in loads:
        table.add_column(load, justify="right")
    for setting in calibration.settings:
        pure = [point for point in calibration.points_of(setting.name) if not point.prefill_tokens]
        table.add_row(setting.name, *(_format_range([p.step_ms for p in pure if p.load == load]) for load in loads))
    show_table(console, table)
    median, p90 = 100 * costs.left_out_error(), 100 * costs.left_out_error(0.9)
    tell(f"Points predicted from the others: off by {median:.1f} % in the median, {p90:.1f} % at the 90th percentile.")
    for line in _list_large(costs):
        tell(line)


def _format_range(values: Sequence[float]) -> str:
    """Return the times of a step on different text: more is drafted on some."""
    if not values:
        return "-"
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low}-{high}"


def _list_large(costs: CalibratedCosts) -> Sequence[str]:
    return [
        f"{each.point.setting} at {each.point.load}: {each.point.step_ms:.2f} ms measured, {each.predicted_ms:.2f} ms "
        "predicted: this server is known only where it was measured."
        for each in costs.left_out
        if abs(each.error) > _LARGE_ERROR and not each.point.low <= each.predicted_ms <= each.point.high
    ]
