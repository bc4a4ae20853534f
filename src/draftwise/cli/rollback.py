"""`draftwise rollback`: the way back from a deployment to its twin without speculation."""

from __future__ import annotations

from pathlib import Path

import click

from draftwise.core import InvalidSetup
from draftwise.deploying.deployment_folder import prove
from draftwise.deploying.rollback_plan import RollbackPlan, plan_rollback, run

__all__ = ["rollback"]


@click.command(short_help="Go back to the twin without speculation: print the commands, or run them.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--apply", "applies", is_flag=True, help="Show what changes and start the twin.")
@click.option(
    "--remove", "removes", is_flag=True, help="Take the service with speculation away, once it has no traffic."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def rollback(folder: Path, applies: bool, removes: bool, yes: bool) -> None:
    """Print how a deployment goes back to its twin without speculation, or do it.

    DIR is a folder that `draftwise deploy` wrote. The twin is started beside the service, the traffic is moved (by
    you), and only then is the service taken away: so no request is lost. With compose and systemd both need the same
    port and GPUs: there the traffic is moved first, and the service stopped before its twin starts.

    Without options the commands are printed; --apply and --remove run theirs through kubectl, docker or systemctl after
    a question.

    \b
    Examples:
      draftwise rollback deploy/
      draftwise rollback deploy/ --apply
      draftwise rollback deploy/ --remove --yes
    """
    way = plan_rollback(folder)
    if not (applies or removes):
        _tell(way)
        return
    if changed := list(prove(folder)):
        raise InvalidSetup(changed)
    if applies:
        if way.compare:
            run(way.compare, may_be=(0, 1))
        click.echo(way.difference)
        if way.moves_first:
            click.echo(way.move)
        _ask(f"Run: {way.start}", yes=yes)
        run(way.start)
        click.echo(way.commit if way.moves_first else f"{way.commit}\n{way.move}")
    if removes:
        _ask(f"Run: {way.remove}", yes=yes)
        run(way.remove)
        click.echo(f"It leaves behind: {way.leaves}")


def _tell(way: RollbackPlan) -> None:
    start = [("Start the twin", way.start), (way.commit, "")]
    start.insert(0 if way.moves_first else len(start), (way.move, ""))
    steps = [("See what changes", way.compare), *start, ("Take the service with speculation away", way.remove)]
    shown = [(text, command) for text, command in steps if command or text.endswith(".")]
    for number, (text, command) in enumerate(shown, start=1):
        click.echo(f"# {number}. {text}" + (f"\n{command}" if command else ""))
    click.echo(f"# It leaves behind: {way.leaves}")


def _ask(question: str, *, yes: bool) -> None:
    if not yes:
        click.confirm(question, abort=True)
