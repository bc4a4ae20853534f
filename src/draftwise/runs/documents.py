"""Documents that one verb writes and another reads: the profile of a replay, calibrations and forecasts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from draftwise.core import Calibration, Profile, StorageError, UnreadableSource
from draftwise.machine.whole_files import write_whole

__all__ = ["read_calibration", "read_document", "read_profile", "write_document"]

T = TypeVar("T")
_PROFILE = "profile.json"


class Document(Protocol):
    """What can be written as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""


def read_profile(path: Path) -> Profile:
    """Return the profile of a replay, given as its folder or its file.

    Raises:
        UnreadableSource: there is none that can be read.
        InvalidSetup: it is something else.
    """
    return read_document(path / _PROFILE if path.is_dir() else path, Profile.from_dict)


def read_calibration(path: Path) -> Calibration:
    """Return a calibration.

    Raises:
        UnreadableSource: there is none that can be read.
        InvalidSetup: it is something else.
    """
    return read_document(path, Calibration.from_dict)


def read_document(path: Path, parse: Callable[[Any, str], T]) -> T:
    """Return the value of a JSON file.

    Args:
        path: of the file.
        parse: makes the value of its object; the name of the file goes into its complaints.

    Raises:
        UnreadableSource: the file is not there, or holds no JSON.
    """
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise UnreadableSource.because(
            "unreadable-file", f"{path} cannot be read: {reason}.", where=str(path), fix="Check the path."
        ) from None
    return parse(row, str(path))


def write_document(path: Path, document: Document) -> None:
    """Write a document, whole or not at all.

    Raises:
        StorageError: it cannot be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(document.to_dict(), indent=1) + "\n")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}. Give another --out.") from None
