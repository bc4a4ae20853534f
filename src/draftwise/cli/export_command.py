"""`draftwise export`: writes a trained drafter in the format that a server needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from draftwise.cli._options import options
from draftwise.cli._results import show
from draftwise.verbs.export import ExportRequest, ExportResult
from draftwise.verbs.export import export as run_export


@click.command()
@click.argument("drafter", type=click.Path(path_type=Path))
@options("export", of=ExportRequest)
def export(as_json: bool, **given: Any) -> None:
    """Write DRAFTER, a drafter's directory, in a format that a server loads."""
    show(run_export.run(ExportRequest(**given)), render, as_json=as_json)


def render(console: Console, result: ExportResult) -> None:
    """Print what was written, and how to serve it."""
    for line in (
        f"wrote {result.out}",
        f"vllm serve {result.model} --speculative-config '{json.dumps(result.speculative_config)}'",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
