"""Runs on disk as rows of a list, read from summary.json and cached for the user."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from draftwise.core import DraftwiseError
from draftwise.machine.folders import cache_folder
from draftwise.machine.whole_files import write_whole

_KEPT = "runs.json"
_VERSION = 1
_DEEPEST = 4
"""Folders between one that is named and a run in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """A run as a list shows it."""

    path: str
    started: str
    """Date and time, UTC; empty if unknown."""
    model: str
    hardware: str
    release: str
    """Version of the servers, several joined by a comma."""
    decision: str
    """The decision in words; empty for a run without a report."""
    verdict: str
    """`adopt` if a candidate is adopted anywhere, else the verdict of the fastest; empty if unknown."""
    candidate: str
    """The fastest candidate among those with the verdict."""
    speedup: float | None
    low: float | None
    high: float | None
    """Ends of the 95 % interval."""
    is_evidence: bool

    @property
    def key(self) -> str:
        """Name of the run in URLs."""
        return sha256(self.path.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """Name of its folder."""
        return Path(self.path).name


def list_runs(folders: Iterable[Path]) -> list[ListedRun]:
    """Return the runs in folders, newest first; a summary is read again only if it changed."""
    kept: dict[str, Any] = {}
    file = cache_folder() / _KEPT
    with suppress(OSError, ValueError):
        stored = json.loads(file.read_text(encoding="utf-8"))
        kept = stored["rows"] if stored["version"] == _VERSION else {}
    found: dict[str, ListedRun] = {}
    read: dict[str, Any] = {}
    for path in dict.fromkeys(each for folder in folders for each in _find(folder.resolve(), _DEEPEST)):
        mark = _mark(path)
        known = kept.get(path)
        if known is None or known[0] != mark:
            known = read[path] = [mark, asdict(_read(path))]
        with suppress(TypeError):
            found[path] = ListedRun(**known[1])
    if read:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps({"version": _VERSION, "rows": kept | read}))
    return sorted(found.values(), key=lambda each: (each.started, each.path), reverse=True)


def trace_run(path: Path) -> dict[str, list[list[float]]]:
    """Return pairs of minutes and speed over its median by arm, along a run; empty if the run cannot be read."""
    from draftwise.reporting.speed_over_time import condense, trace_speed
    from draftwise.runs import RunDirectory

    try:
        run = RunDirectory(path).read()
    except DraftwiseError:
        return {}
    found = trace_speed(run, (each for each in run.answers if each.measured and each.error is None))
    return {arm: condense(points).tolist() for arm, points in found.items()}


def _find(folder: Path, depth: int) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda each: each.name)
        if {"manifest.json", "turns.jsonl"} <= {each.name for each in listed}:
            yield str(folder)
        elif depth:
            for each in listed:
                if each.is_dir(follow_symlinks=False) and not each.name.startswith("."):
                    yield from _find(Path(each.path), depth - 1)


def _mark(path: str) -> list[int]:
    """Return what changes when the summary does. A run without one is known by its manifest."""
    for name in ("summary.json", "manifest.json"):
        with suppress(OSError):
            status = os.stat(os.path.join(path, name))
            return [status.st_mtime_ns, status.st_size]
    return []


def _read(path: str) -> ListedRun:
    summary: Any = {}
    with suppress(OSError, ValueError, RecursionError):
        summary = json.loads(Path(path, "summary.json").read_text(encoding="utf-8"))
    try:
        return _describe(path, summary)
    except (AttributeError, KeyError, TypeError, ValueError):  # a summary of another release, or damaged
        return _describe(path, {})


def _describe(path: str, summary: Mapping[str, Any]) -> ListedRun:
    context = summary.get("context") or {}
    scope = summary.get("scope_values") or {}
    compared = [each for each in summary.get("comparisons") or () if each["deciding"]["value"] is not None]
    adopted = [each for each in compared if each["verdict"] == "adopt"]
    first = max(adopted or compared, key=lambda each: float(each["deciding"]["value"]), default=None)
    deciding = {} if first is None else first["deciding"]
    return ListedRun(
        path=path,
        started=str(context.get("started") or ""),
        model=str(scope.get("model") or ""),
        hardware=", ".join(map(str, scope.get("hardware") or ())),
        release=", ".join(map(str, scope.get("servers") or ())),
        decision=str(summary.get("decision") or ""),
        verdict="" if first is None else str(first["verdict"]),
        candidate="" if first is None else str(first["candidate"]),
        speedup=deciding.get("value"),
        low=deciding.get("low"),
        high=deciding.get("high"),
        is_evidence=bool(summary.get("evidence")),
    )
