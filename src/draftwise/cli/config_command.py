"""`draftwise config`: shows the defaults of this project and user, and where each comes from."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from draftwise.cli._console import show_table
from draftwise.cli._results import json_option, show
from draftwise.verbs.config import FILE, ConfigRequest, ConfigResult
from draftwise.verbs.config import config as run_config


@click.command()
@json_option
def config(as_json: bool) -> None:
    """Show the defaults of your options, from draftwise.toml in this folder or above it and from the environment."""
    show(run_config.run(ConfigRequest()), render, as_json=as_json)


def render(console: Console, result: ConfigResult) -> None:
    """Print one row per default."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("default", "value", "from", "variable"):
        table.add_column(name, overflow="fold")
    for each in result.defaults:
        table.add_row(each.key, each.value or "-", each.source or "-", each.variable)
    show_table(console, table)
    if result.file is None:
        console.print(f"There is no {FILE} in this folder or above it.", markup=False, highlight=False, style="dim")
