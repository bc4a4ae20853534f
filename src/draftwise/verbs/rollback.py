"""`rollback`: takes a deployment back to serving without speculation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from os import PathLike
from pathlib import Path
from typing import ClassVar

from draftwise.core import InvalidSetup
from draftwise.core.documents import HIDDEN
from draftwise.core.progress import Progress
from draftwise.deploying.deployment_folder import read_record
from draftwise.deploying.rollback_plan import RollbackPlan, plan_rollback, run
from draftwise.deploying.verify.manifest_files import prove_deployment
from draftwise.verbs.verb import Result, verb


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    """A deployment, and how far to go back."""

    folder: str | PathLike[str]
    """Folder that `deploy` wrote."""
    _: KW_ONLY
    apply: bool = False
    """Whether to apply the revision without speculation."""
    remove: bool = False
    """Whether to remove the twin that ran next to the service, once it has no traffic."""
    confirm: Callable[[str, str], bool] | None = None
    """Called before each command with a remark and the command; False stops. None runs without asking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackStep:
    """One step back."""

    text: str
    command: str
    """Command to run; empty for a step that you do yourself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackResult(Result):
    """The steps back, and which of them were run."""

    VERB: ClassVar[str] = "rollback"
    steps: tuple[RollbackStep, ...]
    leaves: str
    """What remains after the last step."""
    ran: tuple[str, ...]
    """Commands that were run."""
    next: tuple[str, ...] = field(default=(), metadata=HIDDEN)
    """What to do or know after these commands."""


@verb(RollbackRequest)
def rollback(request: RollbackRequest, _progress: Progress) -> RollbackResult:
    """Return the steps that take a deployment back to serving without speculation, or run them.

    One command applies the next revision, without speculation and under the name that clients use. With compose and
    systemd, the server restarts in place.
    """
    folder = Path(request.folder)
    way = plan_rollback(folder)
    ran: list[str] = []
    after: list[str] = []
    if (request.apply or request.remove) and (changed := list(prove_deployment(folder, read_record(folder)))):
        raise InvalidSetup(changed)
    if request.apply:
        if way.compare:
            run(way.compare, may_be=(0, 1))
        if not _run(request, "\n".join(filter(None, (way.difference, way.gap))), way.start, ran):
            return _describe(way, ran, after)
        after += [way.commit, f"It leaves behind: {way.leaves}"]
    if request.remove:
        _run(request, "\n".join(after), way.remove, ran)
    return _describe(way, ran, after)


def _run(request: RollbackRequest, first: str, command: str, ran: list[str]) -> bool:
    if request.confirm is not None and not request.confirm(first, command):
        return False
    run(command)
    ran.append(command)
    return True


def _describe(way: RollbackPlan, ran: list[str], after: list[str]) -> RollbackResult:
    steps = [
        ("See what changes", way.compare),
        (" ".join(filter(None, ("Go back.", way.gap))), way.start),
        (way.commit, ""),
        ("Remove the twin that ran next to it, if there is one", way.remove),
    ]
    shown = (RollbackStep(text=text, command=command) for text, command in steps if command or text == way.commit)
    return RollbackResult(steps=tuple(shown), leaves=way.leaves, ran=tuple(ran), next=tuple(after))
