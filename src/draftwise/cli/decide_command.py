"""`draftwise decide`: measures whether speculation pays."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from draftwise.cli._console import open_console
from draftwise.cli._decision import show_outcome
from draftwise.cli._group import BEGAN
from draftwise.cli._loads import load_options
from draftwise.cli._options import MILLISECONDS, MINUTES, PATH, Finite, PanelCommand, context_option, option
from draftwise.cli._session import (
    RENAMED,
    access_options,
    end_measurement,
    launch_options,
    refuse_others,
    run_measurement,
)
from draftwise.verbs.decide import DecideRequest, DecideResult
from draftwise.verbs.decide import decide as run_decide

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
@option("--candidate [NAME=]JSON", "candidates", "A --speculative-config to measure; repeat for more.", multiple=True)
@click.option("--workload", "workloads", multiple=True, metavar="SOURCE",
              help="Prompts: code, prose, rewrite, a log or trace, or synthetic:...; repeat for more.")  # fmt: skip
@option("--out DIR", "Run directory  [default: runs/TIME]", type=PATH)
@option("--resume DIR", "Continue an unfinished run.", type=PATH)
@option("--prompts N", "Prompts per workload.", type=click.IntRange(1))
@option("--minutes", "Time budget, server starts included; the most promising candidates come first  [default: 10]",
        type=MINUTES)  # fmt: skip
@option("--repeats", "Repetitions of the prompts.", type=click.IntRange(1), default=5, show_default=True)
@option("--warmup", "Requests per server to discard first.", type=click.IntRange(1), default=3, show_default=True)
@option("--seed", "Random seed for turn order and sampling.", type=int, default=0, show_default=True)
@load_options
@option("--adaptive/--no-adaptive", "Stop settled cells early, and search for the load where speculation stops paying.",
        default=True, show_default=True)  # fmt: skip
@option("--profile PATH", "Acceptance profile of this traffic; skips candidates that cannot win.", type=PATH)
@option("--calibration FILE", "Calibration file; skips candidates that cannot win, and with --profile also loads.",
        type=PATH)  # fmt: skip
@option("--max-tokens N", "Cap on each prompt's max_tokens.", type=click.IntRange(1))
@access_options
@context_option
@launch_options
@option("--processes N", "Processes of the load generator  [default: as many as the load needs]",
        type=click.IntRange(1))  # fmt: skip
@option("--margin", "Smallest change worth making  [default: 0.03]", type=Finite(0, 1, max_open=True))
@option("--slo-ttft-ms", "SLO: time to first token, for goodput.", type=MILLISECONDS)
@option("--slo-tpot-ms", "SLO: time per output token, for goodput.", type=MILLISECONDS)
@option("--slo-e2e-ms", "SLO: time to the last token, for goodput.", type=MILLISECONDS)
@option("--json", "as_json", "Print the summary as JSON on stdout.", is_flag=True)
@click.pass_context
def decide(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
    """Measure whether speculation pays for TARGET, a checkpoint directory.

    Serves TARGET as a baseline and once per candidate, sends the same prompts to all servers in turns, and writes a
    report. With --url and --candidate-url, it compares servers that already run.

    \b
    Examples:
      draftwise decide ./model --workload log:requests.jsonl --candidate '{"method": "ngram", ...}'
      draftwise decide --url http://plain:8000 --candidate-url http://spec:8000 \\
          --workload log:requests.jsonl --concurrency 1,8,64
    """
    if given["resume"] is not None:
        refuse_others(ctx, _OF_REST)
        given["workloads"] = ()  # a default of draftwise.toml: the run has its own
    result, failure = run_measurement(run_decide, DecideRequest(**given, began_s=ctx.meta.get(BEGAN)))
    render(open_console(stderr=as_json), result)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    if not result.is_finished:
        again = f"draftwise decide --resume {result.directory}"
        click.echo(f"Unfinished: everything measured is kept. To continue: {again}", err=True)
    click.echo(f"Report: {result.report}    everything else: draftwise report {result.directory}", err=True)
    end_measurement(result, failure)


def render(console: Console, result: DecideResult) -> None:
    """Print the leading verdicts, the findings, the decision and what to type, on one screen."""
    show_outcome(console, result.decision, result.run)
