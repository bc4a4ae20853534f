"""A whole replay: drafts from the index, profile and anchors on disk, and going on after it was cut off."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftwise.core import InvalidSetup, Profile, ReplayedTarget, SpecConfig
from draftwise.replaying import Anchors, read_anchors, read_profile
from draftwise.replaying.replaying import ReplayCandidate, ReplayDirectory, choose_ks, replay_candidates
from draftwise.replaying.served_drafts import NgramReplayer
from draftwise.replaying.transcripts import ReplayedRequest, Transcript, Transcripts, count_accepted

NGRAM = SpecConfig(method="ngram", num_speculative_tokens=4)
REPEATED = Transcript(id="a", prompt_ids=(1, 2, 3, 4, 5), answer_ids=(9, 1, 2, 3, 4, 5), group="repeats")
FRESH = Transcript(id="b", prompt_ids=(1, 2, 3), answer_ids=(7, 8, 9, 10), group="fresh")
HOT = replace(FRESH, id="c", temperature=1.0)


def make_transcripts(*requests: Transcript) -> Transcripts:
    return Transcripts(requests=requests or (REPEATED, FRESH, HOT), skipped={}, in_time_order=True, findings=())


class Counted:
    """Counts what is replayed, and stops where it is told to."""

    remembers = False

    def __init__(self, stop_after: int | None = None) -> None:
        self.replayed: list[str] = []
        self._stop_after = stop_after

    def replay(self, requests: Sequence[Transcript]) -> Iterator[ReplayedRequest]:
        for each in NgramReplayer(k=4, shortest=1, longest=3).replay(requests):
            if len(self.replayed) == self._stop_after:
                raise KeyboardInterrupt
            self.replayed.append(each.id)
            yield each


def replay(path: Path, replayer: Counted, ks: tuple[int, ...] = (1, 4)) -> tuple[Profile, tuple[Anchors, ...]]:
    directory = ReplayDirectory.open(path, {"log": "x"})
    candidate = ReplayCandidate(spec=NGRAM, ks=ks, make=lambda: replayer)
    return replay_candidates(directory, make_transcripts(), [candidate], target=ReplayedTarget(name="m"), rows=3)


def test_profile_says_what_the_steps_were(tmp_path: Path) -> None:
    profile, (cold, hot) = replay(tmp_path / "p", Counted())
    assert (cold.requests, hot.requests) == (("a", "b"), ("c",))
    whole, *groups = profile.entries
    assert [entry.group for entry in profile.entries] == [None, "fresh", "repeats", None, "fresh"]
    # Of the repeated answer 9 is unknown; after 1 the prompt's 2 3 4 5 are drafted and stand.
    repeats = groups[1].by_k[4]
    assert (repeats.steps, repeats.emitted, repeats.drafts, repeats.drafted, repeats.accepted) == (2, 5, 1, 4, 4)
    assert repeats.accepted_per_pos == (1, 1, 1, 1)
    fresh = groups[0].by_k[4]
    assert (fresh.steps, fresh.emitted, fresh.drafted) == (3, 3, 0)
    assert whole.by_k[4].steps == 5
    assert whole.by_k[1].steps == 3 + 3
    assert profile.log.tokens_out == 14


def test_files_are_read_back(tmp_path: Path) -> None:
    profile, anchors = replay(tmp_path / "p", Counted())
    assert read_profile(tmp_path / "p") == read_profile(tmp_path / "p" / "profile.json") == profile
    for found, written in zip(read_anchors(tmp_path / "p"), anchors, strict=True):
        assert np.array_equal(found.offsets, written.offsets)
        assert np.array_equal(found.drafts[4].accepted_N, written.drafts[4].accepted_N)  # type: ignore[arg-type]


def test_a_replay_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        replay(tmp_path / "p", Counted(stop_after=1))
    rows = tmp_path / "p" / "candidate-0.jsonl"
    rows.write_text(rows.read_text() + '{"request": "b", "k":')  # the line that was being written
    rest = Counted()
    profile, _ = replay(tmp_path / "p", rest)
    assert rest.replayed == ["b", "c"]
    assert profile == replay(tmp_path / "whole", Counted())[0]
    again = Counted()
    replay(tmp_path / "p", again)
    assert again.replayed == []


def test_what_remembers_earlier_requests_starts_over(tmp_path: Path) -> None:
    first, second = Counted(stop_after=2), Counted()
    first.remembers = second.remembers = True
    with pytest.raises(KeyboardInterrupt):
        replay(tmp_path / "p", first)
    replay(tmp_path / "p", second)
    assert second.replayed == ["a", "b", "c"]


def test_another_replay_does_not_go_on_in_the_same_folder(tmp_path: Path) -> None:
    ReplayDirectory.open(tmp_path / "p", {"log": "x"})
    with pytest.raises(InvalidSetup) as caught:
        ReplayDirectory.open(tmp_path / "p", {"log": "y"})
    assert caught.value.findings[0].code == "replay-exists"
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "notes.txt").write_text("mine")
    with pytest.raises(InvalidSetup):
        ReplayDirectory.open(tmp_path / "q", {"log": "x"})


def test_damaged_rows_are_named(tmp_path: Path) -> None:
    replay(tmp_path / "p", Counted())
    rows = tmp_path / "p" / "candidate-0.jsonl"
    rows.write_text(json.dumps({"request": "a"}) + "\n")
    with pytest.raises(InvalidSetup, match=r"candidate-0\.jsonl:1"):
        replay(tmp_path / "p", Counted())


def test_a_missing_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetup) as caught:
        read_profile(tmp_path)
    assert caught.value.findings[0].code == "unreadable-file"


def test_every_k_up_to_ten_is_answered_for() -> None:
    assert choose_ks(3, ()) == (1, 2, 3)
    assert choose_ks(24, ()) == (*range(1, 11), 12, 16, 24)
    assert choose_ks(8, (5, 3, 5)) == (3, 5)
    with pytest.raises(InvalidSetup):
        choose_ks(4, (5,))


def test_accepted_tokens_end_at_the_first_that_differs() -> None:
    assert count_accepted([1, 2, 3], (0, 1, 2, 9), 1) == 2
    assert count_accepted([1, 2, 3], (0, 1, 2), 1) == 2
    assert count_accepted([5], (0, 1), 1) == 0
