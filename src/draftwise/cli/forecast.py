"""`draftwise forecast`: what speculation will be worth under loads that nobody measured yet."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import click
from rich.table import Table

from draftwise.cli._console import open_console, show_table
from draftwise.cli._findings import render_findings
from draftwise.core import (
    Calibration,
    Forecast,
    ForecastCell,
    ForecastCrossover,
    HeldAgainst,
    InvalidSetup,
    Outlook,
    Profile,
    Run,
    Severity,
)
from draftwise.plan.forecast.against import hold_against
from draftwise.plan.forecast.forecast import forecast as make_forecast
from draftwise.runs import RunDirectory
from draftwise.runs.documents import read_calibration, read_profile, write_document

__all__ = ["forecast"]

_LOADS = "1-128"
_RANGE = re.compile(r"(?P<first>[\d.]+)-(?P<last>[\d.]+)")
_OWN_K = re.compile(r" k=\d+$")
"""The largest k, by which servers are named that have no other name."""
_MOST_SHOWN = 8
"""Loads in the terminal's table; all are in the JSON."""


class Loads(click.ParamType):  # type: ignore[type-arg]
    """Numbers with commas between them, or a range, which is looked at in steps of a factor of two."""

    name = "loads"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Return the loads, each once, in their order."""
        if isinstance(value, tuple):
            return value
        try:
            found = _RANGE.fullmatch(value)
            numbers = _double(float(found["first"]), float(found["last"])) if found else map(float, value.split(","))
            loads = tuple(sorted(set(numbers)))
        except ValueError:
            self.fail(f"{value!r} is neither a list like 1,8,64 nor a range like 1-256.", param, ctx)
        if not loads or not all(math.isfinite(load) and load > 0 for load in loads):
            self.fail(f"{value!r}: loads are above 0, and a range ends above its beginning.", param, ctx)
        return loads


def _double(first: float, last: float) -> Iterator[float]:
    """Yield a range in steps of a factor of two, its end included; nothing for one that ends before it begins."""
    if not 0 < first <= last:
        return
    while first < last:
        yield first
        first *= 2
    yield last


@click.command(short_help="Predict speed-up by method, k and load from a replay and a calibration.")
@click.argument("profile", type=click.Path(path_type=Path))
@click.argument("calibration", type=click.Path(path_type=Path))
@click.option("--concurrency", type=Loads(), metavar="LOADS",
              help=f"Requests in flight: 1,8,64 or 1-256  [default: {_LOADS}, without --rate]")  # fmt: skip
@click.option("--rate", "rates", type=Loads(), metavar="LOADS", help="Requests a second: 1,2,5 or 1-40.")
@click.option("--traffic", metavar="SOURCE", help="Whose lengths count: a workload as `decide` takes it, e.g. a log.")
@click.option("--prompt-tokens", type=click.FloatRange(0), help="Mean  [default: the replayed log's median]")
@click.option("--output-tokens", type=click.FloatRange(1), help="Mean  [default: the replayed log's mean]")
@click.option("--group", metavar="NAME", help="Of the replayed log, to show instead of all requests.")
@click.option("--slo-tpot-ms", type=click.FloatRange(0, min_open=True), help="Promised time per output token.")
@click.option("--against", type=click.Path(path_type=Path), metavar="RUN",
              help="A run of `decide`: show forecast beside measurement, and keep the error for the next "
              "interval.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the forecast.")
@click.option("--json", "as_json", is_flag=True, help="Print the forecast as JSON.")
@click.pass_context
def forecast(ctx: click.Context, /, profile: Path, calibration: Path, against: Path | None, **given: Any) -> None:
    """Predict what speculation will be worth, from PROFILE (of `replay`) and CALIBRATION (of `calibrate`).

    Shows speed-up by load with 90 % intervals, the load from which each method stops paying, and what to run. Where
    an interval holds 1 it is too close to say, and the `decide` command that settles it is printed. The exit code is 1
    where a finding is an error, e.g. a load far beyond what was calibrated.

    \b
    Examples:
      draftwise forecast profile/ calibration.json --concurrency 1-256 --slo-tpot-ms 40
      draftwise forecast profile/ calibration.json --against runs/20261122-193000
    """
    acceptance, steps = read_profile(profile), read_calibration(calibration)
    if against is not None:
        _compare(acceptance, steps, calibration, RunDirectory(against).read(), as_json=given["as_json"])
        return
    made = _make(acceptance, steps, given)
    if given["out"] is not None:
        write_document(given["out"], made)
    if given["as_json"]:
        click.echo(json.dumps(made.to_dict(), indent=1))
    else:
        _show(made, steps, group=given["group"], slo_tpot_ms=given["slo_tpot_ms"])
    if any(each.severity is Severity.ERROR for each in made.findings):
        ctx.exit(1)


def _make(profile: Profile, calibration: Calibration, given: Mapping[str, Any]) -> Forecast:
    concurrency = given["concurrency"] or (() if given["rates"] else tuple(_double(1, 128)))
    prompt, output = given["prompt_tokens"], given["output_tokens"]
    if given["traffic"] is not None:
        lengths = _read_lengths(given["traffic"], calibration)
        prompt, output = prompt or lengths[0], output or lengths[1]
    return make_forecast(
        profile,
        calibration,
        concurrency=concurrency,
        rates=given["rates"] or (),
        prompt_tokens=prompt,
        output_tokens=output,
    )


def _read_lengths(source: str, calibration: Calibration) -> tuple[float, float]:
    """Return the mean tokens of prompts and answers of a workload."""
    from draftwise.workloads import find_tokens, load_workloads  # reads texts: not needed for most forecasts
    from draftwise.workloads.reshape import prompt_length

    tokenizer = Path(calibration.target)
    tokens = find_tokens(None, hint=tokenizer)
    prompts = [prompt for each in load_workloads(source, tokenizer=tokenizer) for prompt in each.prompts]
    if not prompts:
        raise InvalidSetup.because(
            "no-prompts", f"{source} has no requests.", where="--traffic", fix="Give a workload with requests."
        )
    lengths = [(prompt_length(prompt, tokens), prompt.max_tokens) for prompt in prompts]
    return fmean(prompt for prompt, _ in lengths), fmean(answer for _, answer in lengths)


def _show(made: Forecast, calibration: Calibration, *, group: str | None, slo_tpot_ms: float | None) -> None:
    """Print speed-ups by load, what to run, and what that rests on."""
    console = open_console(stderr=False)
    rows = [each for each in made.cells if each.group == group]
    for axis in dict.fromkeys(each.axis for each in rows):
        mine = [each for each in rows if each.axis == axis]
        ends = [each for each in made.crossovers if each.axis == axis and each.group == group]
        show_table(console, _make_table(mine, ends))
        for line in (*_advise(mine, ends, calibration), *_keep_promise(mine, slo_tpot_ms)):
            click.echo(line)
    click.echo(
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


def _name(setting: str, k: int) -> str:
    """Return a server's name with another k."""
    return f"{_OWN_K.sub('', setting)} k={k}"


def _choose_shown(loads: Sequence[float]) -> Sequence[float]:
    every = -(-len(loads) // _MOST_SHOWN)
    return loads[::every]


def _find_best_k(rows: Sequence[ForecastCell]) -> int:
    """Return the k that is fastest over all loads together."""
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


def _compare(profile: Profile, calibration: Calibration, file: Path, run: Run, *, as_json: bool) -> None:
    """Show forecasts beside what a run measured, and keep the errors in the calibration."""
    held = list(_hold_all(profile, calibration, run))
    if not held:
        raise InvalidSetup.because(
            "no-common-candidate",
            "The run has no comparison of a candidate that was replayed and calibrated under its name.",
            where="--against",
            fix="Give a run of `decide` whose candidates have the names of the calibration.",
        )
    fresh = {(each.setting, each.workload, each.load) for each in held}
    kept = tuple(each for each in calibration.held if (each.setting, each.workload, each.load) not in fresh)
    write_document(file, replace(calibration, held=(*kept, *held)))
    if as_json:
        click.echo(json.dumps([{**_row(each), "error": each.error} for each in held], indent=1))
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("workload", "load", "candidate", "forecast", "measured", "error"):
        table.add_column(name, justify="right" if name in ("forecast", "measured", "error") else "left")
    for each in held:
        measured = f"{each.measured:.2f} ({each.measured_low:.2f}-{each.measured_high:.2f})"
        error = f"{100 * each.error:+.1f} %"
        table.add_row(each.workload, each.load, each.setting, f"{each.predicted:.2f}", measured, error)
    show_table(open_console(stderr=False), table)
    errors = sorted(abs(each.error) for each in held)
    click.echo(
        f"Off by {100 * median(errors):.1f} % in the median, at most {100 * errors[-1]:.1f} %; "
        f"{sum(each.is_inside for each in held)} of {len(held)} measured ratios lie in the forecast's 90 % interval. "
        f"The next forecast with {file} knows of these errors."
    )


def _row(held: HeldAgainst) -> dict[str, Any]:
    names = ("setting", "workload", "load", "predicted", "measured", "measured_low", "measured_high", "is_inside")
    return {name: getattr(held, name) for name in names}


def _hold_all(profile: Profile, calibration: Calibration, run: Run) -> Iterator[HeldAgainst]:
    """Yield every comparison of a run beside a forecast for the lengths of its own requests."""
    from draftwise.decide.conclusions import conclude_run  # draws on all of statistics: only needed here

    found = conclude_run(run)
    lengths = {setting.name: setting.k for setting in calibration.candidates}
    for workload in dict.fromkeys(each.workload for each in found.decision.comparisons):
        same = [each for each in found.decision.comparisons if each.workload == workload and each.candidate in lengths]
        places = {place for each in same if (place := each.condition.place) is not None}
        answers = [each for each in run.answers if each.workload == workload and each.measured and not each.error]
        if not places or not answers:
            continue
        made = make_forecast(
            profile,
            calibration,
            concurrency=sorted(load for axis, load in places if axis == "concurrency"),
            rates=sorted(load for axis, load in places if axis == "rate"),
            prompt_tokens=sum(each.num_prompt_tokens or len(each.prompt_token_ids) for each in answers) / len(answers),
            output_tokens=sum(each.timing.num_tokens for each in answers) / len(answers),
        )
        for each in same:
            if (beside := hold_against(made, lengths[each.candidate], each)) is not None:
                yield beside
