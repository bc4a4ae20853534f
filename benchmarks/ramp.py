"""What `draftwise schedule` chooses of a calibration and a profile, and how it does over a ramp of batch sizes.

The arms of a ramp are plain decoding, every fixed k and the schedule. Whoever times them, on a processor, a GPU or
vLLM, gives what their steps take at every size. Tokens a step are those of the profile for all, so that luck with
drafts is in no ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftwise.core import (
    Acceptance,
    AcceptanceAtK,
    Calibration,
    Exactness,
    Interval,
    Profile,
    ReplayedLog,
    ReplayedTarget,
)
from draftwise.plan.cost.calibrated import CalibratedCosts
from draftwise.plan.schedule.advise import Advice, Rates, advise_lengths

__all__ = ["GOALS", "PLAIN", "SCHEDULE", "advise", "draw_profile", "fixed", "hold"]

PLAIN, SCHEDULE = "plain", "schedule"
GOALS = {"regret_of_schedule_percent": 3, "gain_off_points": 3}
"""What the schedule may lose beside the best fixed k, and how far off its predicted gain over the chosen k may be."""

_LOG = 1_000_000
"""Steps of a profile that was not counted."""


def fixed(k: int) -> str:
    """Return the name of the arm that drafts k tokens at every size."""
    return f"k={k}"


def draw_profile(calibration: Calibration, chance: float) -> Profile:
    """Return the profile of the one candidate where a draft token stands with a given chance if those before it do."""
    (setting,) = calibration.candidates
    assert setting.spec is not None
    entry = Acceptance(
        candidate=setting.spec,
        temperature=0.0,
        exactness=Exactness.EXACT,
        requests=1,
        by_k={k: _at_k(k, chance) for k in range(1, setting.k + 1)},
    )
    log = ReplayedLog(rows=1, used=1, tokens_out=_LOG)
    return Profile(target=ReplayedTarget(name=calibration.target), log=log, entries=(entry,))


def _at_k(k: int, chance: float) -> AcceptanceAtK:
    length = sum(chance**place for place in range(k + 1))
    return AcceptanceAtK(
        steps=_LOG,
        emitted=_LOG * length,
        drafts=_LOG,
        drafted=_LOG * k,
        accepted=_LOG * (length - 1),
        tokens_per_step=Interval(value=length, low=length, high=length),
        per_request=(length,) * 3,
    )


def advise(profile: Profile, calibration: Calibration, ramp: Sequence[int]) -> Advice:
    """Return the best k and the schedule for a ramp whose sizes are equally frequent, of the one candidate there is."""
    (advice,) = advise_lengths(profile, calibration, batches=ramp)
    return advice


def hold(
    advice: Advice,
    profile: Profile,
    calibration: Calibration,
    rounds: Sequence[Mapping[str, Sequence[float]]],
    ramp: Sequence[int],
) -> dict[str, Any]:
    """Return what was predicted beside what was measured.

    Args:
        advice: of `advise`.
        profile: that it rests on.
        calibration: likewise.
        rounds: of each, mean seconds of a step at each size of the ramp, by arm: PLAIN, SCHEDULE and at least one fixed
            k, the chosen one among them.
        ramp: batch sizes.
    """
    whole = {name: np.mean([each[name] for each in rounds], axis=0) for name in rounds[0]}
    each = [_hold(advice, profile, calibration, one, ramp) for one in rounds]
    by_round = [{name: found[name] for name in GOALS} for found in each]
    return _hold(advice, profile, calibration, whole, ramp) | {"by_round": by_round}


def _hold(
    advice: Advice,
    profile: Profile,
    calibration: Calibration,
    step_s: Mapping[str, Sequence[float]],
    ramp: Sequence[int],
) -> dict[str, Any]:
    choice, by_k = advice.choice, profile.entries[0].by_k
    rates = Rates(CalibratedCosts(calibration), advice.setting, profile.entries[0], _context(calibration))
    names = {fixed(k): k for k in by_k if fixed(k) in step_s}
    predicted = {name: [rates.speed_up(size, k) for size in ramp] for name, k in names.items()}
    drafted = {name: [k] * len(ramp) for name, k in names.items()}
    drafted[SCHEDULE] = [next(k for first, last, k in choice.ranges if first <= size <= last) for size in ramp]
    speedup = {
        name: np.divide(step_s[PLAIN], step_s[name]) * [by_k[k].tokens_per_step.value for k in ks]
        for name, ks in drafted.items()
    }
    means = {name: float(each.mean()) for name, each in speedup.items()}
    best = max(names, key=lambda name: means[name])
    errors = [abs(np.divide(predicted[name], speedup[name]) - 1) for name in names]
    foreseen, gained = choice.schedule_gain - 1, means[SCHEDULE] / means[fixed(choice.fixed_k)] - 1
    return {
        "ranges": choice.ranges,
        "chosen_k": choice.fixed_k,
        "predicted_gain_of_schedule_percent": _percent(foreseen),
        "is_written": advice.scheduled is not None,
        "best_fixed": best,
        "regret_of_chosen_k_percent": _percent(1 - means[fixed(choice.fixed_k)] / means[best]),
        "regret_of_schedule_percent": _percent(1 - means[SCHEDULE] / means[best]),
        "measured_gain_of_schedule_percent": _percent(gained),
        "gain_off_points": _percent(foreseen - gained),
        "plain_tokens_per_s": [round(float(each), 1) for each in np.divide(ramp, step_s[PLAIN])],
        "speedup": {name: _rounded(each) for name, each in speedup.items()},
        "predicted": {name: _rounded(each) for name, each in predicted.items()},
        "speedup_off_percent": {
            "median": _percent(float(np.median(errors))),
            "p90": _percent(float(np.quantile(errors, 0.9))),
        },
    }


def _context(calibration: Calibration) -> float:
    """Return the mean length of the calibrated sequences, which `advise_lengths` goes by as well."""
    return sum(point.context for point in calibration.points) / len(calibration.points)


def _percent(share: float) -> float:
    return round(100 * share, 1)


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(float(value), 3) for value in values]
