"""`draftwise skill`: writes the agent skill of this version into a folder."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from draftwise.cli._results import json_option, show
from draftwise.verbs.skill import DEFAULT_FOLDER, SkillRequest, SkillResult
from draftwise.verbs.skill import skill as run_skill


@click.group()
def skill() -> None:
    """Teach an agent to use draftwise: a skill with this version's methods, metrics, diagnoses and scripts."""


@skill.command(short_help="Write the skill into a folder of skills.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="[DIR]", default=DEFAULT_FOLDER)
@json_option
def install(folder: Path, as_json: bool) -> None:
    """Write the skill into the folder `draftwise` of DIR, by default .agents/skills; an older version is replaced."""
    show(run_skill.run(SkillRequest(folder)), render, as_json=as_json)


def render(console: Console, result: SkillResult) -> None:
    """Print what was written."""
    line = f"Written: {result.folder} ({len(result.files)} files)"
    console.print(line, markup=False, highlight=False, soft_wrap=True)
