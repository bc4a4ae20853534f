"""A whole calibration against servers whose steps are known, on a virtual clock: steps and crossover are that truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import virtual_time
from tests.support.fake_server import FakeScript
from tests.support.fake_server.script import find_crossover
from tests.support.measuring import CONTEXT, make_plan, make_session, make_workload

from draftwise.core import (
    Acceptance,
    AcceptanceAtK,
    Calibration,
    ClosedLoop,
    Condition,
    Exactness,
    Interval,
    Profile,
    ReplayedLog,
    ReplayedTarget,
)
from draftwise.measure.calibrating import make_calibration
from draftwise.plan.forecast.forecasting import forecast
from draftwise.runs import RunDirectory

PLAIN = FakeScript(row_s=0.0001, knee=8, first_token_s=0.004, jitter=0.02, seed=1)
DRAFTING = replace(PLAIN, step_s=0.0045, k=3, accepted=(3, 1, 0), seed=2)
"""Steps grow with the batch from 8 rows on; a draft of 3 fills the batch four times as fast."""
LENGTH = 1 + 4 / 3
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    path = tmp_path_factory.mktemp("runs") / "run"
    conditions = tuple(Condition(load=ClosedLoop(concurrency=each)) for each in (1, 8, 32))
    workloads = (make_workload(num_prompts=12, max_tokens=80),)
    plan = make_plan(conditions=conditions, workloads=workloads, repeats=2)
    virtual_time.run(make_session(path, plan, (PLAIN, DRAFTING), context=CONTEXT).run())
    return replace(
        make_calibration(RunDirectory(Path(path)).read(), target=LLAMA), engine="draftwise", engine_version=""
    )


def test_steps_are_those_of_the_servers(calibration: Calibration) -> None:
    for setting, script in (("plain", PLAIN), ("candidate 1", DRAFTING)):
        pure = [point for point in calibration.points_of(setting) if not point.prefill_tokens]
        assert pure
        for point in pure:
            rows = point.batch * (script.k + 1)
            truth = script.step_s + script.row_s * max(0.0, rows - script.knee)
            assert point.step_ms == pytest.approx(1e3 * truth, rel=0.06)
    assert all(point.drafted == pytest.approx(3, abs=0.2) for point in calibration.points_of("candidate 1"))


def test_the_forecast_finds_the_load_where_drafting_stops_paying(calibration: Calibration) -> None:
    spec = calibration.candidates[0].spec
    assert spec is not None
    found = AcceptanceAtK(
        steps=1000,
        emitted=1000 * LENGTH,
        drafts=1000,
        drafted=3000,
        accepted=1000 * (LENGTH - 1),
        tokens_per_step=Interval(value=LENGTH, low=0.98 * LENGTH, high=1.02 * LENGTH),
        per_request=(2.0, LENGTH, 2.6),
    )
    entry = Acceptance(candidate=spec, temperature=0.0, exactness=Exactness.EXACT, requests=50, by_k={3: found})
    log = ReplayedLog(rows=50, used=50, tokens_out=4300, prompt_tokens=(2, 2, 2))
    profile = Profile(target=ReplayedTarget(name=LLAMA), log=log, entries=(entry,))
    made = forecast(profile, calibration, concurrency=(1, 4, 8, 16, 24, 32, 48))
    (end,) = made.crossovers
    assert end.value == pytest.approx(find_crossover(PLAIN, DRAFTING), rel=0.25)
    assert end.low <= find_crossover(PLAIN, DRAFTING) <= end.high
