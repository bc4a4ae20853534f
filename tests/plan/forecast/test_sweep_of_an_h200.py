"""What the model forecasts of a sweep that an H200 measured, from the calibration before it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.plan.forecast.forecasting import forecast
from draftwise.runs.documents import read_calibration, read_profile

SWEEP = Path(__file__).parents[3] / "benchmarks" / "h200" / "results" / "forecast_sweep"


def test_the_sweep_of_an_h200_is_forecast_from_its_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the goals: a change of the model that loses them is seen here."""
    monkeypatch.setattr(CalibratedCosts, "left_out_error", lambda self, quantile=0.5: 0.0)
    asked = json.loads((SWEEP / "forecast.json").read_text())["asked"]
    measured = json.loads((SWEEP / "forecast_sweep.json").read_text())["rows"]
    profile, calibration = read_profile(SWEEP / "profile.json"), read_calibration(SWEEP / "calibration.json")
    largest = {each.name: each.k for each in calibration.candidates}
    made = {
        (f"p{tokens}", cell.setting, float(cell.load)): cell.speedup.value
        for tokens in asked["prompt_tokens"]
        for cell in forecast(
            profile,
            calibration,
            concurrency=[1, 64, 128],
            prompt_tokens=tokens,
            output_tokens=asked["output_tokens"],
        ).cells
        if cell.group == f"p{tokens}" and cell.k == largest[cell.setting]
    }
    held = [
        (made[at], each["measured"][0])
        for each in measured
        if (at := (each["workload"], each["candidate"], float(each["load"]))) in made
    ]
    errors = sorted(abs(expected / value - 1) for expected, value in held)
    assert len(errors) == 18
    assert errors[9] < 0.05
    assert errors[16] < 0.15
