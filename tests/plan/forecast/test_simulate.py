"""Requests that are served one by one by a forecast's servers: what each load and server says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.made_calibrations import EAGLE, make_calibration, make_profile

from draftwise.core import Calibration, Forecast, SimulatedService
from draftwise.plan.forecast.forecasting import forecast
from draftwise.plan.forecast.simulate import REQUESTS, simulate_services

LENGTHS = ((64.0, 32.0), (64.0, 96.0))
PROFILE = make_profile(EAGLE)


def predict(calibration: Calibration) -> Forecast:
    return forecast(PROFILE, calibration, concurrency=(1, 32), prompt_tokens=64, output_tokens=64)


def simulate(calibration: Calibration) -> dict[tuple[str, float], SimulatedService]:
    made = predict(calibration)
    return {(each.setting, each.load): each for each in simulate_services(made, PROFILE, calibration, LENGTHS)}


@pytest.fixture(scope="module")
def services() -> dict[tuple[str, float], SimulatedService]:
    return simulate(make_calibration())


def test_every_load_is_served_without_speculation_and_at_the_best_k(
    services: dict[tuple[str, float], SimulatedService],
) -> None:
    assert list(services) == [("plain", 1), ("eagle3", 1), ("plain", 32), ("eagle3", 32)]
    made = predict(make_calibration())
    for load in (1, 32):
        best = max((each for each in made.cells if each.load == load), key=lambda each: each.speedup.value)
        plain, drafting = services["plain", load], services["eagle3", load]
        assert (plain.k, plain.temperature, drafting.k, drafting.temperature) == (0, None, best.k, 0.0)
        assert plain.requests == drafting.requests == REQUESTS
        assert plain.tpot_ms[0] / drafting.tpot_ms[0] == pytest.approx(best.plain_tpot_ms / best.tpot_ms, rel=0.2)


def test_longer_answers_make_the_tail(services: dict[tuple[str, float], SimulatedService]) -> None:
    for each in services.values():
        assert list(each.e2e_ms) == sorted(each.e2e_ms)
        assert each.e2e_ms[2] > 1.2 * each.e2e_ms[0]


def test_a_pool_of_keys_that_is_too_small_preempts() -> None:
    calibration = make_calibration()
    settings = tuple(replace(each, kv_tokens=640) for each in calibration.settings)
    small = simulate(replace(calibration, settings=settings))
    assert small["plain", 32].preemptions > 0 == small["plain", 1].preemptions
