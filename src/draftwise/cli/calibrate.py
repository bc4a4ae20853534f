"""`draftwise calibrate`: how long the steps of servers last, from a few minutes of load."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from draftwise.cli._access import access_options
from draftwise.cli._console import open_console, show_table
from draftwise.cli._context import context_option, read_notes
from draftwise.cli._decision import ConsoleProgress
from draftwise.cli._group import BEGAN
from draftwise.cli._launching import launch_options, read_launch, split_arguments
from draftwise.cli._loads import Finite, Numbers
from draftwise.cli._session import refuse_others, run_session
from draftwise.core import (
    BackendError,
    Calibration,
    ClosedLoop,
    Condition,
    SpecConfig,
    StorageError,
)
from draftwise.core.documents import to_json
from draftwise.measure import measurement as measure
from draftwise.measure.calibrate.build import make_calibration
from draftwise.measure.spec import Candidate, MeasurementSpec
from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.runs import RunDirectory
from draftwise.runs.documents import write_document
from draftwise.verbs.access import read_headers

__all__ = ["calibrate"]

_NAMED_URL = re.compile(r"(?:(?P<name>[^=/]+)=)?(?P<url>https?://.*)")
_MINUTES = 5.0
_LOADS: Mapping[str, tuple[int, ...]] = {"draftwise": (1, 4), "vllm": (1, 8, 64)}
"""Streams by engine: from one sequence to where computing takes as long as reading the weights."""
_REPEATS = 2
_WORKLOADS = ("code", "rewrite")
_OF_REST = frozenset({"resume", "headers", "key_variables", "minutes", "shape", "out", "as_json"})
"""Parameters that `--resume` takes: the others are those of the run as it was planned."""
_LARGE_ERROR = 0.10
"""Of a point that the others do not foresee."""


@click.command(short_help="Measure how long steps last, with and without drafting, for a forecast.")
@click.argument("target", required=False)
@click.option("--candidate", "candidates", multiple=True, metavar="[NAME=]JSON",
              help="A speculative config, with the largest k to forecast; repeat for more.")  # fmt: skip
@access_options
@click.option(
    "--target", "shape", metavar="DIR", help="The model at --url, if it does not tell: directory or known id."
)
@click.option("--concurrency", type=Numbers(int, least=1), metavar="N,...",
              help="Streams at once  [default: 1,8,64; for the embedded engine 1,4]")  # fmt: skip
@click.option("--minutes", type=Finite(0, min_open=True), default=_MINUTES, show_default=True,
              help="For all of it, starts of servers included.")  # fmt: skip
@click.option("--workload", "workloads", multiple=True, metavar="SOURCE",
              help="Prompts, as for `decide`  [default: code and rewrite]")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Cap on every prompt's own.")
@launch_options
@context_option
@click.option("--run", "folder", type=click.Path(path_type=Path), metavar="DIR",
              help="Where the raw readings go  [default: runs/TIME]")  # fmt: skip
@click.option("--resume", type=click.Path(path_type=Path), metavar="DIR", help="Go on with an unfinished run.")
@click.option("--from", "source", type=click.Path(path_type=Path), metavar="DIR",
              help="Measure nothing: take the steps of a finished run, also of one of `decide`.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("calibration.json"),
              show_default=True, metavar="FILE")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the calibration as JSON on stdout.")
@click.pass_context
def calibrate(
    ctx: click.Context, /, source: Path | None, resume: Path | None, out: Path, as_json: bool, **given: Any
) -> None:
    """Measure how long the steps of servers last, and write what `draftwise forecast` needs of it.

    Serves TARGET as a baseline and once per candidate, or takes servers that run already: --url for the baseline,
    --candidate-url NAME=URL for each that speculates. Gaps between streamed chunks are steps; what is accepted does
    not matter, so any text calibrates, and so does synthetic acceptance. What was read stays in the run directory.

    \b
    Examples:
      draftwise calibrate ./model --candidate '{"method": "ngram", "num_speculative_tokens": 8}'
      draftwise calibrate --url http://plain:8000 --candidate-url eagle3=http://spec:8001 --target Qwen/Qwen3-8B
    """
    failure: BaseException | None = None
    if source is None:
        measurement = _open(ctx, resume, given)
        failure = _measure(measurement)
        directory = measurement.directory
    else:
        directory = RunDirectory(source)
    if not directory.has_run and failure is not None:
        directory.leave()
        raise failure
    calibration = make_calibration(directory.read(), target=given["shape"] or given["target"])
    write_document(out, calibration)
    if as_json:
        click.echo(json.dumps(to_json(calibration), indent=1))
    else:
        _show(calibration)
    click.echo(f"\nCalibration: {out}; raw readings: {directory.path}", err=True)
    if failure is not None:
        click.echo(f"Unfinished: go on with: draftwise calibrate --resume {directory.path} --out {out}", err=True)
        if isinstance(failure, BackendError | StorageError):
            raise failure
        raise KeyboardInterrupt


def _open(ctx: click.Context, resume: Path | None, given: Mapping[str, Any]) -> measure.Measurement:
    began_s = ctx.meta.get(BEGAN)
    if resume is not None:
        refuse_others(ctx, _OF_REST)
        return measure.resume(
            resume,
            headers=read_headers(given["headers"], given["key_variables"]),
            minutes=given["minutes"],
            began_s=began_s,
        )
    spec = _read_spec(given)
    if conflict := spec.find_conflict():
        raise click.UsageError(conflict)
    return measure.prepare(spec, ConsoleProgress(open_console(stderr=True)), began_s=began_s)


def _measure(measurement: measure.Measurement) -> BaseException | None:
    """Measure; return what ended it early."""
    with ConsoleProgress(open_console(stderr=True)) as progress:
        return run_session(measurement.open(progress), progress)


def _read_spec(given: Mapping[str, Any]) -> MeasurementSpec:
    """Return what the options ask for: every server under every load, no load left out or added."""
    urls, candidates = _read_candidates(given)
    engine = given["engine"] if given["url"] is None else "vllm"
    loads = given["concurrency"] or _LOADS[engine]
    return MeasurementSpec(
        target=given["target"],
        engine=given["engine"],
        launch=read_launch(given),
        serve_args=split_arguments(given["serve_args"]),
        url=given["url"],
        candidate_urls=urls,
        metrics_urls=given["metrics_urls"],
        headers=read_headers(given["headers"], given["key_variables"]),
        candidates=candidates,
        workloads=given["workloads"] or _WORKLOADS,
        max_tokens=given["max_tokens"],
        conditions=tuple(Condition(load=ClosedLoop(concurrency=int(load))) for load in loads),
        minutes=given["minutes"],
        repeats=_REPEATS,
        adaptive=False,
        one_at_a_time=given["one_at_a_time"],
        notes=read_notes(given["notes"]),
        out=given["folder"],
    )


def _read_candidates(given: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Candidate, ...]]:
    """Return the URLs of candidates, and the candidates in their order: by name where URLs have names."""
    candidates = [Candidate.parse(text) for text in given["candidates"]]
    found = [_read_url(text) for text in given["candidate_urls"]]
    if not any(name for name, _ in found):
        return tuple(url for _, url in found), tuple(candidates)
    specs: dict[str | None, SpecConfig | None] = {each.name: each.spec for each in candidates}
    if unknown := [str(name) for name in specs if name not in {name for name, _ in found}]:
        raise click.UsageError(f"--candidate {', '.join(unknown)}: no --candidate-url has that name.")
    return tuple(url for _, url in found), tuple(Candidate(name=name, spec=specs.get(name)) for name, _ in found)


def _read_url(text: str) -> tuple[str | None, str]:
    match = _NAMED_URL.fullmatch(text)
    if match is None:
        raise click.UsageError(f"--candidate-url takes [NAME=]http://HOST:PORT, got {text!r}.")
    return match["name"], match["url"]


def _show(calibration: Calibration) -> None:
    """Print the time of a step by server and load, and how well the points foresee one another."""
    console, costs = open_console(stderr=False), CalibratedCosts(calibration)
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
    click.echo(
        f"Each point foreseen by the others: off by {median:.1f} % in the median, {p90:.1f} % at the 90th percentile."
    )
    for line in _list_large(costs):
        click.echo(line)


def _format_range(values: Sequence[float]) -> str:
    """Return the times of a step on different text: more is drafted on some."""
    if not values:
        return "-"
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low}-{high}"


def _list_large(costs: CalibratedCosts) -> Sequence[str]:
    return [
        f"{each.point.setting} at {each.point.load}: {each.point.step_ms:.2f} ms measured, {each.predicted_ms:.2f} ms "
        "foreseen: this server is only known where it was measured."
        for each in costs.left_out
        if abs(each.error) > _LARGE_ERROR and not each.point.low <= each.predicted_ms <= each.point.high
    ]
