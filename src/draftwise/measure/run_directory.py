"""The run directory: raw readings, appended as they come and never rewritten, from which every number follows.

`manifest.json` is the plan and the context, `workload-NAME.jsonl` what was sent, `requests.jsonl` one line per
request, `turns.jsonl` one line per turn, `divergences.jsonl` what two servers said where their outputs part.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

from draftwise.core import (
    Answer,
    Arm,
    Counters,
    Divergence,
    InvalidSetup,
    Run,
    RunPlan,
    SpecConfig,
    SpecStats,
    Timing,
    Window,
    Workload,
)
from draftwise.measure.workload_file import read_workload

__all__ = ["RunDirectory"]

_FORMAT = 1
SERVER_LOGS = "servers"
_REQUESTS, _TURNS, _DIVERGENCES = "requests.jsonl", "turns.jsonl", "divergences.jsonl"


class RunDirectory:
    """A folder that one run writes and that reports are made from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[str, TextIO] = {}

    @classmethod
    def claim(cls, path: Path) -> RunDirectory:
        """Return the directory for a new run; only server logs may be there already.

        Raises:
            InvalidSetup: the path is taken.
        """
        if path.exists() and (not path.is_dir() or any(each.name != SERVER_LOGS for each in path.iterdir())):
            raise InvalidSetup.because(
                "run-exists",
                "is there already.",
                where=str(path),
                fix=f"Choose another --out, or continue it with --resume {path}.",
            )
        return cls(path)

    def log_of(self, arm: str) -> Path:
        """Return the file for what the server of an arm prints."""
        return self.path / SERVER_LOGS / f"{re.sub(r'[^A-Za-z0-9.=-]+', '-', arm)}.log"

    def begin(self, plan: RunPlan, context: Mapping[str, Any]) -> None:
        """Write the prompts, then the manifest: from now on the run can be resumed."""
        self.path.mkdir(parents=True, exist_ok=True)
        for workload in plan.workloads:
            lines = "".join(json.dumps(prompt.to_dict()) + "\n" for prompt in workload.prompts)
            _write_whole(self._workload_path(workload.name), lines)
        self._write_manifest(plan, context)

    def _write_manifest(self, plan: RunPlan, context: Mapping[str, Any]) -> None:
        arms = [
            {"name": arm.name, "spec": None if arm.spec is None else arm.spec.to_dict(), "url": arm.url}
            for arm in plan.arms
        ]
        workloads = [
            {"name": each.name, "source": each.source, "prompts": len(each.prompts), "sha256": each.sha256}
            for each in plan.workloads
        ]
        names = ("repeats", "warmup", "temperature", "seed", "concurrency")
        settings = {name: getattr(plan, name) for name in names}
        manifest = {"format": _FORMAT, "arms": arms, "workloads": workloads, **settings, "context": dict(context)}
        _write_whole(self.path / "manifest.json", json.dumps(manifest, indent=2) + "\n")

    def add_turn(self, window: Window, answers: list[Answer]) -> None:
        """Append a finished turn; it counts once its `turns.jsonl` line is on disk."""
        for answer in answers:
            self._append(_REQUESTS, asdict(answer))
        self._append(_TURNS, asdict(window))

    def add_divergence(self, divergence: Divergence) -> None:
        """Append what two servers said about the place where they part."""
        self._append(_DIVERGENCES, asdict(divergence))

    def write(self, name: str, text: str) -> None:
        """Write a file that is made from the readings, whole or not at all."""
        _write_whole(self.path / name, text)

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def read(self) -> Run:
        """Return everything the folder holds.

        Raises:
            InvalidSetup: it is not a run directory, or was written by another version of the format.
        """
        manifest = self._read_manifest()
        windows = {line["turn"]: _to_window(line) for line in self._lines(_TURNS)}
        answers: dict[tuple[int, str], Answer] = {}
        for line in self._lines(_REQUESTS):
            if line["turn"] in windows:
                answers[line["turn"], line["prompt_id"]] = _to_answer(line)
        return Run(
            plan=self._to_plan(manifest),
            context=manifest["context"],
            answers=tuple(answers.values()),
            windows=tuple(windows.values()),
            divergences=tuple(Divergence(**line) for line in self._lines(_DIVERGENCES)),
        )

    def _read_manifest(self) -> dict[str, Any]:
        path = self.path / "manifest.json"
        try:
            manifest: dict[str, Any] = json.loads(path.read_text())
            known = manifest["format"] == _FORMAT
        except (OSError, ValueError, KeyError, TypeError):
            raise InvalidSetup.because(
                "not-a-run",
                "is not a run directory (no readable manifest.json).",
                where=str(self.path),
                fix="Give the folder that `draftwise decide --out` wrote.",
            ) from None
        if not known:
            raise InvalidSetup.because(
                "run-format",
                f"has format {manifest['format']}, this version reads {_FORMAT}.",
                where=str(path),
                fix="Use the draftwise that wrote it.",
            )
        return manifest

    def _to_plan(self, manifest: Mapping[str, Any]) -> RunPlan:
        arms = (
            Arm(name=arm["name"], spec=None if arm["spec"] is None else SpecConfig.parse(arm["spec"]), url=arm["url"])
            for arm in manifest["arms"]
        )
        workloads = tuple(self._read_workload(row) for row in manifest["workloads"])
        names = ("repeats", "warmup", "temperature", "seed", "concurrency")
        return RunPlan(arms=tuple(arms), workloads=workloads, **{name: manifest[name] for name in names})

    def _read_workload(self, row: Mapping[str, Any]) -> Workload:
        path = self._workload_path(row["name"])
        workload = replace(read_workload(path), name=row["name"], source=row["source"])
        if workload.sha256 != row["sha256"]:
            raise InvalidSetup.because(
                "workload-changed",
                "is not what was measured (its hash differs from the manifest).",
                where=str(path),
                fix="Restore the file or start a new run.",
            )
        return workload

    def _workload_path(self, name: str) -> Path:
        return self.path / f"workload-{name}.jsonl"

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        if name not in self._open:
            _mend(self.path / name)
            self._open[name] = (self.path / name).open("a")
        file = self._open[name]
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a file; a last line cut off by a crash is not there."""
        path = self.path / name
        if not path.exists():
            return
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def _to_answer(row: dict[str, Any]) -> Answer:
    timing = row["timing"] | {"chunks": tuple((time, count) for time, count in row["timing"]["chunks"])}
    ids = {name: tuple(row[name]) for name in ("token_ids", "prompt_token_ids")}
    return Answer(**{**row, **ids, "timing": Timing(**timing)})


def _to_window(row: dict[str, Any]) -> Window:
    spec = row["counters"]["spec"]
    per_pos = {name: tuple(spec[name]) for name in ("accepted_per_pos", "drafted_per_pos")}
    counters = Counters(**{**row["counters"], "spec": SpecStats(**{**spec, **per_pos})})
    return Window(**{**row, "counters": counters})


def _write_whole(path: Path, text: str) -> None:
    draft = path.with_suffix(".part")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _mend(path: Path) -> None:
    """Cut off a last line that a crash left unfinished, so that the next one begins on its own."""
    if path.exists():
        data = path.read_bytes()
        os.truncate(path, data.rfind(b"\n") + 1)
