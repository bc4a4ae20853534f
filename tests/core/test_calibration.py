"""A calibration is read back as it was written, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from draftwise.core import CalibratedSetting, Calibration, InvalidSetup, SpecConfig, StepPoint
from draftwise.core.documents import from_json, read_document, to_json

PLAIN = CalibratedSetting(name="plain", kv_tokens=1000)
NGRAM = CalibratedSetting(name="ngram", spec=SpecConfig(method="ngram", num_speculative_tokens=5))


def point(setting: str = "plain", **other: Any) -> StepPoint:
    given = {"load": "c=1", "batch": 1.0, "context": 100.0, "step_ms": 2.0, "low": 1.9, "high": 2.1, "steps": 50}
    return StepPoint(setting=setting, **{**given, **other})


def calibration(**other: Any) -> Calibration:
    given: dict[str, Any] = {
        "engine": "draftwise",
        "target": "tiny",
        "config": {"hidden_size": 8},
        "settings": (PLAIN, NGRAM),
        "points": (point(), point("ngram", batch=8.0), point("ngram", drafted=1.5)),
    }
    return Calibration(**{**given, **other})


def test_what_was_written_is_read_back() -> None:
    assert from_json(Calibration, json.loads(json.dumps(to_json(calibration())))) == calibration()


def test_points_of_a_setting_are_in_order_of_their_batch() -> None:
    assert [each.batch for each in calibration().points_of("ngram")] == [1.0, 8.0]
    assert calibration().plain == PLAIN
    assert calibration().candidates == (NGRAM,)


@pytest.mark.parametrize(
    "damage",
    [
        {"settings": (NGRAM,), "points": ()},
        {"settings": (PLAIN, PLAIN), "points": ()},
        {"points": (point("nobody"),)},
        {"points": (point(step_ms=0.0),)},
        {"points": (point(low=3.0),)},
    ],
)
def test_what_cannot_be_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"setting|point"):
        calibration(**damage)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"format": "draftwise-profile"}, "not-a-calibration"),
        ({"version": 99}, "calibration-version"),
        ({"points": [{}]}, "damaged-calibration"),
        ({"target": None}, "damaged-calibration"),
    ],
)
def test_other_documents_say_what_they_are_not(change: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidSetup) as refused:
        read_document(Calibration, {**to_json(calibration()), **change}, "calibration.json")
    assert refused.value.findings[0].code == code
