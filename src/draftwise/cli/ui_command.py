"""`draftwise ui`: shows your runs in a browser on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from draftwise.cli._options import options
from draftwise.cli._results import Listening
from draftwise.verbs.ui import UiRequest, UiResult
from draftwise.verbs.ui import ui as run_ui


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@options("ui", of=UiRequest)
def ui(as_json: bool, **given: Any) -> None:
    """Show RUNS, comparisons, forecasts and running services in a browser, until Ctrl-C."""
    run_ui.run(UiRequest(**given), Listening(as_json=as_json))


def render(console: Console, result: UiResult) -> None:
    """Print where the pages were."""
    console.print(f"The pages at {result.address} are closed.", highlight=False)
