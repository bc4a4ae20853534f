"""What first tokens took beyond their steps is found again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.made_calibrations import make_calibration, make_profile

from draftwise.core import FirstPoint
from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.plan.forecast.calibrated_server import CalibratedServer, find_waiting
from draftwise.plan.forecast.forecasting import forecast
from draftwise.plan.service import RequestLengths, Waiting, serve_concurrency

TRAFFIC = RequestLengths(prompt_tokens=200, output_tokens=100)


@pytest.mark.parametrize("truth", [Waiting(seconds=0.008, steps=1.5), Waiting()])
def test_what_requests_waited_is_found_in_their_first_tokens(truth: Waiting) -> None:
    calibration = make_calibration()
    costs = CalibratedCosts(calibration)
    server = CalibratedServer(costs, "plain", 0, context=TRAFFIC.prompt_tokens + TRAFFIC.output_tokens / 2)
    firsts = tuple(
        FirstPoint(
            setting="plain",
            load=f"c={streams}",
            in_flight=streams,
            prompt_tokens=TRAFFIC.prompt_tokens,
            output_tokens=TRAFFIC.output_tokens,
            first_ms=1e3 * serve_concurrency(server, TRAFFIC, 1.0, streams, waiting=truth).ttft_s,
            requests=50,
        )
        for streams in (1, 8, 32)
    )
    found = find_waiting(CalibratedCosts(replace(calibration, firsts=firsts)), "plain")
    assert found.seconds == pytest.approx(truth.seconds)
    assert found.steps == pytest.approx(truth.steps, abs=0.2)


def test_prompts_take_no_longer_than_first_tokens_do() -> None:
    calibration = make_calibration()
    costs = CalibratedCosts(calibration)
    firsts = tuple(
        FirstPoint(
            setting=each.name,
            load="c=1",
            in_flight=1,
            prompt_tokens=tokens,
            output_tokens=100,
            drafted=each.k,
            first_ms=700 * CalibratedServer(costs, each.name, each.k, context=tokens + 50).step_s(1, tokens),
            requests=50,
        )
        for each in calibration.settings
        for tokens in (500, 4000)
    )
    told = CalibratedCosts(replace(calibration, firsts=firsts))
    for each in firsts:
        k = next(setting.k for setting in calibration.settings if setting.name == each.setting)
        server = CalibratedServer(told, each.setting, k, context=each.prompt_tokens + 50)
        assert 1e3 * server.step_s(1, each.prompt_tokens) == pytest.approx(each.first_ms, rel=0.1)
    assert find_waiting(told, "plain").seconds < 0.1 * 1e-3 * firsts[0].first_ms


def test_a_front_end_takes_more_of_a_faster_server() -> None:
    calibration = make_calibration()
    slow = tuple(
        FirstPoint(
            setting=each.name,
            load="c=1",
            in_flight=1,
            prompt_tokens=200,
            output_tokens=100,
            first_ms=500,
            requests=50,
        )
        for each in calibration.settings
    )
    before, after = (
        forecast(make_profile(), each, concurrency=(1,)).find_best("concurrency", 1).speedup.value
        for each in (calibration, replace(calibration, firsts=slow))
    )
    assert 1 < after < before
