"""`draftwise report`: make a run's report again from its raw readings."""

from __future__ import annotations

from pathlib import Path

import click

from draftwise.cli.decide import finish
from draftwise.measure.run_directory import RunDirectory

__all__ = ["report"]


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on stdout.")
def report(run: Path, as_json: bool) -> None:
    """Make report.html and summary.json of RUN again, from the raw readings alone."""
    directory = RunDirectory(run)
    directory.read()
    finish(directory, as_json=as_json)
