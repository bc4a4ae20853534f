"""`skill`: writes the agent skill of this version into a folder."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path
from typing import ClassVar

from draftwise.core.progress import Progress
from draftwise.knowledge.messages import refusal
from draftwise.machine.whole_files import write_whole
from draftwise.verbs.verb import Result, verb

DEFAULT_FOLDER = ".agents/skills"
"""Folder of a project in which agents look for skills."""


@dataclass(frozen=True, slots=True)
class SkillRequest:
    """Where the skill goes."""

    folder: str | PathLike[str] = DEFAULT_FOLDER
    """Folder of skills; this one becomes the folder `draftwise` in it."""
    _: KW_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillResult(Result):
    """The skill that was written."""

    VERB: ClassVar[str] = "skill"
    folder: str
    files: tuple[str, ...]


@verb(SkillRequest)
def skill(request: SkillRequest, _progress: Progress) -> SkillResult:
    """Write the agent skill of this version: when to use which verb, references from today's facts, and scripts.

    An older version of the skill is replaced; a folder that holds something else is refused.
    """
    from draftwise.plan.skill_pages import NAME, write_skill

    folder = Path(request.folder) / NAME
    head = folder / "SKILL.md"
    if folder.exists() and not (head.is_file() and f"name: {NAME}\n" in head.read_text("utf-8", "replace")[:200]):
        raise refusal("folder-exists", case="skill", folder=folder)
    written = write_skill()
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
        if name.startswith("scripts/"):
            path.chmod(0o755)
    return SkillResult(folder=str(folder), files=tuple(written))
