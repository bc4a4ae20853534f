"""Prints a verb's result: notices to stderr, a table or JSON to stdout, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import click
from rich.console import Console

from draftwise.cli._console import UNBROKEN, open_console
from draftwise.cli._group import AS_JSON
from draftwise.cli._options import options
from draftwise.core.progress import Silent
from draftwise.verbs.verb import Result

R = TypeVar("R", bound=Result)

json_option = options("json")


def show(
    result: R, render: Callable[[Console, R], None], *, as_json: bool, indent: int | None = 1, width: int = UNBROKEN
) -> None:
    """Print a result, and exit with its code unless that is 0."""
    for notice in result.notices:
        click.echo(f"{notice.severity}: {notice}", err=True)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=indent))
    else:
        render(open_console(stderr=False, width=width), result)
    if result.exit_code:
        sys.exit(result.exit_code)


class Listening(Silent):
    """Prints where a server listens. With `as_json`, stdout gets one line of JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def status(self, text: str) -> None:
        """Print a line on stderr, because stdout may belong to a client."""
        click.echo(text, err=True)

    def update(self, result: object) -> None:
        """Print the document."""
        if self._as_json:
            click.echo(json.dumps(cast(Result, result).to_dict()))


def show_names(ctx: click.Context, names: Sequence[str]) -> None:
    """Print a requested list: one name per line, or JSON with --json."""
    click.echo(json.dumps(list(names), indent=1) if ctx.meta[AS_JSON] else "\n".join(names))
