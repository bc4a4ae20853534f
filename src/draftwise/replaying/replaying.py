"""Runs a whole replay: every candidate over a log, resumable, and the profile of all candidates.

In its folder, `replay.json` describes the replay, and `candidate-N.jsonl` has a line per replayed request of a
candidate. `profile.json` and `anchors.npz` are derived from these.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from draftwise.core import (
    Finding,
    Profile,
    ReplayedLog,
    ReplayedTarget,
    SpecConfig,
    StorageError,
    cause_of,
)
from draftwise.core.documents import to_json
from draftwise.knowledge.messages import refusal, text_of
from draftwise.machine.whole_files import write_whole
from draftwise.replaying.acceptance_profile import percentiles_of, summarize, warn_of_few
from draftwise.replaying.anchors import Anchors, Drafts, write_anchors
from draftwise.replaying.transcripts import DraftRows, ReplayedRequest, Replayer, Transcript, Transcripts
from draftwise.runs.row_files import RowFile, cut_unfinished

PROFILE = "profile.json"
_MANIFEST = "replay.json"
_FORMAT, _VERSION = "draftwise-replay", 1


class ReplayDirectory:
    """The folder of one replay."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path, plan: Mapping[str, Any]) -> ReplayDirectory:
        """Start a replay, or resume it if the folder holds the same one.

        Args:
            plan: everything that determines the drafts, as JSON values.

        Raises:
            InvalidSetup: the folder has other contents or cannot be written.
        """
        manifest = {"format": _FORMAT, "version": _VERSION, **plan}
        file = path / _MANIFEST
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not any(path.iterdir()):
                write_whole(file, json.dumps(manifest, indent=1) + "\n")
        except OSError as error:
            raise refusal("unwritable-replay", path=path, cause=cause_of(error)) from None
        found = None
        with suppress(OSError, ValueError):
            found = json.loads(file.read_text())
        if found != json.loads(json.dumps(manifest)):
            raise refusal("replay-exists", path=path)
        return cls(path)

    def read_rows(self, candidate: int) -> dict[str, Mapping[int, DraftRows]]:
        """Return a candidate's replayed requests by id. Ignores a truncated line.

        Raises:
            InvalidSetup: a complete line is malformed.
        """
        return dict(RowFile(self._rows_of(candidate), _to_request).read())

    def append(self, candidate: int, requests: Iterator[ReplayedRequest]) -> Iterator[ReplayedRequest]:
        """Append each request as a line, and yield it.

        Raises:
            StorageError: the file cannot be written.
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
        """Delete a candidate's replayed requests."""
        self._rows_of(candidate).unlink(missing_ok=True)

    def finish(self, profile: Profile, anchors: Sequence[Anchors]) -> None:
        """Write the profile and the anchors.

        Raises:
            StorageError: the file cannot be written.
        """
        try:
            write_anchors(self.path, anchors)
        except OSError as error:
            raise _cannot_write(self.path, error) from None
        self.write(PROFILE, json.dumps(to_json(profile), indent=1) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a derived file atomically.

        Raises:
            StorageError: the file cannot be written.
        """
        try:
            write_whole(self.path / name, text)
        except OSError as error:
            raise _cannot_write(self.path, error) from None

    def _rows_of(self, candidate: int) -> Path:
        return self.path / f"candidate-{candidate}.jsonl"


def hash_transcripts(requests: Sequence[Transcript]) -> str:
    """Return a hash of a log's tokens, limits and groups."""
    digest = sha256()
    for each in requests:
        digest.update(repr((each.id, each.prompt_ids, each.answer_ids, each.limit, each.temperature)).encode())
    return digest.hexdigest()


def to_anchors(
    candidate: SpecConfig, requests: Sequence[Transcript], rows: Mapping[str, Mapping[int, DraftRows]]
) -> Iterator[Anchors]:
    """Yield a candidate's anchors per temperature, in ascending order."""
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
        """Return the values of all requests; None if any request lacks them, such as rows of an older release."""
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
    return StorageError(text_of("replay-not-kept", path=path, cause=cause_of(error)))


_USUAL_KS = (*range(1, 11), 12, 16, 24, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCandidate:
    """A candidate to replay."""

    spec: SpecConfig
    """The config with the largest k."""
    ks: tuple[int, ...]
    """Draft lengths to report."""
    make: Callable[[], Replayer]
    """Makes the replayer. Called once, when the candidate's turn comes, because some load a model."""


def choose_ks(kmax: int, asked: Sequence[int]) -> tuple[int, ...]:
    """Return the draft lengths to report: the requested ones, else all up to ten and some above.

    Raises:
        InvalidSetup: a requested k exceeds the candidate's own.
    """
    if too_large := [k for k in asked if k > kmax]:
        raise refusal("k-beyond-candidate", too_large=max(too_large), kmax=kmax)
    return tuple(sorted(set(asked))) or tuple(sorted({kmax, *(k for k in _USUAL_KS if k < kmax)}))


def replay_candidates(
    directory: ReplayDirectory,
    transcripts: Transcripts,
    candidates: Sequence[ReplayCandidate],
    *,
    target: ReplayedTarget,
    rows: int,
    limited: bool = True,
    advance: Callable[[str], None] = lambda _: None,
) -> tuple[Profile, tuple[Anchors, ...]]:
    """Replay missing requests, write the profile, and return it with its anchors.

    Args:
        rows: number of log rows, including skipped ones.
        limited: see `walk`.
        advance: called with the candidate's label after every request.

    Raises:
        InvalidSetup: a candidate cannot be replayed, or the directory is damaged.
        StorageError: the directory cannot be written.
    """
    found: list[tuple[ReplayCandidate, Anchors]] = []
    for number, candidate in enumerate(candidates):
        _replay_missing(directory, number, candidate, transcripts.requests, advance)
        replayed = directory.read_rows(number)
        found += [(candidate, each) for each in to_anchors(candidate.spec, transcripts.requests, replayed)]
    profile = Profile(
        target=target,
        log=_describe_log(transcripts, rows),
        entries=tuple(entry for candidate, each in found for entry in summarize(each, candidate.ks, limited=limited)),
        findings=(*transcripts.findings, *_warn(found)),
    )
    anchors = tuple(each for _, each in found)
    directory.finish(profile, anchors)
    return profile, anchors


def _replay_missing(
    directory: ReplayDirectory,
    number: int,
    candidate: ReplayCandidate,
    requests: Sequence[Transcript],
    advance: Callable[[str], None],
) -> None:
    label = candidate.spec.label
    done = directory.read_rows(number).keys()
    missing = [request for request in requests if request.id not in done]
    if not missing:
        return
    replayer = candidate.make()
    if replayer.remembers and done:  # what it knew when it was cut off is gone
        directory.forget(number)
        missing = list(requests)
    for _ in range(len(requests) - len(missing)):
        advance(label)
    for _ in directory.append(number, replayer.replay(missing)):
        advance(label)


def _describe_log(transcripts: Transcripts, rows: int) -> ReplayedLog:
    requests = transcripts.requests
    groups = Counter(request.group for request in requests if request.group is not None)
    return ReplayedLog(
        rows=rows,
        used=len(requests),
        skipped=transcripts.skipped,
        order="time" if transcripts.in_time_order else "file",
        groups=dict(groups),
        tokens_out=sum(len(request.answer_ids) for request in requests),
        prompt_tokens=percentiles_of(np.array([len(request.prompt_ids) for request in requests])),
    )


def _warn(found: Sequence[tuple[ReplayCandidate, Anchors]]) -> Iterator[Finding]:
    for candidate, anchors in found:
        if finding := warn_of_few(anchors, candidate.ks[-1]):
            yield finding
