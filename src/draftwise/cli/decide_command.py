"""`draftwise decide`: measures whether speculation pays."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click
from rich.console import Console

from draftwise.cli._console import open_console
from draftwise.cli._decision import show_outcome
from draftwise.cli._group import BEGAN
from draftwise.cli._options import Finite, PanelCommand, options
from draftwise.cli._session import (
    LOAD_TYPES,
    RENAMED,
    end_measurement,
    refuse_others,
    run_measurement,
)
from draftwise.verbs.decide import DecideRequest, DecideResult
from draftwise.verbs.decide import decide as run_decide
from draftwise.verbs.measuring import ENGINES, get_resume_command

_OF_REST = frozenset({"resume", "headers", "key_variables", "processes", "minutes", "as_json"})
"""Parameters that `--resume` takes: the others are those of the run as it was planned."""


_PANELS = {
    "Start here": ("candidates", "workloads", "url", "candidate_urls", "concurrency", "minutes", "engine",
                   "one_at_a_time", "out", "resume"),
    "What to compare": ("lengths", "temperatures", "profile", "calibration"),
    "Traffic": ("prompts", "max_tokens", "seed"),
    "Load": ("rate", "arrivals", "phases", "replay", "turn_seconds", "processes"),
    "Servers that already run": ("metrics_urls", "headers", "key_variables", "switch", "leave", "notes"),
    "Servers to start": ("vllm", "gpus", "serve_args"),
    "Budget": ("repeats", "warmup", "adaptive"),
    "Verdict and output": ("margin", "slo_ttft_ms", "slo_tpot_ms", "slo_e2e_ms", "as_json", "help"),
}  # fmt: skip


@click.command(cls=PanelCommand, panels=_PANELS, renamed=RENAMED)
@click.argument("target", required=False)
@options("decide", of=DecideRequest, margin=Finite(0, 1, max_open=True), engine=click.Choice(ENGINES), **LOAD_TYPES)
@click.pass_context
def decide(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
    """Measure whether speculation pays for TARGET, a checkpoint directory."""
    if given["resume"] is not None:
        refuse_others(ctx, _OF_REST)
        given["workloads"] = ()  # a default of draftwise.toml: the run has its own
    result, failure = run_measurement(run_decide, DecideRequest(**given, began_s=ctx.meta.get(BEGAN)))
    render(open_console(stderr=as_json), result)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    folder = shlex.quote(str(result.directory))
    if not result.is_finished:
        again = get_resume_command("decide", result.directory)
        click.echo(f"Unfinished: everything measured is kept. To continue: {again}", err=True)
    click.echo(f"Report: {result.report}    everything else: draftwise report {folder}", err=True)
    end_measurement(result, failure)


def render(console: Console, result: DecideResult) -> None:
    """Print the leading verdicts, the findings, the decision and what to type, on one screen."""
    show_outcome(console, result.decision, result.run)
