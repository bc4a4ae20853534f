"""Drift: what is learned from 21 days, what is told and what is not; on services that are not the detector's model."""

from __future__ import annotations

import numpy as np
import pytest
from drift_simulation import rows_of_regime
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.support.combinations import tries
from tests.support.drifting_services import FALLS, REGIMES, make_service

from draftwise.watching.drift import (
    LEARN_DAYS,
    MIN_DRAFTS,
    ROW_S,
    ROWS_PER_DAY,
    Drift,
    DriftModel,
    DriftRow,
    DriftSum,
    Noise,
    RowArrays,
    Season,
    cross_fit,
    fit_model,
    run,
)

LEARNED = LEARN_DAYS * ROWS_PER_DAY


@pytest.fixture(scope="module")
def service():
    return make_service(REGIMES[2], 30, seed=7)


@pytest.fixture(scope="module")
def model(service):
    found = fit_model(service.rows[0.0][: LEARNED + ROWS_PER_DAY])
    assert found is not None
    return found


def rows(drafts, accepted, *, begin_s=1_767_571_200, usable=True):
    return RowArrays.of([
        DriftRow(began_s=begin_s + i * ROW_S, drafts=d, accepted=a, usable=usable)
        for i, (d, a) in enumerate(zip(drafts, accepted, strict=True))
    ])  # fmt: skip


def test_a_sum_is_that_of_its_definition():
    def slow(added, start):
        out, now = [], start
        for each in added:
            now = max(0.0, now + each)
            out.append(now)
        return out

    rng = np.random.default_rng(1)
    for start in (0.0, 3.5):
        added = rng.normal(-0.1, 1, 500)
        assert run(added, start) == pytest.approx(slow(added, start))


@given(arrays.arrays(np.float64, st.integers(1, 60), elements=st.floats(-3, 3)), st.integers(0, 59))
def test_a_sum_in_two_parts_is_the_sum(added, cut):
    first = run(added[:cut])
    rest = run(added[cut:], float(first[-1]) if len(first) else 0.0)
    assert np.concatenate([first, rest]) == pytest.approx(run(added), abs=1e-9)


def test_fewer_than_21_days_teach_nothing(service):
    base = service.rows[0.0]
    assert fit_model(base[: LEARNED - ROWS_PER_DAY]) is None
    assert fit_model(base[:0]) is None


def test_days_without_traffic_do_not_count(service):
    base = service.rows[0.0]
    idle = np.isin(base.days, np.unique(base.days)[:5])
    quiet = RowArrays(base.began_s, np.where(idle, 0, base.drafts), base.accepted, base.usable)
    assert fit_model(quiet[: LEARNED + 2 * ROWS_PER_DAY]) is None
    assert fit_model(quiet) is not None


def test_false_alarms_are_rare_and_falls_are_found():
    """The simulation in small: few services for a month each; all of it is in benchmarks/cpu/results."""
    row = next(iter(rows_of_regime(REGIMES[2], tries(6))))
    assert row["detector"] == "draftwise"
    assert row["false_alarms_a_month"]["mean"] <= 1.5
    assert row["20% fall"]["median_minutes"] <= 300
    assert row["20% fall"]["missed"] == 0


@pytest.mark.parametrize(("fall", "within_h"), [(0.10, 8), (0.20, 3)])
def test_a_fall_is_told(service, model, fall, within_h):
    base, fallen = service.rows[0.0], service.rows[fall]
    before = model.follow(base[LEARNED : LEARNED + 2 * ROWS_PER_DAY])
    drift = model.follow(fallen[LEARNED + 2 * ROWS_PER_DAY :], before)
    assert drift.alarm_s is not None
    began_s = int(base.began_s[LEARNED + 2 * ROWS_PER_DAY])
    assert 0 <= drift.alarm_s - began_s <= within_h * 3600


def test_an_alarm_stays(service, model):
    drift = model.follow(service.rows[0.20][LEARNED : LEARNED + ROWS_PER_DAY])
    assert model.follow(service.rows[0.0][LEARNED + ROWS_PER_DAY :], drift).alarm_s == drift.alarm_s


def test_row_by_row_is_all_at_once(service, model):
    some = service.rows[0.10][LEARNED : LEARNED + 100]
    drift = Drift()
    for i in range(100):
        drift = model.follow(some[i : i + 1], drift)
    whole = model.follow(some)
    assert drift.alarm_s == whole.alarm_s
    assert drift.sums == pytest.approx(whole.sums)


@pytest.mark.parametrize("given", [{"drafts": MIN_DRAFTS - 1}, {"drafts": 0}, {"drafts": 500, "usable": False}])
def test_gaps_restarts_and_idle_hours_leave_the_sums_where_they_are(model, given):
    """The trap: a sum that goes on over gaps explodes."""
    usable, drafts = given.get("usable", True), given["drafts"]
    since = Drift(sums={DriftSum.LIKELIHOOD: 3.0, DriftSum.SLACK: 0.2})
    assert model.follow(rows([drafts] * 300, [0] * 300, usable=usable), since) == since
    assert model.follow(rows([], []), since) == since


def test_one_odd_row_is_no_alarm(service, model):
    """A row in which nothing is accepted, among rows as ever."""
    base = service.rows[0.0][LEARNED : LEARNED + 50]
    accepted = base.accepted.copy()
    accepted[20] = 0
    assert model.follow(RowArrays(base.began_s, base.drafts, accepted, base.usable)).alarm_s is None


def test_no_row_explains_itself(service):
    """In-sample residuals are too small, and limits from them too tight."""
    base = service.rows[0.0][:LEARNED]
    inside = Season.fit(base).shortfall(base)
    assert cross_fit(base)[base.counts].std() > inside[base.counts].std()


def test_noise_has_its_two_parts():
    rng = np.random.default_rng(3)
    drafts = rng.integers(60, 3000, 4000).astype(float)
    made = rng.normal(0, np.sqrt(0.02**2 + 1.5**2 / drafts))
    found = Noise.fit(rows(drafts, drafts * 0), made)
    assert found.within == pytest.approx(1.5**2, rel=0.15)
    assert found.between == pytest.approx(0.02**2, rel=0.5)


def test_a_model_survives_as_json(service, model):
    again = DriftModel.from_dict(model.to_dict())
    some = service.rows[0.20][LEARNED:]
    assert again.follow(some).alarm_s == model.follow(some).alarm_s
    assert again.to_dict() == model.to_dict()


def test_the_season_is_of_working_days_and_weekends():
    week = rows([1000] * 7 * ROWS_PER_DAY, [0] * 7 * ROWS_PER_DAY)  # from a Monday on
    weekend = week.bins >= 12
    assert weekend.reshape(7, -1).all(axis=1).tolist() == [False] * 5 + [True] * 2


def test_falls_of_the_simulation_are_what_they_say(service):
    lengths = {fall: 1 + service.rows[fall].accepted.sum() / service.rows[fall].drafts.sum() for fall in FALLS}
    for fall in FALLS[1:]:
        assert lengths[fall] / lengths[0.0] == pytest.approx(1 - fall, abs=0.012)
