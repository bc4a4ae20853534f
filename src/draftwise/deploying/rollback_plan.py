"""The way back to the twin without speculation: its steps as commands, and running them."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from draftwise.core import BackendError, UnreadableSource
from draftwise.deploying.deployment import THEN, fill_in, start_twin
from draftwise.deploying.deployment_folder import Record, read_record
from draftwise.deploying.messages import unreadable
from draftwise.deploying.targets import TARGETS

__all__ = ["RollbackPlan", "plan_rollback", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """What to do, in the order in which no request is lost."""

    compare: str
    """Shows what `start` would change; empty where the platform has no such command."""
    difference: str
    """Unified diff of the twins' files."""
    start: str
    """Starts the twin and waits until it answers; where both need the same port and GPUs, stops the service before."""
    commit: str
    """Why starting it is not enough, a sentence."""
    move: str
    """What nobody but the operator can do, a sentence."""
    moves_first: bool
    """Whether that comes before the twin is started, and not after."""
    remove: str
    """Takes the service with speculation away."""
    leaves: str
    """What is left behind then, a sentence."""


def plan_rollback(folder: Path) -> RollbackPlan:
    """Return the way back that a folder of `deploy` holds.

    Raises:
        UnreadableSource: the folder holds no deployment, or a file of it cannot be read.
    """
    record = read_record(folder)
    if record.to not in TARGETS:
        raise unreadable("not-a-deployment", case="platform", folder=folder, to=record.to)
    target, spec, plain = TARGETS[record.to], record.sides["spec"], record.sides["plain"]
    move = f"Send the traffic of {spec.name} to {plain.name}, and wait until {spec.name} has no request in flight."
    if target.stop:
        move = (
            f"Send the traffic of {spec.name} elsewhere, and wait until it has no request in flight: its twin takes "
            f"its port and its GPUs, and nothing answers there for up to {record.startup_s} s. Where the twin runs on "
            "another host, leave out the command that stops the service."
        )
    return RollbackPlan(
        compare=fill_in(target.compare, plain, record, folder),
        difference="".join(_compare(folder, record)),
        start=start_twin(target, record, folder),
        commit=f"Commit {plain.file} in the place of {spec.file} to where these files are kept: what is undone "
        "on the platform alone comes back with the next apply.",
        move=move,
        moves_first=bool(target.stop),
        remove=fill_in(target.remove, spec, record, folder),
        leaves=record.leaves,
    )


def _compare(folder: Path, record: Record) -> Iterator[str]:
    names = (record.sides["spec"].file, record.sides["plain"].file)
    try:
        before, after = ((folder / name).read_text(encoding="utf-8").splitlines(keepends=True) for name in names)
    except (OSError, ValueError) as error:
        raise UnreadableSource.because(
            "unreadable-file", f"A file of {folder} cannot be read ({error}).", where=str(folder)
        ) from None
    return unified_diff(before, after, names[0], names[1], n=1)


def run(command: str, *, may_be: Sequence[int] = (0,)) -> None:
    """Run a command of a target, part after part, without a shell; what it prints goes to the terminal.

    Args:
        command: programs joined by `&&`.
        may_be: exit codes that are no failure.

    Raises:
        BackendError: a program is not there or fails; what follows it was not run.
    """
    for part in command.split(THEN):
        words = shlex.split(part)
        try:
            code = subprocess.run(words, check=False).returncode
        except OSError as error:
            raise BackendError(
                f"{words[0]} cannot be run ({error.strerror}). Install it, or run the printed commands where it is."
            ) from None
        if code not in may_be:
            raise BackendError(
                f"`{part}` failed with exit code {code}; what it said stands above, and nothing after it was run. "
                "Remove the cause and start the roll-back again: its commands can be repeated."
            )
