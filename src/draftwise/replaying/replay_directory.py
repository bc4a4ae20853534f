"""Writes a replay's folder: its subject, one line per request and candidate, and the resulting profile.

`replay.json` says what is replayed, `candidate-N.jsonl` holds a line for each request of a candidate, appended as it is
replayed; `profile.json` and `anchors.npz` follow from these. A replay that was cut off goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from draftwise.core import InvalidSetup, Profile, SpecConfig, StorageError, cause_of
from draftwise.core.documents import to_json
from draftwise.machine.whole_files import write_whole
from draftwise.replaying.anchors import Anchors, Drafts, write_anchors
from draftwise.replaying.transcripts import DraftRows, ReplayedRequest, Transcript
from draftwise.runs.row_files import RowFile, cut_unfinished

PROFILE = "profile.json"
_MANIFEST = "replay.json"
_FORMAT, _VERSION = "draftwise-replay", 1


class ReplayDirectory:
    """A folder that one replay writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path, plan: Mapping[str, Any]) -> ReplayDirectory:
        """Begin a replay, or go on with it where the folder holds the same one.

        Args:
            plan: everything that the drafts depend on, as JSON values.

        Raises:
            InvalidSetup: the folder holds something else, or cannot be written.
        """
        manifest = {"format": _FORMAT, "version": _VERSION, **plan}
        file = path / _MANIFEST
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not any(path.iterdir()):
                write_whole(file, json.dumps(manifest, indent=1) + "\n")
        except OSError as error:
            raise InvalidSetup.because(
                "unwritable-replay",
                f"{path} cannot be written ({cause_of(error)}).",
                where=str(path),
                fix="Choose another --out.",
            ) from None
        found = None
        with suppress(OSError, ValueError):
            found = json.loads(file.read_text())
        if found != json.loads(json.dumps(manifest)):
            raise InvalidSetup.because(
                "replay-exists",
                f"{path} holds another replay.",
                where=str(path),
                fix=(
                    "Choose another --out. A replay continues only with the same log, target, candidates and options."
                ),
            )
        return cls(path)

    def read_rows(self, candidate: int) -> dict[str, Mapping[int, DraftRows]]:
        """Return what was replayed of a candidate, by request; a line that was cut off is not there.

        Raises:
            InvalidSetup: a whole line is not what a replay writes.
        """
        return dict(RowFile(self._rows_of(candidate), _to_request).read())

    def append(self, candidate: int, requests: Iterator[ReplayedRequest]) -> Iterator[ReplayedRequest]:
        """Append requests as they come, each as a whole line, and pass them on.

        Raises:
            StorageError: they cannot be written.
        """
        path = self._rows_of(candidate)
        cut_unfinished(path)
        with path.open("a", encoding="utf-8") as file:
            for request in requests:
                try:
                    file.write(json.dumps(_to_row(request), separators=(",", ":")) + "\n")
                    file.flush()
                except OSError as error:
                    raise _cannot_write(self.path, error) from None
                yield request

    def forget(self, candidate: int) -> None:
        """Drop what was replayed of a candidate."""
        self._rows_of(candidate).unlink(missing_ok=True)

    def finish(self, profile: Profile, anchors: Sequence[Anchors]) -> None:
        """Write what follows from the rows.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            write_anchors(self.path, anchors)
        except OSError as error:
            raise _cannot_write(self.path, error) from None
        self.write(PROFILE, json.dumps(to_json(profile), indent=1) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a file that is made from what was found, whole or not at all.

        Raises:
            StorageError: it cannot be written.
        """
        try:
            write_whole(self.path / name, text)
        except OSError as error:
            raise _cannot_write(self.path, error) from None

    def _rows_of(self, candidate: int) -> Path:
        return self.path / f"candidate-{candidate}.jsonl"


def hash_transcripts(requests: Sequence[Transcript]) -> str:
    """Return what tells one log's tokens, limits and groups from another's."""
    digest = sha256()
    for each in requests:
        digest.update(repr((each.id, each.prompt_ids, each.answer_ids, each.limit, each.temperature)).encode())
    return digest.hexdigest()


def to_anchors(
    candidate: SpecConfig, requests: Sequence[Transcript], rows: Mapping[str, Mapping[int, DraftRows]]
) -> Iterator[Anchors]:
    """Yield the anchors of a candidate, one for each temperature, the coldest first."""
    for temperature in sorted({request.temperature for request in requests}):
        kept = [request for request in requests if request.temperature == temperature]
        ks = sorted(rows[kept[0].id])
        yield Anchors(
            candidate=candidate,
            temperature=temperature,
            requests=tuple(request.id for request in kept),
            groups=tuple(request.group for request in kept),
            offsets=np.cumsum([0, *(len(request.answer_ids) for request in kept)]),
            limits=np.array([request.limit for request in kept], np.int64),
            drafts={k: _join([rows[request.id][k] for request in kept]) for k in ks},
        )


def _join(parts: Sequence[DraftRows]) -> Drafts:
    def join(name: str, dtype: DTypeLike) -> NDArray[Any] | None:
        """Return the values of all requests; None where some have none, as of a release that did not note them."""
        given = [getattr(part, name) for part in parts]
        return None if any(each is None for each in given) else np.concatenate([np.asarray(e, dtype) for e in given])

    drafted_N = join("drafted", np.uint16)
    assert drafted_N is not None
    return Drafts(
        drafted_N=drafted_N,
        accepted_N=join("accepted", np.uint16),
        chances_NK=join("chances", np.float32),
        confidence_NK=join("confidence", np.float16),
    )


def _to_row(request: ReplayedRequest) -> dict[str, Any]:
    return {"request": request.id, "k": {str(k): _to_lists(rows) for k, rows in request.by_k.items()}}


def _to_lists(rows: DraftRows) -> dict[str, Any]:
    given = {"drafted": rows.drafted, "accepted": rows.accepted, "chances": rows.chances}
    return {name: values for name, values in (given | {"confidence": rows.confidence}).items() if values is not None}


def _to_request(row: Mapping[str, Any]) -> tuple[str, Mapping[int, DraftRows]]:
    return row["request"], {int(k): DraftRows(**rows) for k, rows in row["k"].items()}


def _cannot_write(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path} cannot be written ({cause_of(error)}). The requests replayed before are kept: make room, then give "
        "the same command again."
    )
