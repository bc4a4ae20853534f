"""`draftwise forecast`: what speculation will be worth under loads that nobody measured yet."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from draftwise.cli._forecast import show_forecast, show_held
from draftwise.core import (
    Calibration,
    Forecast,
    HeldAgainst,
    InvalidSetup,
    Profile,
    Run,
    Severity,
)
from draftwise.core.documents import to_json
from draftwise.plan.forecast.forecasting import forecast as make_forecast
from draftwise.plan.forecast.run_cells import hold_against
from draftwise.plan.forecast.simulate import simulate_services
from draftwise.runs import RunDirectory
from draftwise.runs.documents import read_calibration, read_profile, write_document

__all__ = ["forecast"]

_LOADS = "1-128"
_RANGE = re.compile(r"(?P<first>[\d.]+)-(?P<last>[\d.]+)")


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
@click.option("--simulate", is_flag=True,
              help="Also serve 1,000 requests step by step: percentiles of TTFT and TPOT at each load.")  # fmt: skip
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
        click.echo(json.dumps(to_json(made), indent=1))
    else:
        show_forecast(made, steps, group=given["group"], slo_tpot_ms=given["slo_tpot_ms"])
    if any(each.severity is Severity.ERROR for each in made.findings):
        ctx.exit(1)


def _make(profile: Profile, calibration: Calibration, given: Mapping[str, Any]) -> Forecast:
    concurrency = given["concurrency"] or (() if given["rates"] else tuple(_double(1, 128)))
    prompt, output, rates = given["prompt_tokens"], given["output_tokens"], given["rates"] or ()
    lengths = [] if given["traffic"] is None else _read_lengths(given["traffic"], calibration)
    if lengths:
        prompt = prompt or fmean(tokens for tokens, _ in lengths)
        output = output or fmean(tokens for _, tokens in lengths)
    made = make_forecast(
        profile, calibration, concurrency=concurrency, rates=rates, prompt_tokens=prompt, output_tokens=output
    )
    if not given["simulate"]:
        return made
    if not lengths or given["prompt_tokens"] or given["output_tokens"]:
        lengths = [(made.prompt_tokens, made.output_tokens)]
    return replace(made, simulated=tuple(simulate_services(made, profile, calibration, lengths)))


def _read_lengths(source: str, calibration: Calibration) -> list[tuple[float, float]]:
    """Return the tokens of prompt and answer of each request of a workload."""
    from draftwise.workloads import find_tokens, load_workloads  # reads texts: not needed for most forecasts
    from draftwise.workloads.reshape import prompt_length

    tokenizer = Path(calibration.target)
    tokens = find_tokens(None, hint=tokenizer)
    prompts = [prompt for each in load_workloads(source, tokenizer=tokenizer) for prompt in each.prompts]
    if not prompts:
        raise InvalidSetup.because(
            "no-prompts", f"{source} has no requests.", where="--traffic", fix="Give a workload with requests."
        )
    return [(prompt_length(prompt, tokens), prompt.max_tokens) for prompt in prompts]


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
    write_document(file, replace(calibration, held=(*kept, *(each for each in held if not each.is_other_traffic))))
    if as_json:
        click.echo(json.dumps([_row(each) for each in held], indent=1))
        return
    show_held(held, file)


def _row(held: HeldAgainst) -> dict[str, Any]:
    return {**asdict(held), "error": held.error, "is_other_traffic": held.is_other_traffic}


def _hold_all(profile: Profile, calibration: Calibration, run: Run) -> Iterator[HeldAgainst]:
    """Yield every comparison of a run beside a forecast for the lengths of its own requests."""
    from draftwise.deciding.conclusions import conclude_run  # draws on all of statistics: only needed here

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
