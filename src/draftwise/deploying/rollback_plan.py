"""The rollback to serving without speculation: its steps as commands, and running them."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from draftwise.core import BackendError, UnreadableSource, cause_of
from draftwise.deploying.deployment import THEN, fill_in
from draftwise.deploying.deployment_folder import Record, read_record
from draftwise.deploying.targets import TARGETS
from draftwise.knowledge.messages import text_of, unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """The rollback: one command, under the name that clients use."""

    compare: str
    """Command that shows the change on the platform; empty if the platform has none."""
    difference: str
    """Unified diff of the files."""
    start: str
    """Command that applies the next revision, without speculation, and waits until it answers."""
    gap: str
    """How long nothing answers meanwhile, as a sentence; empty if the old revision answers until then."""
    commit: str
    """Why that is not enough, as a sentence."""
    remove: str
    """Command that removes the twin next to the service, if there is one."""
    leaves: str
    """What remains afterwards, as a sentence."""


def plan_rollback(folder: Path) -> RollbackPlan:
    """Return the rollback plan of a folder that `deploy` wrote.

    Raises:
        UnreadableSource: the folder holds no deployment, or a file of it cannot be read.
    """
    record = read_record(folder)
    if record.to not in TARGETS:
        raise unreadable("not-a-deployment", case="platform", folder=folder, to=record.to)
    target, spec = TARGETS[record.to], record.sides["spec"]
    return RollbackPlan(
        compare=fill_in(target.compare, record.back, record, folder),
        difference="".join(_compare(folder, record)),
        start=fill_in(target.apply, record.back, record, folder),
        gap=f"The server restarts in place: nothing answers there for up to {record.startup_s} s."
        if target.in_place
        else "",
        commit=text_of("commit-rollback", back=record.back.file, written=spec.file),
        remove=fill_in(target.remove, record.sides["plain"], record, folder),
        leaves=record.leaves,
    )


def _compare(folder: Path, record: Record) -> Iterator[str]:
    names = (record.sides["spec"].file, record.back.file)
    try:
        before, after = ((folder / name).read_text(encoding="utf-8").splitlines(keepends=True) for name in names)
    except (OSError, ValueError) as error:
        message = f"A file of {folder} cannot be read ({cause_of(error)})."
        raise UnreadableSource.because("unreadable-file", message, where=str(folder)) from None
    return unified_diff(before, after, names[0], names[1], n=1)


def run(command: str, *, may_be: Sequence[int] = (0,)) -> None:
    """Run a target's command part by part, without a shell; its output goes to the terminal.

    Raises:
        BackendError: a program does not exist or fails; later parts were not run.
    """
    for part in command.split(THEN):
        words = shlex.split(part)
        try:
            code = subprocess.run(words, check=False).returncode
        except OSError as error:
            raise BackendError(
                f"{words[0]} cannot be run ({cause_of(error)}). Install it, or run the printed commands where it is."
            ) from None
        if code not in may_be:
            raise BackendError(text_of("rollback-command-failed", part=part, status=code))
