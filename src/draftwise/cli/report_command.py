"""`draftwise report`: makes a run's report again from its raw readings, or exports it for others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from draftwise.cli._console import open_console
from draftwise.cli._decision import show_decision
from draftwise.cli._options import options
from draftwise.verbs.report import FORMATS, ReportRequest, ReportResult
from draftwise.verbs.report import report as run_report

_STDOUT = "-"


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@options(
    "report",
    of=ReportRequest,
    exports={"help": f"Export readings for {', '.join(FORMATS)}; FILE/ writes a file per cell."},
)
def report(as_json: bool, markdown: str | None, **given: Any) -> None:
    """Write report.html and summary.json of RUN again, from its raw readings."""
    if as_json and markdown == _STDOUT:
        raise click.UsageError("Both --json and --markdown - write to stdout: give --markdown a file.")
    to_stdout = markdown == _STDOUT
    result = run_report.run(ReportRequest(**given, markdown=None if to_stdout else markdown))
    render(open_console(stderr=as_json or to_stdout), result)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    if to_stdout:
        click.echo(result.to_markdown(), nl=False)
    for file in result.written:
        click.echo(f"Written: {file}", err=True)
    click.echo(f"\nReport: {result.report}", err=True)
    sys.exit(result.exit_code)


def render(console: Console, result: ReportResult) -> None:
    """Print the verdicts, the findings, the decision and what to type."""
    show_decision(console, result.decision, result.run)
