"""`draftwise check`: predicts how a vLLM release treats a speculative config, before it runs."""

from __future__ import annotations

import sys
from typing import Any

import click

from draftwise.cli._findings import quiet_line, render, show_judgements
from draftwise.cli._options import options
from draftwise.cli._setups import report_skipped, setup_command
from draftwise.verbs.check import CheckRequest
from draftwise.verbs.check import check as run_check

__all__ = ["check", "render"]


@setup_command
@options("check", of=CheckRequest)
def check(shape: str, as_json: bool, quiet: bool, verbose: bool, installed: str | None, **given: Any) -> None:
    """Predict whether vLLM accepts, rejects or silently changes a setup or fails later, with a fix for each problem."""
    packages = None if installed is None else installed.split(",")
    result = run_check.run(CheckRequest(**given, installed=packages))
    report_skipped(result.skipped, verbose=verbose)
    if quiet and shape == "table" and not as_json:
        click.echo("\n".join(map(quiet_line, result.judgements)))
    else:
        show_judgements(result, "json" if as_json else shape)
    if result.exit_code:
        sys.exit(result.exit_code)
