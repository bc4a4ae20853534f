"""`draftwise decide`: measure whether speculation pays, and say so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from draftwise.cli._access import access_options
from draftwise.cli._console import open_console
from draftwise.cli._context import context_option, read_notes
from draftwise.cli._decision import ConsoleProgress, show_decision
from draftwise.cli._group import BEGAN
from draftwise.cli._launching import launch_options, read_launch, split_arguments
from draftwise.cli._loads import Finite, conditions, load_options
from draftwise.cli._session import refuse_others, run_session
from draftwise.core import BackendError, InvalidSetup, StorageError
from draftwise.deciding.conclusions import conclude_run
from draftwise.measure import measurement as measure
from draftwise.measure.spec import Candidate, MeasurementSpec
from draftwise.reporting.page import write_conclusions
from draftwise.runs import RunDirectory
from draftwise.verbs.access import read_headers
from draftwise.workloads import BUNDLED

__all__ = ["decide"]

_INTERRUPTED = 130
_OF_REST = frozenset({"resume", "headers", "key_variables", "processes", "minutes", "as_json"})
"""Parameters that `--resume` takes: the others are those of the run as it was planned."""


@click.command()
@click.argument("target", required=False)
@click.option(
    "--candidate", "candidates", multiple=True, metavar="[NAME=]JSON", help="A speculative config; repeat for more."
)
@click.option("--workload", "workloads", multiple=True, metavar="SOURCE",
              help="code, prose, rewrite, a log or trace, synthetic:...; see docs/measuring.md.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory  [default: runs/TIME]")
@click.option("--resume", type=click.Path(path_type=Path), metavar="DIR", help="Go on with an unfinished run.")
@click.option("--prompts", type=click.IntRange(1), metavar="N", help="Per workload.")
@click.option("--minutes", type=Finite(0, min_open=True),
              help="For all of it; what does not fit is left out  [default: 10; with --prompts none]")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Repetitions of the prompts.")
@click.option("--warmup", type=click.IntRange(1), default=3, show_default=True, help="Discarded requests per arm.")
@click.option("--seed", type=int, default=0, show_default=True)
@load_options
@click.option("--adaptive/--no-adaptive", default=True, show_default=True,
              help="Leave out what is settled, and search where speculation stops paying.")  # fmt: skip
@click.option("--profile", type=click.Path(path_type=Path), metavar="PATH",
              help="Of this traffic, from `replay`: candidates that cannot come out best are left out.")  # fmt: skip
@click.option("--calibration", type=click.Path(path_type=Path), metavar="FILE",
              help="Of these servers, from `calibrate`: the same; with --profile also at which loads.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Cap on every prompt's own.")
@access_options
@context_option
@launch_options
@click.option("--processes", type=click.IntRange(1), metavar="N",
              help="Of the load generator  [default: as many as the load needs]")  # fmt: skip
@click.option("--margin", type=Finite(0, 1, max_open=True), help="Smallest change worth making  [default: 0.03]")
@click.option("--slo-ttft-ms", type=Finite(0, min_open=True), help="Promised time to first token, for goodput.")
@click.option("--slo-tpot-ms", type=Finite(0, min_open=True), help="Promised time per output token, for goodput.")
@click.option("--slo-e2e-ms", type=Finite(0, min_open=True), help="Promised time to the last token, for goodput.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
@click.pass_context
def decide(ctx: click.Context, /, resume: Path | None, as_json: bool, **given: Any) -> None:
    """Measure whether speculation pays for TARGET, the directory of a checkpoint, and say so.

    Serves TARGET as a baseline and once per candidate, sends the same prompts to all of them in turns, and writes a
    report. With --url and --candidate-url it compares servers that run already.
    """
    progress = ConsoleProgress(open_console(stderr=True))
    if resume is not None:
        refuse_others(ctx, _OF_REST)
        measurement = measure.resume(
            resume,
            headers=read_headers(given["headers"], given["key_variables"]),
            processes=given["processes"],
            minutes=given["minutes"],
            began_s=ctx.meta.get(BEGAN),
        )
    else:
        spec = _read_spec(given)
        if conflict := spec.find_conflict():
            raise click.UsageError(conflict)
        measurement = measure.prepare(spec, progress, began_s=ctx.meta.get(BEGAN))
    with progress:
        session = measurement.open(progress)
        try:
            failure = run_session(session, progress)
        except InvalidSetup:
            measurement.directory.leave()
            raise
    _finish(measurement.directory, as_json=as_json, failure=failure)


def _finish(directory: RunDirectory, *, as_json: bool, failure: BaseException | None = None) -> None:
    """Report on what a directory holds, then end as `failure` or the findings demand."""
    if not directory.has_run:
        directory.leave()
        if isinstance(failure, BackendError | StorageError):
            raise failure
        click.echo("interrupted before anything was measured", err=True)
        raise SystemExit(_INTERRUPTED)
    found = conclude_run(directory.read())
    decision, summary = write_conclusions(directory, found)
    show_decision(open_console(stderr=as_json), decision, found.run)
    if as_json:
        click.echo(json.dumps(summary, indent=2))
    click.echo(f"\nReport: {directory.path / 'report.html'}", err=True)
    if failure is not None:
        click.echo(f"Unfinished: everything measured is kept. Go on with: draftwise decide --resume {directory.path}",
                   err=True)  # fmt: skip
        if isinstance(failure, BackendError | StorageError):
            raise failure
        raise SystemExit(_INTERRUPTED)
    raise SystemExit(1 if decision.has_error or not decision.comparisons else 0)


def _read_spec(given: Mapping[str, Any]) -> MeasurementSpec:
    """Return what the options ask for."""
    return MeasurementSpec(
        target=given["target"],
        engine=given["engine"],
        launch=read_launch(given),
        serve_args=split_arguments(given["serve_args"]),
        url=given["url"],
        candidate_urls=given["candidate_urls"],
        metrics_urls=given["metrics_urls"],
        headers=read_headers(given["headers"], given["key_variables"]),
        candidates=tuple(map(Candidate.parse, given["candidates"])),
        draft_lengths=tuple(given["lengths"] or ()),
        workloads=given["workloads"] or BUNDLED,
        max_tokens=given["max_tokens"],
        conditions=conditions(given),
        prompts=given["prompts"],
        minutes=given["minutes"],
        repeats=given["repeats"],
        warmup=given["warmup"],
        seed=given["seed"],
        profile=given["profile"],
        calibration=given["calibration"],
        places_loads=not any(given[name] for name in ("concurrency", "rate", "phases", "replay")),
        turn_s=given["turn_seconds"],
        adaptive=given["adaptive"],
        one_at_a_time=given["one_at_a_time"],
        processes=given["processes"],
        notes=read_notes(given["notes"]),
        thresholds=_read_thresholds(given),
        out=given["out"],
    )


def _read_thresholds(given: Mapping[str, Any]) -> dict[str, float]:
    promised = {name: given[f"{name}_ms"] for name in ("slo_ttft", "slo_tpot", "slo_e2e")}
    seconds = {f"{name}_s": value / 1e3 for name, value in promised.items() if value is not None}
    return seconds if given["margin"] is None else {"margin": given["margin"], **seconds}
