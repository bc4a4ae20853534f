"""`draftwise deploy`: writes the files that put a setup into production, and those that undo it."""

from __future__ import annotations

from typing import Any, get_args

import click
from rich.console import Console

from draftwise.cli._options import Duration, options
from draftwise.cli._results import show
from draftwise.cli._setups import setup_command
from draftwise.verbs.deploy import TARGETS, DeployRequest, DeployResult, EditedFile, Mode
from draftwise.verbs.deploy import deploy as run_deploy


@setup_command
@options(
    "deploy",
    of=DeployRequest,
    to=click.Choice(list(TARGETS)),
    cold_start_s=Duration(0, min_open=True),
    mode=click.Choice(get_args(Mode), case_sensitive=False),
)
def deploy(as_json: bool, **given: Any) -> None:
    """Write the files that serve SOURCE on a platform, and its twin without speculation."""
    show(run_deploy.run(DeployRequest(**given)), render, as_json=as_json, indent=None)


def render(console: Console, result: DeployResult) -> None:
    """Print what was written, or how a file changes."""
    answer = result.answer
    if isinstance(answer, EditedFile):
        lines = [answer.difference.removesuffix("\n") or f"{answer.file} already starts this setup."]
        lines += [f"{each.severity} {each.code}: {each}" for each in answer.findings]
        if answer.difference:
            lines.append(
                f"Written: {answer.file}" if answer.written else "Nothing is written yet. To write it, add --write."
            )
    else:
        lines = [f"Written: {answer.out} ({', '.join(answer.files)})"]
        lines += [f"{each.severity} {each.code}: {each}" for each in answer.limits]
        lines += [f"not measured: {gap}" for gap in answer.not_measured]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
