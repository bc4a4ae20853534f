"""`draftwise decide`: measure whether speculation pays, and say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from draftwise.cli._console import open_console
from draftwise.cli._decision import show_decision
from draftwise.cli._group import BEGAN
from draftwise.cli._loads import Finite, load_options
from draftwise.cli._options import context_option
from draftwise.cli._session import access_options, end_measurement, launch_options, refuse_others, run_measurement
from draftwise.verbs.decide import DecideRequest, DecideResult
from draftwise.verbs.decide import decide as run_decide

__all__ = ["decide", "render"]

_OF_REST = frozenset({"resume", "headers", "key_variables", "processes", "minutes", "as_json"})
"""Parameters that `--resume` takes: the others are those of the run as it was planned."""


@click.command()
@click.argument("target", required=False)
@click.option(
    "--candidate", "candidates", multiple=True, metavar="[NAME=]JSON", help="A speculative config; repeat for more."
)
@click.option("--workload", "workloads", multiple=True, metavar="SOURCE",
              help="code, prose, rewrite, a log or trace, synthetic:...; see docs/reference/measuring.md.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory  [default: runs/TIME]")
@click.option("--resume", type=click.Path(path_type=Path), metavar="DIR", help="Go on with an unfinished run.")
@click.option("--prompts", type=click.IntRange(1), metavar="N", help="Prompts per workload.")
@click.option("--minutes", type=Finite(0, min_open=True),
              help="Time budget, server starts included; most promising candidates first  [default: 10]")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="Repetitions of the prompts.")
@click.option("--warmup", type=click.IntRange(1), default=3, show_default=True, help="Discarded requests per arm.")
@click.option("--seed", type=int, default=0, show_default=True)
@load_options
@click.option("--adaptive/--no-adaptive", default=True, show_default=True,
              help="Leave out what is settled, and search where speculation stops paying.")  # fmt: skip
@click.option("--profile", type=click.Path(path_type=Path), metavar="PATH",
              help="Acceptance profile of this traffic; drops candidates that cannot win.")  # fmt: skip
@click.option("--calibration", type=click.Path(path_type=Path), metavar="FILE",
              help="Calibration file; drops candidates that cannot win, with --profile loads too.")  # fmt: skip
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
def decide(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
    """Measure whether speculation pays for TARGET, the directory of a checkpoint, and say so.

    Serves TARGET as a baseline and once per candidate, sends the same prompts to all of them in turns, and writes a
    report. With --url and --candidate-url it compares servers that run already.
    """
    if given["resume"] is not None:
        refuse_others(ctx, _OF_REST)
    result, failure = run_measurement(run_decide, DecideRequest(**given, began_s=ctx.meta.get(BEGAN)))
    render(open_console(stderr=as_json), result)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    click.echo(f"\nReport: {result.report}", err=True)
    if not result.is_finished:
        again = f"draftwise decide --resume {result.directory}"
        click.echo(f"Unfinished: everything measured is kept. Go on with: {again}", err=True)
    end_measurement(result, failure)


def render(console: Console, result: DecideResult) -> None:
    """Print the verdicts, the findings, the decision and what to type."""
    show_decision(console, result.decision, result.run)
