"""`draftwise mcp`: serves the verbs as tools of an agent, over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from draftwise.cli._options import PATH, option
from draftwise.cli._results import Listening, json_option
from draftwise.verbs.mcp import McpRequest, McpResult
from draftwise.verbs.mcp import mcp as run_mcp


@click.command(short_help="Serve the verbs as tools of an agent (MCP).")
@option("--http PORT", "Serve over HTTP on 127.0.0.1, 0 for a free port  [default: stdin and stdout]",
        type=click.IntRange(0, 65535))  # fmt: skip
@option("--read DIR", "Folder that tools may read; repeatable  [default: the current folder]", multiple=True, type=PATH)
@option("--write DIR", "Folder that tools may write; without it they only read.",
        type=click.Path(path_type=Path, file_okay=False))  # fmt: skip
@option("--variable NAME", "variables", "Environment variable that tools may send to servers, as a key or header.",
        multiple=True)  # fmt: skip
@json_option
def mcp(as_json: bool, **given: Any) -> None:
    """Serve check, upgrade, pick, size, inspect, explain, forecast, replay, watch, report, compare, deploy, decide and
    calibrate as tools over the Model Context Protocol, and pages of methods, releases and findings as resources.

    Tools read files below --read only. They write nothing and start no program unless you give --write. Over HTTP
    every request needs the token in $DRAFTWISE_MCP_TOKEN, or the one that is printed. With --http, --json prints
    address and token on one line before it serves.

    \b
    Examples:
      draftwise mcp
      draftwise mcp --read manifests/ --write deployments/
      DRAFTWISE_MCP_TOKEN=... draftwise mcp --http 8765
    """
    run_mcp.run(McpRequest(**given), Listening(as_json=as_json))


def render(console: Console, result: McpResult) -> None:
    """Print which server has ended."""
    console.print(f"{result.transport} is no longer served.", markup=False, highlight=False)
