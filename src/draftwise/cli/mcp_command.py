"""`draftwise mcp`: serves the verbs as tools of an agent, over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from draftwise.cli._options import options
from draftwise.cli._results import Listening
from draftwise.verbs.mcp import McpRequest, McpResult
from draftwise.verbs.mcp import mcp as run_mcp


@click.command()
@options("mcp", of=McpRequest, write=click.Path(path_type=Path, file_okay=False))
def mcp(as_json: bool, **given: Any) -> None:
    """Serve check, upgrade, pick, size, inspect, explain, forecast, replay, watch, report, compare, deploy, decide and
    calibrate as tools over the Model Context Protocol, and pages of methods, releases and findings as resources.
    """
    run_mcp.run(McpRequest(**given), Listening(as_json=as_json))


def render(console: Console, result: McpResult) -> None:
    """Print which server has ended."""
    console.print(f"{result.transport} is no longer served.", markup=False, highlight=False)
