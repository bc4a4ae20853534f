"""`draftwise forecast`: predicts the speed-up of speculation under unmeasured loads."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from draftwise.cli._console import narrow, show_table
from draftwise.cli._findings import render_findings
from draftwise.cli._options import ParsedOption, options
from draftwise.cli._results import show
from draftwise.core import Calibration, Forecast, ForecastCell, ForecastCrossover, Outlook
from draftwise.verbs.forecast import ForecastRequest, ForecastResult, HeldRow
from draftwise.verbs.forecast import forecast as run_forecast
from draftwise.verbs.loads import read_range

_LOADS = ParsedOption(read_range, "loads")
_OWN_K = re.compile(r" k=\d+$")
"""The largest k, by which servers are named that have no other name."""
_MOST_SHOWN = 8
"""Loads in the terminal's table; all are in the JSON."""


@click.command()
@click.argument("profile", type=click.Path(path_type=Path))
@click.argument("calibration", type=click.Path(path_type=Path))
@options(
    "forecast",
    of=ForecastRequest,
    concurrency=_LOADS,
    rates=_LOADS,
    prompt_tokens=click.FloatRange(0),
    output_tokens=click.FloatRange(1),
)
def forecast(as_json: bool, **given: Any) -> None:
    """Predict the speed-up of speculation from PROFILE (of `replay`) and CALIBRATION (of `calibrate`)."""
    show(run_forecast.run(ForecastRequest(**given)), render, as_json=as_json)


def render(console: Console, result: ForecastResult) -> None:
    """Print speed-ups by load, what to run, and what that rests on; or forecasts next to what was measured."""
    if result.made is None:
        _show_held(console, result)
        return
    made, tell = result.made, partial(console.print, soft_wrap=True, markup=False, highlight=False)
    rows = [each for each in made.cells if each.group == result.group]
    for axis in dict.fromkeys(each.axis for each in rows):
        mine = [each for each in rows if each.axis == axis]
        ends = [each for each in made.crossovers if each.axis == axis and each.group == result.group]
        table = _make_table(mine, ends)
        show_table(console, *narrow(table, *(str(each.header) for each in table.columns[2:-2:2]),
                                    *(str(each.header) for each in table.columns[3:-2:2])))  # fmt: skip
        for line in (*_advise(mine, ends, result.calibration), *_keep_promise(mine, result.slo_tpot_ms)):
            tell(line)
    if made.simulated:
        show_table(console, _tabulate_simulated(made))
    tell(
        f"Requests of {made.prompt_tokens:.0f} tokens with answers of {made.output_tokens:.0f}; (±) is half of the "
        "90 % interval."
    )
    if made.findings:
        console.print(render_findings(made.findings))


def _make_table(rows: Sequence[ForecastCell], ends: Sequence[ForecastCrossover]) -> Table:
    """Return the speed-up of each server at its best k, by load, and the load from which it stops paying."""
    loads = _choose_shown(sorted({each.load for each in rows}))
    axis = rows[0].axis
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("in flight" if axis == "concurrency" else "requests/s")
    for load in loads:
        table.add_column(f"{load:g}", justify="right")
    table.add_column("stops paying at", justify="right")
    for setting, temperature in dict.fromkeys((each.setting, each.temperature) for each in rows):
        mine = [each for each in rows if (each.setting, each.temperature) == (setting, temperature)]
        k = _find_best_k(mine)
        at = {each.load: each for each in mine if each.k == k}
        end = next((e for e in ends if (e.setting, e.k, e.temperature) == (setting, k, temperature)), None)
        name = _name(setting, k) + (f" T={temperature:g}" if temperature else "")
        table.add_row(name, *(_format(at.get(load)) for load in loads), _format_end(end))
    return table


def _tabulate_simulated(made: Forecast) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("simulated", "load", "TTFT P50", "P90", "P99 ms", "TPOT P50", "P90", "P99 ms", "sent back"):
        table.add_column(name, justify="left" if name in ("simulated", "load") else "right")
    for each in made.simulated:
        name = _name(each.setting, each.k) if each.k else "no speculation"
        times = (f"{value:.3g}" for value in (*each.ttft_ms, *each.tpot_ms))
        unit = "in flight" if each.axis == "concurrency" else "/s"
        table.add_row(name, f"{each.load:g} {unit}", *times, f"{each.preemptions}")
    return table


def _name(setting: str, k: int) -> str:
    """Return a server's name with another k."""
    return f"{_OWN_K.sub('', setting)} k={k}"


def _choose_shown(loads: Sequence[float]) -> Sequence[float]:
    every = -(-len(loads) // _MOST_SHOWN)
    return loads[::every]


def _find_best_k(rows: Sequence[ForecastCell]) -> int:
    sums: dict[int, list[float]] = {}
    for each in rows:
        sums.setdefault(each.k, []).append(math.log(each.speedup.value))
    return max(sums, key=lambda k: (len(sums[k]), sum(sums[k])))


def _format(row: ForecastCell | None) -> str:
    if row is None:
        return "-"
    return f"{row.speedup.value:.2f} (±{(row.speedup.high - row.speedup.low) / 2:.2f})"


def _format_end(end: ForecastCrossover | None) -> str:
    if end is None or (end.value is None and end.low > 0):
        return "beyond these"
    if end.value is None:
        return "never pays"
    high = "more" if math.isinf(end.high) else f"{end.high:.0f}"
    return f"{end.value:.0f} ({end.low:.0f}-{high})"


def _advise(rows: Sequence[ForecastCell], ends: Sequence[ForecastCrossover], calibration: Calibration) -> Iterator[str]:
    """Yield what to run up to which load, and the command that settles what is too close to say."""
    loads = sorted({each.load for each in rows})
    unit = "in flight" if rows[0].axis == "concurrency" else "requests a second"
    best = {load: max((e for e in rows if e.load == load), key=lambda e: e.speedup.value) for load in loads}
    sure = [load for load in loads if best[load].verdict is Outlook.PAYS]
    close = [load for load in loads if best[load].verdict is Outlook.TOO_CLOSE]
    if sure:
        lead = best[sure[0]]
        same = [load for load in sure if (best[load].setting, best[load].k) == (lead.setting, lead.k)]
        yield f"Run {_name(lead.setting, lead.k)} up to {same[-1]:g} {unit}."
        for load in sure:
            if load > same[-1] and (found := best[load]):
                yield f"At {load:g}, {_name(found.setting, found.k)} is expected to be faster."
    else:
        yield f"No candidate surely pays at {loads[0]:g} to {loads[-1]:g} {unit}."
    if close:
        yield f"At {', '.join(f'{load:g}' for load in close)} {unit} it is too close to say. This settles it:"
        yield f"  {_write_decide(best[close[0]], close, ends, calibration)}"


def _write_decide(
    row: ForecastCell, close: Sequence[float], ends: Sequence[ForecastCrossover], calibration: Calibration
) -> str:
    """Return the command that measures around a crossover, or where the forecast is not sure."""
    setting = next(each for each in calibration.settings if each.name == row.setting)
    assert setting.spec is not None
    spec = replace(setting.spec, num_speculative_tokens=row.k)
    end = next((e for e in ends if (e.setting, e.k) == (row.setting, row.k) and e.value is not None), None)
    found = [end.low, end.value or 0.0, end.high] if end is not None else list(close)
    loads = sorted({max(1, round(load)) for load in found if math.isfinite(load)})
    option = "--concurrency" if row.axis == "concurrency" else "--rate"
    words = ["draftwise", "decide", calibration.target]
    words += ["--engine", "vllm"] if calibration.engine == "vllm" else []
    words += ["--candidate", spec.to_json(), option, ",".join(map(str, loads))]
    return shlex.join(words)


def _keep_promise(rows: Sequence[ForecastCell], slo_tpot_ms: float | None) -> Iterator[str]:
    """Yield up to which load a promised time per output token is kept, with each server and without speculation."""
    if slo_tpot_ms is None:
        return
    kept: dict[str, float] = {}
    best = {name: _find_best_k([each for each in rows if each.setting == name]) for name in {e.setting for e in rows}}
    for each in sorted((each for each in rows if each.k == best[each.setting]), key=lambda row: row.load):
        times = ((_name(each.setting, each.k), each.tpot_ms), ("no speculation", each.plain_tpot_ms))
        for name, tpot_ms in times:
            kept[name] = each.load if tpot_ms <= slo_tpot_ms else kept.get(name, 0.0)
    for name, load in sorted(kept.items(), key=lambda item: -item[1]):
        upto = f"up to {load:g}" if load else "under none of these loads"
        yield f"{slo_tpot_ms:g} ms a token: {name} {upto}."


def _show_held(console: Console, result: ForecastResult) -> None:
    held, tell = result.held, partial(console.print, soft_wrap=True, markup=False, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    numbers = ("forecast", "measured", "error", "of it acceptance", "steps")
    for name in ("workload", "load", "candidate", *numbers):
        table.add_column(name, justify="right" if name in numbers else "left")
    for each in held:
        measured = f"{each.measured:.2f} ({each.measured_low:.2f}-{each.measured_high:.2f})"
        parts = ["-" if part is None else f"{100 * part:+.1f} %" for part in (each.of_acceptance, each.of_steps)]
        row = (each.workload, each.load, each.setting, f"{each.predicted:.2f}", measured, f"{100 * each.error:+.1f} %")
        table.add_row(*row, *parts)
    show_table(console, table)
    for each in held:
        where = f"{each.workload}, {each.load}, {each.setting}"
        if not each.is_inside:
            tell(f"{where}: {'; '.join(_explain(each))}.")
        if each.not_kept is not None:
            tell(f"{where}: not kept, because {each.not_kept}.")
    like = [each for each in held if each.not_kept is None]
    if errors := sorted(abs(each.error) for each in like):
        inside = sum(each.is_inside for each in like)
        tell(
            f"Off by {100 * median(errors):.1f} % in the median, at most {100 * errors[-1]:.1f} %; "
            f"{inside} of {len(like)} measured ratios lie in the forecast's 90 % interval. "
            f"The next forecast with {result.file or 'this calibration'} takes these errors into account."
        )


def _explain(held: HeldRow) -> Iterator[str]:
    """Yield what the forecast of a row took each part to be, and what was measured of it."""
    parts = (
        ("tokens per step", held.replayed_tokens_per_step, held.counted_tokens_per_step, ""),
        ("the candidate's step", *held.step_ms, " ms"),
        ("the baseline's step", *held.plain_step_ms, " ms"),
    )
    for name, forecast, measured, unit in parts:
        told = "not measured" if measured is None else f"measured {measured:.2f}{unit}"
        yield f"{name} forecast {forecast:.2f}{unit}, {told}"
