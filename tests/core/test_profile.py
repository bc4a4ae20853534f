"""The profile of a replay: what is written is read back, and what cannot be is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from draftwise.core import (
    Acceptance,
    AcceptanceAtK,
    Exactness,
    Finding,
    InvalidSetup,
    Profile,
    ReplayedLog,
    ReplayedTarget,
    Severity,
    SpecConfig,
)
from draftwise.core.comparison import Interval
from draftwise.core.documents import from_json, read_document, to_json

NGRAM = SpecConfig(method="ngram", num_speculative_tokens=2, options={"prompt_lookup_max": 4})


def make_profile() -> Profile:
    at_k = AcceptanceAtK(
        steps=40,
        emitted=60,
        drafts=20,
        drafted=38,
        accepted=20.5,
        accepted_per_pos=(12, 8.5),
        drafted_per_pos=(20, 18),
        tokens_per_step=Interval(value=1.5, low=1.4, high=1.6),
        per_request=(1.1, 1.5, 2.0),
    )
    entry = Acceptance(
        candidate=NGRAM, temperature=0.0, group="code", exactness=Exactness.EXACT, requests=3, by_k={2: at_k}
    )
    log = ReplayedLog(
        rows=4, used=3, skipped={"no-answer": 1}, groups={"code": 3}, tokens_out=63, prompt_tokens=(1, 2, 3)
    )
    finding = Finding(code="no-answer", severity=Severity.WARNING, message="One row has no answer.")
    return Profile(target=ReplayedTarget(name="m"), log=log, entries=(entry,), findings=(finding,))


def test_written_profile_is_read_back() -> None:
    profile = make_profile()
    assert from_json(Profile, json.loads(json.dumps(to_json(profile)))) == profile


def test_entry_is_found_whatever_its_k() -> None:
    profile = make_profile()
    other_k = SpecConfig.parse({**NGRAM.to_dict(), "num_speculative_tokens": 9})
    assert profile.find(other_k, group="code") is profile.entries[0]
    assert profile.find(other_k) is None
    assert profile.find(other_k, group="code", temperature=1.0) is None


def test_counts_are_those_of_the_core() -> None:
    stats = make_profile().entries[0].by_k[2].stats
    assert stats.num_drafts == 20
    assert stats.accepted_per_pos == (12, 8)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("log", "used"), 4),
        (("log", "order"), "random"),
        (("entries", 0, "temperature"), -1),
        (("entries", 0, "kind"), "guess"),
        (("entries", 0, "requests"), 0),
        (("entries", 0, "by_k"), {}),
        (("entries", 0, "by_k", "2", "steps"), 10),
        (("entries", 0, "by_k", "2", "accepted"), 39),
        (("entries", 0, "by_k", "2", "drafts"), 41),
        (("entries", 0, "by_k", "2", "drafted"), float("nan")),
        (("entries", 0, "by_k", "2", "accepted_per_pos"), [8, 12]),
        (("entries", 0, "by_k", "2", "tokens_per_step"), [1.5, 1.6, 1.7]),
        (("entries", 0, "by_k", "2", "per_request"), [2, 1.5, 1.1]),
        (("entries", 0, "candidate", "num_speculative_tokens"), 1),
        (("entries", 0, "candidate"), []),
        (("target",), None),
    ],
)
def test_what_cannot_be_is_refused(path: tuple[Any, ...], value: Any) -> None:
    row = to_json(make_profile())
    place: Any = row
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InvalidSetup) as caught:
        read_document(Profile, row, "p.json")
    assert caught.value.findings[0].where in ("p.json", "--speculative-config")


@pytest.mark.parametrize(
    ("row", "code"), [([], "not-a-profile"), ({"format": "draftwise-profile", "version": 9}, "profile-version")]
)
def test_another_document_is_named(row: Any, code: str) -> None:
    with pytest.raises(InvalidSetup) as caught:
        read_document(Profile, row, "p.json")
    assert caught.value.findings[0].code == code
