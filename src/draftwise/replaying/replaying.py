"""A whole replay: every candidate over a log, resumed where it was, and the profile of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from draftwise.core import Finding, InvalidSetup, Profile, ReplayedLog, ReplayedTarget, SpecConfig
from draftwise.replaying.acceptance_profile import percentiles_of, summarize, warn_of_few
from draftwise.replaying.anchors import Anchors
from draftwise.replaying.replay_directory import ReplayDirectory, to_anchors
from draftwise.replaying.transcripts import Replayer, Transcript, Transcripts

_USUAL_KS = (*range(1, 11), 12, 16, 24, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCandidate:
    """What is replayed."""

    spec: SpecConfig
    """The config, with the largest k."""
    ks: tuple[int, ...]
    """Those that are answered for."""
    make: Callable[[], Replayer]
    """Called once, when it is this candidate's turn: some load a model."""


def choose_ks(kmax: int, asked: Sequence[int]) -> tuple[int, ...]:
    """Return the k to answer for: those asked for, else all up to ten and some of those above.

    Raises:
        InvalidSetup: one that is asked for is larger than the candidate's own.
    """
    if too_large := [k for k in asked if k > kmax]:
        raise InvalidSetup.because(
            "k-beyond-candidate",
            f"--k asks for {max(too_large)} draft tokens, and a candidate drafts {kmax} at most.",
            where="--k",
            fix="Raise the candidate's num_speculative_tokens: one replay answers for every smaller k.",
        )
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
    """Replay what is missing, write the profile and return it with its anchors.

    Args:
        rows: of the log, left out ones included.
        limited: see `walk`.
        advance: told the candidate's label after every request.

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
