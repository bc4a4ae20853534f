"""A replay and a calibration together say what to run, where it ends, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.support.made_calibrations import EAGLE, NGRAM, TRUTH, make_calibration, make_profile

from draftwise.core import Calibration, HeldAgainst, InvalidSetup, Outlook, Severity
from draftwise.core.documents import to_json
from draftwise.knowledge.models import find_model
from draftwise.plan.forecast.calibrated_server import match_settings
from draftwise.plan.forecast.forecasting import find_crossovers, forecast


def test_speed_up_is_tokens_a_step_over_what_a_step_costs() -> None:
    made = forecast(make_profile(), make_calibration(), concurrency=(1,), prompt_tokens=0, output_tokens=10_001)
    row = next(each for each in made.cells if each.setting == "eagle3" and each.k == 3)
    assert row.tokens_per_step == pytest.approx(2.5)
    assert row.step_ms == pytest.approx(1e3 * TRUTH["eagle3"](1, 3), rel=0.06)
    assert row.speedup.value == pytest.approx(2.5 * TRUTH["plain"](1, 0) / TRUTH["eagle3"](1, 3), rel=0.08)
    assert row.speedup.low < row.speedup.value < row.speedup.high


def test_one_request_at_a_time_gains_what_a_typical_one_does() -> None:
    profile = make_profile(EAGLE)
    (entry,) = profile.entries
    by_k = {k: replace(found, typical=1.1 * found.tokens_per_step.value) for k, found in entry.by_k.items()}
    told = replace(profile, entries=(replace(entry, by_k=by_k),))
    before, after = (
        {(each.k, each.load): each for each in forecast(each, make_calibration(), concurrency=(1, 8)).cells}
        for each in (profile, told)
    )
    assert after[3, 1].tokens_per_step == pytest.approx(1.1 * before[3, 1].tokens_per_step)
    assert after[3, 1].speedup.value > before[3, 1].speedup.value
    assert after[3, 8] == before[3, 8]


def test_gains_fall_with_the_load_and_end_where_the_crossover_says() -> None:
    made = forecast(
        make_profile(), make_calibration(), concurrency=(1, 8, 64, 128), prompt_tokens=64, output_tokens=256
    )
    line = [each for each in made.cells if each.setting == "eagle3" and each.k == 7]
    assert [each.speedup.value for each in line] == sorted((each.speedup.value for each in line), reverse=True)
    end = next(each for each in made.crossovers if (each.setting, each.k) == ("eagle3", 7))
    assert end.value is not None
    assert end.low <= end.value <= end.high
    paying = [each.load for each in line if each.verdict is Outlook.PAYS]
    assert all(load <= end.low for load in paying)


def test_loads_far_beyond_the_calibrated_are_an_error() -> None:
    calibration = replace(make_calibration(), args={"max_num_seqs": 512})
    made = forecast(make_profile(), calibration, concurrency=(8, 512))
    (found,) = (each for each in made.findings if each.severity is Severity.ERROR)
    assert found.code == "far-from-calibrated"


def test_a_rate_beyond_what_plain_can_serve_has_no_ratio() -> None:
    made = forecast(make_profile(), make_calibration(), concurrency=(), rates=(1.0, 1e5))
    assert {each.load for each in made.cells} == {1.0}


def test_candidates_that_were_not_replayed_are_named() -> None:
    made = forecast(make_profile(NGRAM), make_calibration(), concurrency=(1,))
    assert [each.code for each in made.findings] == ["not-replayed"]
    assert {each.setting for each in made.cells} == {"ngram"}


def test_without_a_common_candidate_there_is_no_forecast() -> None:
    other = replace(EAGLE, method="mtp", model=None)
    with pytest.raises(InvalidSetup, match="no candidate is in both"):
        forecast(make_profile(other), make_calibration())


def test_a_server_that_tells_more_of_its_config_is_the_same_where_its_method_is_there_once() -> None:
    told = replace(EAGLE, options={"draft_sample_method": "greedy"})
    found = match_settings(make_profile(told), make_calibration())
    assert [each.name for each, _ in found] == ["eagle3"]


@pytest.mark.parametrize("doubted", ["plain", "eagle3"])
def test_doubt_about_the_steps_of_either_server_widens_the_interval(doubted: str) -> None:
    sure = make_calibration()
    points = (
        replace(each, low=0.7 * each.step_ms, high=1.3 * each.step_ms) if each.setting == doubted else each
        for each in sure.points
    )

    def half_width(calibration: Calibration) -> float:
        made = forecast(make_profile(EAGLE), calibration, concurrency=(64,))
        found = next(each.speedup for each in made.cells if each.k == 7)
        return math.log(found.high / found.low)

    assert half_width(replace(sure, points=tuple(points))) > 1.1 * half_width(sure)


def test_errors_of_earlier_forecasts_widen_the_interval_and_good_ones_narrow_it() -> None:
    def half_width(error: float, count: int) -> float:
        held = tuple(
            HeldAgainst(
                setting="eagle3", workload="code", load=f"c={number}", predicted=1 + error, measured=1.0,
                measured_low=0.9, measured_high=1.1, is_inside=True,
            )
            for number in range(count)
        )  # fmt: skip
        made = forecast(make_profile(), replace(make_calibration(), held=held), concurrency=(1,))
        found = made.cells[0].speedup
        return math.log(found.high / found.low)

    assert half_width(0.2, 20) > half_width(0.0, 0) > half_width(0.0, 20)


def test_lengths_come_from_the_log_and_are_asked_for_where_it_has_none() -> None:
    profile = make_profile()
    made = forecast(profile, make_calibration(), concurrency=(1,))
    assert (made.prompt_tokens, made.output_tokens) == (400, 128)
    with pytest.raises(InvalidSetup, match="length of prompts"):
        forecast(replace(profile, log=replace(profile.log, prompt_tokens=None)), make_calibration())


def test_a_line_that_never_falls_below_one_has_no_crossover() -> None:
    made = forecast(make_profile(length=3.5), make_calibration(), concurrency=(1, 2))
    (end,) = (each for each in find_crossovers(made.cells) if (each.setting, each.k) == ("eagle3", 3))
    assert end.value is None
    assert math.isinf(end.high)


def test_the_document_has_the_best_of_every_load_and_no_infinity() -> None:
    made = forecast(make_profile(), make_calibration(), concurrency=(1, 128), prompt_tokens=64)
    row = to_json(made)
    assert {each["load"] for each in row["best"]} == {1, 128}
    assert row["best"][0]["setting"] in ("eagle3", "ngram")
    assert all(each["high"] is None or math.isfinite(each["high"]) for each in row["crossovers"])


def test_a_mixture_pays_for_the_experts_of_every_draft_token() -> None:
    """Measured at k = 7 alone, the steps of fewer draft tokens follow from the experts that they read."""
    known = find_model("Qwen/Qwen3-30B-A3B")
    assert known is not None
    made = make_calibration()

    def step_ms(batch: float, k: float) -> float:
        gb = 2.4 + 58.0 * (1 - (15 / 16) ** (batch * (k + 1))) + (0.25 * k if k else 0)
        return 1.1 + gb / 4.3 + 0.1 * k

    points = [
        replace(each, step_ms=ms, low=0.99 * ms, high=1.01 * ms)
        for each in made.points
        if each.setting != "ngram"
        for ms in [step_ms(each.batch, each.drafted)]
    ]
    settings = tuple(each for each in made.settings if each.name != "ngram")
    mixture = replace(made, target=known.id, config=known.config, points=tuple(points), settings=settings)
    found = forecast(make_profile(EAGLE), mixture, concurrency=(1, 4), prompt_tokens=512, output_tokens=256)
    for row in found.cells:
        assert row.step_ms == pytest.approx(step_ms(row.load, row.k), rel=0.12)
    at_one = {row.k: row.step_ms / row.plain_step_ms for row in found.cells if row.load == 1}
    assert at_one[7] > 2.5 > at_one[1] > 1.3, "a dense target's step hardly grows"
