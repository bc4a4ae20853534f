"""Documents that one verb writes and another reads: profiles, calibrations, forecasts and baselines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from draftwise.core import Baseline, Calibration, Profile, StorageError
from draftwise.core.documents import read_document, to_json
from draftwise.knowledge.messages import unreadable
from draftwise.machine.whole_files import write_whole

T = TypeVar("T")
_PROFILE = "profile.json"


def read_profile(path: Path) -> Profile:
    """Return the profile of a replay, given as its folder or its file; raises as `read_file` does."""
    return read_file(Profile, path / _PROFILE if path.is_dir() else path)


def read_calibration(path: Path) -> Calibration:
    """Return a calibration; raises as `read_file` does."""
    return read_file(Calibration, path)


def read_baseline(path: Path) -> Baseline:
    """Return a baseline; raises as `read_file` does."""
    return read_file(Baseline, path)


def read_file(kind: type[T], path: Path) -> T:
    """Return the value of a document's file.

    Args:
        kind: class of the document, which has a `JSON_FORMAT`.

    Raises:
        UnreadableSource: the file does not exist, or holds no JSON.
        InvalidSetup: it holds another document or version, or is damaged.
    """
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise unreadable("unreadable-file", case="document", path=path, reason=reason) from None
    return read_document(kind, row, str(path))


def write_document(path: Path, document: Any) -> None:
    """Write a document, completely or not at all.

    Raises:
        StorageError: it cannot be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(to_json(document), indent=1) + "\n")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}. Give another --out.") from None
