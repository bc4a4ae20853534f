"""The files of a guard: its state, written whole; its steps and the rows that drift is judged on, appended to."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from draftwise.core import StorageError, UnreadableSource
from draftwise.core.action import Action
from draftwise.guarding.lease import locked
from draftwise.guarding.state import State
from draftwise.machine.files import write_whole
from draftwise.runs.row_files import RowFile, cut_unfinished
from draftwise.watching.drift import ROW_S, WindowRow

__all__ = ["KEPT_DAYS", "KEPT_ROWS", "Store"]

KEPT_DAYS = 60
KEPT_ROWS = KEPT_DAYS * 86_400 // ROW_S
_FORMAT = "draftwise-guard"
_VERSION = 1
_SLACK_ROWS = 2_000
"""By so many rows a file may be too long before it is written anew."""


class Store:
    """What a guard keeps beside the file that --state names.

    Args:
        path: of the state.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps = path.with_suffix(".steps.jsonl")
        self.patch = path.with_suffix(".roll-back.patch")
        self._rows = path.with_suffix(".rows.csv")
        self._num_rows: int | None = None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep every other process from the state meanwhile."""
        with locked(self.path), _tell_of_disk(self.path):
            yield

    def read(self) -> State:
        """Return the state; a new one where there is no file.

        Raises:
            UnreadableSource: the file is something else.
        """
        try:
            given = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(given, dict) or (given.get("format"), given.get("version")) != (_FORMAT, _VERSION):
                raise ValueError(f"its format is not {_FORMAT!r} of version {_VERSION}")
            return State.from_dict(given["state"])
        except FileNotFoundError:
            return State()
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UnreadableSource.because(
                "not-a-guard-state",
                f"{self.path} is no state of a guard that this version reads ({error}).",
                where="--state",
                fix="Name the file of an earlier `draftwise guard`, or one that is not there yet.",
            ) from None

    def write(self, state: State) -> None:
        """Replace the state as a whole."""
        row = {"format": _FORMAT, "version": _VERSION, "state": state.to_dict()}
        write_whole(self.path, json.dumps(row, indent=1) + "\n")

    def record(self, action: Action, *, at_s: float, outcome: str, by: str = "") -> None:
        """Append a step with its evidence.

        Args:
            action: carried out or proposed.
            at_s: since the epoch.
            outcome: `proposed`, `begun`, `done`, `failed: why` or `undone`.
            by: the executor, as it was named.
        """
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))
        _append(self.steps, json.dumps({"at": at, "outcome": outcome, "by": by, **asdict(action)}) + "\n")

    def read_steps(self) -> Sequence[Mapping[str, Any]]:
        """Return all steps that were recorded."""
        return RowFile(self.steps, dict).read()

    def read_rows(self) -> Sequence[WindowRow]:
        """Return the rows of the last 60 days; damaged lines are passed over, as gaps are."""
        if not self._rows.exists():
            return []
        with self._rows.open(encoding="utf-8", errors="replace") as file:
            rows = [row for line in file if line.endswith("\n") and (row := _parse_row(line)) is not None]
        return rows[-KEPT_ROWS:]

    def add_older(self, recorded: Iterable[WindowRow]) -> None:
        """Put rows of elsewhere between those that are there, which count where both have one."""
        rows = {row.began_s: row for row in (*recorded, *self.read_rows())}
        kept = [rows[began_s] for began_s in sorted(rows)][-KEPT_ROWS:]
        write_whole(self._rows, "".join(map(_format_row, kept)))
        self._num_rows = len(kept)

    def add_row(self, row: WindowRow) -> None:
        """Append a row; now and then the file is cut to the last 60 days."""
        if self._num_rows is None:
            self._num_rows = len(self.read_rows())
        _append(self._rows, _format_row(row))
        self._num_rows += 1
        if self._num_rows > KEPT_ROWS + _SLACK_ROWS:
            kept = self.read_rows()
            write_whole(self._rows, "".join(map(_format_row, kept)))
            self._num_rows = len(kept)


def _format_row(row: WindowRow) -> str:
    return f"{row.began_s},{row.drafts},{row.accepted},{int(row.usable)}\n"


def _parse_row(line: str) -> WindowRow | None:
    try:
        began_s, drafts, accepted, usable = map(int, line.split(","))
    except ValueError:
        return None
    return WindowRow(began_s=began_s, drafts=drafts, accepted=accepted, usable=bool(usable))


def _append(path: Path, line: str) -> None:
    """Append a line so that it is there after a crash; one that a crash cut off before is cut away."""
    cut_unfinished(path)
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _tell_of_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"What the guard knows cannot be written beside {path} ({error.strerror}). Make room, or choose another "
            "--state."
        ) from None
