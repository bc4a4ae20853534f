"""`draftwise guard`: proposes steps if speculation stops paying, and takes those it has the means for."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, cast

import click
from rich.console import Console
from rich.text import Text

from draftwise.cli._console import open_console
from draftwise.cli._findings import render_findings
from draftwise.cli._options import Duration, options
from draftwise.cli._results import Listening
from draftwise.verbs.guard import GuardRequest, GuardResult
from draftwise.verbs.guard import guard as run_guard


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@options("guard", of=GuardRequest, every_s=Duration(0.5))
def guard(as_json: bool, **given: Any) -> None:
    """Guard the replicas of a service: propose steps, or carry out those that an executor allows."""
    result = run_guard.run(GuardRequest(**given), _Looks(as_json=as_json))
    for sentence in result.done:
        click.echo(sentence, err=as_json)
    if as_json and result.done:
        click.echo(json.dumps(result.to_dict(), allow_nan=False))
    if result.exit_code:
        sys.exit(result.exit_code)
    if given["once"]:
        click.echo("No step is proposed.", err=True)


def render(console: Console, result: GuardResult, told: frozenset[tuple[str, str]] = frozenset()) -> None:
    """Print the steps of a check, and its findings without those printed before."""
    new = [each for each in result.findings if (each.code, each.where) not in told]
    if new or result.actions:
        console.print(Text(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(result.at_s)), "dim"))
    for action in result.actions:
        does = ("does    ", "bold red") if action.executes else ("proposes", "bold yellow")
        where = ", ".join(action.replicas) or "the service"
        console.print(Text.assemble(does, f"  {action.step}  {where}: {action.reason}"), soft_wrap=True)
    if new:
        console.print(render_findings(new))


class _Looks(Listening):
    """Prints each look as JSON on one line; or its steps, and findings when they are new."""

    def __init__(self, *, as_json: bool) -> None:
        self._console = None if as_json else open_console(stderr=False)
        self._told: frozenset[tuple[str, str]] = frozenset()

    def update(self, result: object) -> None:
        """Print a look."""
        look = cast(GuardResult, result)
        if self._console is None:
            click.echo(json.dumps(look.to_dict(), allow_nan=False))
            return
        render(self._console, look, self._told)
        self._told = frozenset((each.code, each.where) for each in look.findings)
