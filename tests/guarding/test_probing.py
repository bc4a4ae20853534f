"""What a guard makes of a probe: the change carries over to the traffic, and what cannot be compared is nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.watched import make_baseline

from draftwise.backends.backend import ServerProbe
from draftwise.core import Baseline, InvalidSetup, ProbeAnswer
from draftwise.guarding import service_reading
from draftwise.guarding.service_reading import read_probe, refuse_unless_comparable

ANSWERS = tuple(
    ProbeAnswer(prompt_id=f"code/{i}", num_tokens=61, num_steps=31, text_sha256=f"{i:064d}") for i in range(24)
)
KNOWN = replace(make_baseline(), probe=ANSWERS * 2, probe_null=0.05)


def read(monkeypatch: pytest.MonkeyPatch, answers: tuple[ProbeAnswer, ...], baseline: Baseline = KNOWN):
    monkeypatch.setattr(service_reading, "take_answers", lambda probed: answers)
    return read_probe(ServerProbe(info=None, answers=(), growth=None, counts_drafts=True), baseline, at_s=5.0)  # type: ignore[arg-type]


def test_the_same_answers_are_what_the_traffic_was_measured_at(monkeypatch):
    found = read(monkeypatch, ANSWERS)
    assert found is not None
    assert KNOWN.expected is not None
    assert found.tokens_per_step == pytest.approx(KNOWN.expected.counters.tokens_per_step)
    assert found.is_same is True


def test_half_the_pace_is_half_of_it(monkeypatch):
    found = read(monkeypatch, tuple(replace(answer, num_steps=61) for answer in ANSWERS))
    assert found is not None
    assert KNOWN.expected is not None
    assert found.tokens_per_step == pytest.approx(KNOWN.expected.counters.tokens_per_step / 2)
    assert found.is_same is False


def test_what_cannot_be_counted_or_compared_is_nothing(monkeypatch):
    assert read(monkeypatch, ()) is None
    assert read(monkeypatch, tuple(replace(answer, text_sha256="f" * 64) for answer in ANSWERS)) is None


def test_without_what_the_traffic_was_measured_at_a_probe_says_nothing_of_it(monkeypatch):
    assert read(monkeypatch, ANSWERS, replace(KNOWN, expected=None)) is None


@pytest.mark.parametrize("baseline", [None, make_baseline(), replace(KNOWN, expected=None)])
def test_a_probe_needs_something_to_be_held_against(baseline):
    with pytest.raises(InvalidSetup, match="same probe of a healthy server"):
        refuse_unless_comparable(baseline)
