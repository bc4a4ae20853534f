"""What the ramps of benchmarks/ say of a schedule, on steps that take what the cost model says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ramp import PLAIN, SCHEDULE, advise, draw_profile, fixed, hold
from step_costs import read_machine

from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.plan.schedule.advise import Rates

RAMP = (1, 4, 16, 64)


def test_a_schedule_that_does_what_was_foreseen_loses_nothing_and_a_slower_one_what_it_is_slower() -> None:
    whole = read_machine("draftwise, machine 2")
    kept = ("plain", "eagle3-k3")
    calibration = replace(
        whole,
        settings=tuple(each for each in whole.settings if each.name in kept),
        points=tuple(each for each in whole.points if each.setting in kept),
    )
    profile = draw_profile(calibration, 0.5)
    advice = advise(profile, calibration, RAMP)
    assert len(advice.choice.ranges) > 1
    context = calibration.points[0].context
    rates = Rates(CalibratedCosts(calibration), advice.setting, profile.entries[0], context)
    ks = [next(k for first, last, k in advice.choice.ranges if first <= size <= last) for size in RAMP]
    lengths = {k: profile.entries[0].by_k[k].tokens_per_step.value for k in (1, 2, 3)}

    def steps(drafted: list[int]) -> list[float]:
        return [lengths[k] / rates.speed_up(size, k) for size, k in zip(RAMP, drafted, strict=True)]

    step_s = {PLAIN: [1.0] * len(RAMP), SCHEDULE: steps(ks)} | {fixed(k): steps([k] * len(RAMP)) for k in lengths}
    found = hold(advice, profile, calibration, [step_s], RAMP)
    assert found["gain_off_points"] == found["speedup_off_percent"]["p90"] == 0
    assert found["regret_of_schedule_percent"] == pytest.approx(-found["predicted_gain_of_schedule_percent"], abs=0.1)
    assert found["best_fixed"] == fixed(found["chosen_k"])
    slower = step_s | {SCHEDULE: [each / 0.9 for each in step_s[SCHEDULE]]}
    gained = found["measured_gain_of_schedule_percent"]
    second = hold(advice, profile, calibration, [step_s, slower], RAMP)["by_round"][1]
    assert second["regret_of_schedule_percent"] == pytest.approx(100 - 0.9 * (100 + gained), abs=0.1)
