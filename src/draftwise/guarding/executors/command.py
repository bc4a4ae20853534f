"""Carries out steps by a command of the operator."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

from draftwise.core import BackendError, InvalidSetup
from draftwise.core.action import Action, Step

__all__ = ["Command"]

_TIMEOUT_S = 60.0
_LONGEST = 300


class Command:
    """Runs a command once a replica, without a shell; it has 60 seconds, and exit code 0 means that it is done."""

    steps = frozenset({Step.SHIFT, Step.DRAIN, Step.TRICKLE, Step.RELEASE, Step.RESTART})

    def __init__(self, name: str, template: str) -> None:
        """Take a command in which {step} and {replica} stand for what is to be done and for a URL.

        Raises:
            InvalidSetup: it is no command, or does not say what and where.
        """
        self.name = name
        self._words = _split(template)

    def prove(self, replicas: Sequence[str]) -> None:
        """Do nothing: a command is not run before it is needed."""

    def carry_out(self, action: Action) -> None:
        """Run the command for each replica in turn.

        Raises:
            BackendError: it failed; the replicas after it were not touched.
        """
        for replica in action.replicas:
            filled = [word.replace("{step}", action.step).replace("{replica}", replica) for word in self._words]
            _run(filled)

    def is_out(self, replica: str) -> bool | None:  # noqa: ARG002
        """Return None: a command does not tell."""
        return None


def _split(template: str) -> Sequence[str]:
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise _refuse(f"--act command={template} cannot be split into words ({error}).") from None
    if not all(any(name in word for word in words) for name in ("{step}", "{replica}")):
        raise _refuse(f"--act command={template} does not say what is to be done and where.")
    return words


def _refuse(message: str) -> InvalidSetup:
    fix = "Write --act command='PROGRAM {step} {replica}': steps are shift, drain, trickle, release and restart."
    return InvalidSetup.because("unusable-command", message, where="--act", fix=fix)


def _run(words: Sequence[str]) -> None:
    shown = shlex.join(words)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise BackendError(f"`{shown}` did not end within {_TIMEOUT_S:.0f} s. Look at what it was doing.") from None
    except OSError as error:
        raise BackendError(f"`{shown}` cannot be run ({error.strerror}). Name a program that is there.") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-_LONGEST:]
        raise BackendError(f"`{shown}` failed with exit code {done.returncode}: {said or 'it said nothing'}.")
