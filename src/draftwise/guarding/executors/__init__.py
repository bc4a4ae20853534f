"""What carries steps out, for as long as the operator names it: HAProxy's socket, a command, a patch for Git."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from draftwise.core import InvalidSetup
from draftwise.core.action import Step
from draftwise.guarding.executors.base import Executor
from draftwise.guarding.executors.command import Command
from draftwise.guarding.executors.haproxy import HAProxy
from draftwise.guarding.executors.patch import Patch

__all__ = ["Executor", "find_executor", "parse_executor"]


def parse_executor(text: str, *, patch_file: Path) -> Executor:
    """Return the executor that `--act` names.

    Args:
        text: `haproxy=SOCKET`, `command=WORDS` or `patch=DIR`.
        patch_file: where a patch is written.

    Raises:
        InvalidSetup: it is none of them, or names a folder or command that is none.
    """
    kind, _, given = text.partition("=")
    if kind == "haproxy" and given:
        return HAProxy(text, given)
    if kind == "command" and given:
        return Command(text, given)
    if kind == "patch" and given:
        return Patch(text, Path(given), patch_file)
    raise InvalidSetup.because(
        "unknown-executor",
        f"--act {text} names nothing that can carry out a step.",
        where="--act",
        fix="Use haproxy=SOCKET, command='WORDS {step} {replica}' or patch=DIR.",
    )


def find_executor(executors: Sequence[Executor], step: Step) -> Executor | None:
    """Return the first executor that can carry out a step."""
    return next((each for each in executors if step in each.steps), None)
