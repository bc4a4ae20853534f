"""The demo's candidates as forecast from minutes of steps, beside what the demo measured."""

from __future__ import annotations

import json

import pytest
from forecast_demo import RESULTS, compare, read_demo, screen, summarize
from tests.support.combinations import EVERY_CASE

from draftwise.runs.documents import read_calibration


def test_forecasts_of_the_demo_are_within_the_goal_and_as_committed() -> None:
    committed = json.loads((RESULTS / "forecast_demo.json").read_text(encoding="utf-8"))
    rows = committed["rows"]
    found = summarize(rows)
    assert found == committed["summary"]
    assert found["median_percent"] <= 5
    assert found["p90_percent"] <= 12
    assert max(found["regret_of_the_pick_percent"].values()) <= 3
    screened = screen(rows)
    assert sum(len(each["left_out"]) for each in screened.values()) >= 11
    assert max(each["loss_percent"] for each in screened.values()) <= 3
    demo = read_demo()
    workloads = demo["workloads"] if EVERY_CASE else demo["workloads"][:1]
    again = list(compare({**demo, "workloads": workloads}, read_calibration(RESULTS / "demo_calibration.json")))
    assert len(again) == len(rows) * len(workloads) / len(demo["workloads"])
    for row, known in zip(again, rows, strict=False):
        assert (row["workload"], row["candidate"]) == (known["workload"], known["candidate"])
        assert row["forecast"] == pytest.approx(known["forecast"], rel=0.01)
