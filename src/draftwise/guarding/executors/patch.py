"""Writes the way back to the twin without speculation as a patch for Git: only a commit lasts."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path

from draftwise.core import BackendError
from draftwise.core.action import Action, Step
from draftwise.deploying.record import Record, read_record
from draftwise.machine.files import write_whole

__all__ = ["Patch"]


class Patch:
    """Puts the twin's text in the place of the file that is deployed, in a patch; nothing is applied."""

    steps = frozenset({Step.ROLL_BACK})

    def __init__(self, name: str, folder: Path, out: Path) -> None:
        """Take a folder that `draftwise deploy` wrote, and the file that the patch is written to.

        Raises:
            UnreadableSource: the folder is none.
        """
        self.name = name
        self._folder, self._out = folder, out
        self._record = read_record(folder)

    def prove(self, replicas: Sequence[str]) -> None:
        """Do nothing: a patch is about the whole service."""

    def carry_out(self, action: Action) -> None:
        """Write the patch, with why it was written above it, as `git apply` takes it.

        Raises:
            BackendError: a file cannot be read or written.
        """
        try:
            text = make_patch(self._folder, self._record)
            write_whole(self._out, f"{action.reason}\n\n{text}")
        except (OSError, ValueError) as error:
            raise BackendError(f"The patch {self._out} cannot be written ({error}).") from None

    def is_out(self, replica: str) -> bool | None:  # noqa: ARG002
        """Return None: whether a patch is applied is not seen from here."""
        return None


def make_patch(folder: Path, record: Record) -> str:
    """Return what turns the file that is deployed into its twin, by paths from the root of their repository."""
    spec, plain = (folder / record.sides[pool].file for pool in ("spec", "plain"))
    before, after = (path.read_text(encoding="utf-8").splitlines(keepends=True) for path in (spec, plain))
    path = spec.resolve().relative_to(_find_root(folder.resolve())).as_posix()
    return "".join(unified_diff(before, after, f"a/{path}", f"b/{path}"))


def _find_root(folder: Path) -> Path:
    """Return the working tree that a folder lies in; the folder itself where it is in none."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)
