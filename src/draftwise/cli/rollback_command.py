"""`draftwise rollback`: takes a deployment back to serving without speculation."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
from rich.console import Console

from draftwise.cli._options import options
from draftwise.cli._results import show
from draftwise.verbs.rollback import RollbackRequest, RollbackResult
from draftwise.verbs.rollback import rollback as run_rollback


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@options("rollback", of=RollbackRequest)
def rollback(folder: Path, applies: bool, removes: bool, yes: bool, as_json: bool) -> None:
    """Print the commands that return a deployment to serving without speculation, or run them."""
    request = RollbackRequest(
        folder, apply=applies, remove=removes, confirm=partial(_tell if yes else _ask, err=as_json)
    )
    show(run_rollback.run(request), render, as_json=as_json)


def render(console: Console, result: RollbackResult) -> None:
    """Print the steps, or what to do after those that were run."""
    lines = list(result.next)
    if not result.ran:
        for number, step in enumerate(result.steps, start=1):
            lines += [f"# {number}. {step.text}", *([step.command] if step.command else [])]
        lines.append(f"# It leaves behind: {result.leaves}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _tell(first: str, _command: str, *, err: bool) -> bool:
    if first:
        click.echo(first, err=err)
    return True


def _ask(first: str, command: str, *, err: bool) -> bool:
    _tell(first, command, err=err)
    return click.confirm(f"Run: {command}", abort=True, err=err)
