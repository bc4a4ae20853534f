"""The run directory: raw timings, appended as they arrive and never rewritten, from which all numbers are computed.

- `manifest.json`: the plan and the context. `workload-NAME.jsonl`: what was sent.
- `requests.jsonl`: one line per request. `turns.jsonl`: one line per finished turn.
- `settled.jsonl`: cells that need no more repetitions. `looks.jsonl`: interim looks at cells that could stop them.
- `conditions.jsonl`: loads added in the search for a crossover. `estimates.jsonl`: expected times for the rest.
- `divergences.jsonl`: what two servers report where their outputs diverge. `probes.jsonl`: answers outside turns.
- `paces.jsonl`: seconds per decoding step on warm-up prompts, before and at the end.
- `asked.jsonl`: prompts about to go to a server that could remember them.
- `omissions.jsonl`: what was left out; a line strikes it out when the run is resumed.

A request is written when it ends; its turn counts once its line is in `turns.jsonl`. `reserved` holds disk space that
is freed when the disk is full, so that answers in flight can still be written.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from draftwise.core import (
    Answer,
    CellLook,
    Condition,
    Divergence,
    Estimate,
    Expectation,
    Omission,
    OutputProbe,
    Prompt,
    Run,
    RunContext,
    RunPlan,
    Settled,
    StorageError,
    TurnRecord,
    WarmPace,
    Workload,
    cause_of,
)
from draftwise.core.documents import from_json, to_json
from draftwise.knowledge.messages import refusal, text_of
from draftwise.machine.whole_files import write_whole
from draftwise.runs.manifest import Manifest, WorkloadRow, read_manifest
from draftwise.runs.row_files import RowFile, blame, cut_unfinished, damaged
from draftwise.workloads import read_prompts

T = TypeVar("T")
_SERVER_LOGS = "servers"
_MANIFEST = "manifest.json"
_REQUESTS, _TURNS, _ASKED, _OMISSIONS = "requests.jsonl", "turns.jsonl", "asked.jsonl", "omissions.jsonl"
Record = Condition | Settled | CellLook | OutputProbe | WarmPace | Omission | Expectation | Estimate | Divergence
_FILES: Mapping[type[Any], str] = {
    Condition: "conditions.jsonl",
    Settled: "settled.jsonl",
    CellLook: "looks.jsonl",
    OutputProbe: "probes.jsonl",
    WarmPace: "paces.jsonl",
    Omission: _OMISSIONS,
    Expectation: "expected.jsonl",
    Estimate: "estimates.jsonl",
    Divergence: "divergences.jsonl",
}
"""Files whose rows follow from their type alone."""
_RESERVED = "reserved"
_EARLIER_RESERVED = "ballast"
"""Its name in runs from before 2026-11-24; what a killed one left is freed when the run is continued."""
_RESERVED_BYTES = 8 << 20
"""Space for the answers that a thousand streams still bring while the disk is full."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LATEST_S = 1e12
"""Later than any clock."""
_DESCRIBED = ("name", "source", "description", "random_tokens", "population", "choice")
"""What the manifest says of a workload besides its prompts."""


def _to_row(prompt: Prompt) -> dict[str, Any]:
    """Return the line of a prompt: what is sent, and where in its log it stands."""
    return prompt.to_dict() | ({} if prompt.origin is None else {"origin": to_json(prompt.origin)})


def _read_answer(row: dict[str, Any]) -> Answer:
    answer = from_json(Answer, row)
    if not 0 <= answer.timing.sent <= answer.timing.finished < _LATEST_S:
        raise ValueError("its times are no clock's")
    return answer


class RunDirectory:
    """The folder that a run writes, and that reports are made from."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_full = False
        """Whether the disk ran full; what came until then, and while the last turn ended, is written."""
        self._open: dict[str, BinaryIO] = {}
        self._answers = RowFile(path / _REQUESTS, _read_answer)
        self._turns = RowFile(path / _TURNS, partial(from_json, TurnRecord))
        self._workloads: dict[tuple[str, str], Workload] = {}
        """Those that were read, by name and hash."""

    @classmethod
    def claim(cls, path: Path) -> RunDirectory:
        """Create the directory for a new run; it may already hold server logs, but nothing else.

        Raises:
            InvalidSetup: the path is taken, or nothing can be written there.
        """
        if path.exists() and (not path.is_dir() or any(each.name != _SERVER_LOGS for each in path.iterdir())):
            raise refusal("run-exists", path=path, quoted=shlex.quote(str(path)))
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / _RESERVED).touch()
            (path / _RESERVED).unlink()
        except OSError as error:
            # Said now, not after the servers have taken minutes to start.
            raise refusal("unwritable-run", path=path, cause=cause_of(error)) from None
        return cls(path)

    def log_of(self, arm: str) -> Path:
        """Return the file for the output of an arm's server."""
        return self.path / _SERVER_LOGS / f"{re.sub(r'[^A-Za-z0-9.=-]+', '-', arm)}.log"

    def begin(self, plan: RunPlan, context: RunContext) -> None:
        """Write the prompts, then the manifest; from then on, the run can be resumed.

        Raises:
            StorageError: the disk is full.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for workload in plan.workloads:
                lines = "".join(json.dumps(_to_row(prompt)) + "\n" for prompt in workload.prompts)
                write_whole(self._workload_path(workload.name), lines)
            manifest = to_json(Manifest.of(plan, context))
            write_whole(self.path / _MANIFEST, json.dumps(manifest, indent=2) + "\n")
        except OSError as error:
            raise self._cannot_write(error) from None

    def reserve(self) -> None:
        """Reserve the space to free when the disk is full; none if there is too little."""
        path = self.path / _RESERVED
        try:
            (self.path / _EARLIER_RESERVED).unlink(missing_ok=True)
            with path.open("wb") as file:
                file.write(b"\0" * _RESERVED_BYTES)
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)

    def add_answer(self, answer: Answer) -> None:
        """Append the answer of a request that ended.

        Raises:
            StorageError: it cannot be written, not even into the reserved space.
        """
        self._append(_REQUESTS, to_json(answer), sync=False)

    def finish_turn(self, turn: TurnRecord) -> None:
        """Append a turn whose requests are all written; from then on, they count."""
        if _REQUESTS in self._open:
            os.fsync(self._open[_REQUESTS].fileno())
        self._append(_TURNS, to_json(turn))

    def add(self, record: Record) -> None:
        """Append a record to the file of its type."""
        self._append(_FILES[type(record)], to_json(record))

    def add_asked(self, arm: str, workload: str, prompt_ids: Sequence[str]) -> None:
        """Append prompts about to go to a server that could remember them."""
        self._append(_ASKED, {"arm": arm, "workload": workload, "prompts": list(prompt_ids)})

    def read_asked(self) -> set[tuple[str, str, str]]:
        """Return (arm, workload, id) of prompts sent to servers that could remember them."""
        rows = RowFile(self.path / _ASKED, lambda row: (row["arm"], row["workload"], row["prompts"])).read()
        return {(arm, workload, each) for arm, workload, prompts in rows for each in prompts}

    def strike_omissions(self) -> None:
        """Strike out omissions that are still in the plan, because they will be measured now."""
        self._append(_OMISSIONS, {"struck": True})

    def read_omissions(self) -> tuple[Omission, ...]:
        """Return what is still left out."""
        left: list[Omission] = []
        for row in RowFile(self.path / _OMISSIONS, lambda row: row.get("struck") or from_json(Omission, row)).read():
            if isinstance(row, Omission):
                left.append(row)
            else:
                left = [each for each in left if (each.is_final if row is True else each.what != row)]
        return tuple(left)

    def write(self, name: str, text: str) -> None:
        """Write a file computed from the readings, completely or not at all.

        Raises:
            StorageError: the disk is full.
        """
        try:
            write_whole(self.path / name, text)
        except OSError as error:
            raise self._cannot_write(error) from None

    def close(self) -> None:
        """Close the files and free the reserved space."""
        for file in self._open.values():
            file.close()
        self._open.clear()
        with suppress(OSError):
            (self.path / _RESERVED).unlink(missing_ok=True)

    def leave(self) -> None:
        """Remove the folder if it is empty."""
        with suppress(OSError):
            self.path.rmdir()

    def read(self) -> Run:
        """Return the run; rows read earlier are not parsed again.

        Raises:
            InvalidSetup: it is not a run directory, is damaged, or was written by another version of the format.
        """
        manifest = read_manifest(self.path / _MANIFEST)
        with blame(str(self.path / _MANIFEST)):
            plan, context = Manifest.read(manifest, self._read_workload)
        turns = {turn.turn: turn for turn in self._turns.read()}
        answers = self._answers.read()
        finished = [answer for answer in answers if answer.turn in turns]
        run = Run(
            plan=plan,
            context=context,
            answers=tuple(finished),
            turns=tuple(turns.values()),
            divergences=self._read_records(Divergence),
            added=self._read_records(Condition),
            settled=self.read_settled(),
            looks=self._read_records(CellLook),
            probes=self._read_records(OutputProbe),
            warm_paces=self._read_records(WarmPace),
            omissions=self.read_omissions(),
            expected=self._read_records(Expectation),
            estimates=self._read_records(Estimate),
            num_unfinished=len(answers) - len(finished),
        )
        self._check_names(run)
        return run

    def _check_names(self, run: Run) -> None:
        """Refuse measurements of what the plan does not know: files were changed by hand, or are of several runs."""
        known = (
            ("arm", {arm.name for arm in run.plan.arms}),
            ("workload", {workload.name for workload in run.plan.workloads}),
            ("condition", {condition.label for condition in run.conditions}),
        )
        for file, rows in ((_TURNS, run.turns), (_REQUESTS, run.answers)):
            for kind, names in known:
                if strange := {getattr(row, kind) for row in rows} - names:
                    text = f"holds readings of the {kind} {min(strange)!r}, which {_MANIFEST} does not plan."
                    raise damaged(str(self.path / file), text)

    def read_settled(self) -> tuple[Settled, ...]:
        """Return the cells that need no more repetitions."""
        return self._read_records(Settled)

    def next_number(self) -> int:
        """Return a number that no turn has, finished or not."""
        used = (row.turn for row in chain[Answer | TurnRecord](self._answers.read(), self._turns.read()))
        return max(used, default=-1) + 1

    def _read_records(self, kind: type[T]) -> tuple[T, ...]:
        return tuple(RowFile(self.path / _FILES[kind], partial(from_json, kind)).read())

    def _read_workload(self, row: WorkloadRow) -> Workload:
        described: dict[str, Any] = {name: getattr(row, name) for name in _DESCRIBED}
        if (known := self._workloads.get((row.name, row.sha256))) is not None:
            return replace(known, **described)
        path = self._workload_path(row.name)
        workload = Workload(prompts=read_prompts(path), **described)
        if workload.sha256 != row.sha256:
            raise refusal("workload-changed", path=path, manifest=_MANIFEST)
        self._workloads[row.name, row.sha256] = workload
        return workload

    def _workload_path(self, name: str) -> Path:
        return self.path / f"workload-{re.sub(r'[^A-Za-z0-9._=-]+', '-', name)}.jsonl"

    def _append(self, name: str, row: Mapping[str, Any], *, sync: bool = True) -> None:
        line = json.dumps(row).encode() + b"\n"
        try:
            self._write_line(name, line, sync)
        except OSError as error:
            if error.errno not in _FULL or self.is_full:
                raise self._cannot_write(error) from None
            self.is_full = True
            (self.path / _RESERVED).unlink(missing_ok=True)
            try:
                self._write_line(name, line, sync)
            except OSError as again:
                raise self._cannot_write(again) from None

    def _write_line(self, name: str, line: bytes, sync: bool) -> None:
        """Append a whole line, or leave the file as it was."""
        if name not in self._open:
            cut_unfinished(self.path / name)
            self._open[name] = (self.path / name).open("ab", buffering=0)
        file = self._open[name]
        end = file.tell()
        try:
            written = file.write(line)
            if written != len(line):
                # A disk that has room for half a line takes that half without an error.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):
                file.truncate(end)
                file.seek(end)
            raise

    def _cannot_write(self, error: OSError) -> StorageError:
        quoted = shlex.quote(str(self.path))
        return StorageError(text_of("run-not-kept", path=self.path, quoted=quoted, cause=cause_of(error)))
