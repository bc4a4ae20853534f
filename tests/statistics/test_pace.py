"""A server that was slow for a while is told from the machine's drift and from chance."""

from __future__ import annotations

import numpy as np
import pytest

from draftwise.statistics import (
    find_drift_apart,
    find_pace_change,
    find_pauses,
    find_split_apart,
    find_step_noise,
    find_unrest,
    find_warm_noise,
    find_waves,
    has_moved,
    has_slowed,
)
from draftwise.statistics.pace import _FASTEST, _find_fastest


def noise(seed: int, size: int, scale: float = 0.05) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal(size)


@pytest.mark.parametrize("size", [8, 12, 20, 60])
@pytest.mark.parametrize(("factor", "share"), [(2.0, 0.5), (1.5, 0.5), (0.5, 0.5), (2.0, 0.75)])
def test_a_state_that_lasts_for_a_part_of_the_run_is_seen(size: int, factor: float, share: float) -> None:
    own_T, place = noise(1, size), round(share * size)
    if min(place, size - place) < 4:
        place = size - 4
    own_T[:place] += np.log(factor)
    change = find_pace_change(own_T, noise(2, size))
    assert change is not None
    assert change.place == place
    assert change.ratio == pytest.approx(1 / factor, rel=0.12)


def test_a_machine_that_moves_one_of_two_arms_more_is_no_change_of_its_server() -> None:
    """What is left of a change has to be more than the noise of both."""
    shared_T, found = np.where(np.arange(30) < 12, -0.2, 0.0), {"shared": 0, "own": 0}
    for seed in range(60):
        own_T, other_T = noise(seed, 30, 0.12), noise(100 + seed, 30, 0.2)
        found["shared"] += find_pace_change(shared_T + own_T, 0.45 * shared_T + other_T, claimed=0.04) is not None
        found["own"] += find_pace_change(2 * shared_T + own_T, other_T, claimed=0.04) is not None
    assert found["shared"] <= 6, "36 without the test of what is left"
    assert found["own"] >= 54


def test_what_both_arms_share_is_the_machines() -> None:
    shared_T = np.where(np.arange(60) < 30, np.log(2), 0.0)
    assert find_pace_change(shared_T + noise(1, 60), shared_T + noise(2, 60)) is None
    drift_T = np.linspace(0, 1, 60)
    assert find_pace_change(drift_T + noise(1, 60), drift_T + noise(2, 60)) is None
    assert find_drift_apart(drift_T + noise(1, 60), drift_T + noise(2, 60), np.arange(60.0)) is None


def test_less_than_15_percent_is_no_doubt_however_sure_it_is() -> None:
    own_T = np.where(np.arange(60) < 30, np.log(1.12), 0.0)
    assert find_pace_change(own_T + noise(1, 60, 0.001), np.zeros(60)) is None
    assert find_pace_change(2 * own_T + noise(1, 60, 0.001), np.zeros(60)) is not None
    assert find_pace_change(own_T + noise(1, 60, 0.001), np.zeros(60), claimed=np.log(1.1)) is not None, "all of a gain"
    assert find_pace_change(own_T / 2 + noise(1, 60, 0.001), np.zeros(60), claimed=0.0) is None, "5.8 %"


@pytest.mark.parametrize("size", [8, 20, 60, 300])
def test_steady_servers_seem_to_change_hardly_ever_and_not_more_often_with_more_turns(size: int) -> None:
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(400):
        own_T, other_T = 0.15 * rng.standard_normal((2, size))
        found += find_pace_change(own_T, other_T, claimed=0.08) is not None
        found += find_drift_apart(own_T, other_T, np.arange(float(size))) is not None
    assert found <= 8, "2 %"


def test_arms_that_drift_apart_are_seen() -> None:
    drift_T = np.linspace(0, np.log(1.4), 40)
    change = find_drift_apart(drift_T + noise(1, 40), noise(2, 40), np.arange(40.0))
    assert change is not None
    assert change.ratio == pytest.approx(1.4, rel=0.1)
    assert find_drift_apart(0.2 * drift_T + noise(1, 40), noise(2, 40), np.arange(40.0)) is None
    slow_T = 0.35 * drift_T + noise(1, 40, 0.01)
    assert find_drift_apart(slow_T, noise(2, 40, 0.01), np.arange(40.0), claimed=np.log(0.75)) is None
    assert find_drift_apart(slow_T, noise(2, 40, 0.01), np.arange(40.0), claimed=np.log(0.92)), "all that is claimed"
    assert find_drift_apart(drift_T, noise(2, 40, 0.5), np.arange(40.0)) is None, "a slope that may be chance"
    unsure_T = 0.4 * drift_T + noise(1, 40, 0.06)
    assert find_drift_apart(unsure_T, noise(2, 40, 0.06), np.arange(40.0)) is None, "|t| is 3.2"
    assert find_drift_apart(unsure_T, noise(2, 40, 0.06), np.arange(40.0), claimed=np.log(0.93)), "but all is claimed"


@pytest.mark.parametrize("size", [0, 1, 4])
def test_too_few_turns_tell_nothing(size: int) -> None:
    own_T = np.where(np.arange(size) < 3, 5.0, 0.0)
    assert find_pace_change(own_T, np.zeros(size)) is None
    assert find_drift_apart(own_T, np.zeros(size), np.arange(float(size))) is None


def test_anchors_that_moved_together_are_told_from_those_that_scatter() -> None:
    assert has_moved([0.6, 0.7, 0.65, 0.75, 0.6, 0.7])
    assert not has_moved([0.6, -0.7, 0.65, -0.75, 0.6, -0.7])
    assert not has_moved([0.1, 0.11, 0.1, 0.11, 0.1, 0.11]), "less than 15 %"
    assert not has_moved([0.6, 0.7, 0.65])


@pytest.mark.parametrize("size", [20, 32, 60])
def test_a_pace_that_only_one_arm_varies_may_be_all_of_a_small_gain_and_not_of_a_large_one(size: int) -> None:
    rng = np.random.default_rng(size)
    found = {"replicas": 0, "large": 0, "both": 0, "chance": 0, "prompts": 0}
    for _ in range(200):
        own, other = rng.normal(0, 0.04, size=(2, size))
        slow = np.log(1.6) * (rng.random(size) < 0.5)
        found["replicas"] += find_unrest(own + slow, other, claimed=slow.mean()) is not None
        found["large"] += find_unrest(own + slow, other, claimed=np.log(3)) is not None
        found["both"] += find_unrest(own + slow, other + rng.permutation(slow), claimed=0.08) is not None
        hits = 0.1 * rng.standard_t(3, size=(2, size))
        found["chance"] += find_unrest(*hits, claimed=0.08) is not None
        # Contexts of many lengths, where a step that drafts takes twice as long and as much more with each token.
        length = rng.lognormal(0, 1, size)
        plain, drafting = (np.log(base + 0.1 * length) for base in (1.0, 2.0))
        found["prompts"] += find_unrest(plain + own, drafting + other, claimed=0.08) is not None
    assert found["replicas"] >= (100 if size < 30 else 180)
    assert found["large"] == 0
    assert max(found["both"], found["chance"], found["prompts"]) <= 2, found


def test_what_a_step_drafts_makes_no_server_uneven() -> None:
    rng = np.random.default_rng(1)
    found = {"drafts": 0, "replicas": 0}
    for _ in range(200):
        own, other = rng.normal(0, 0.04, size=(2, 40))
        drafted = rng.uniform(0, 5, 40)
        slow = np.log(1.6) * (rng.random(40) < 0.5)
        found["drafts"] += find_unrest(own + 0.1 * drafted, other, drafted[:, None], claimed=0.1) is not None
        found["replicas"] += find_unrest(own + 0.1 * drafted + slow, other, drafted[:, None], claimed=0.2) is not None
    assert found["drafts"] <= 2
    assert found["replicas"] >= 190


def write(rng: np.random.Generator, step_s: float, slow: float, period: float, tokens: int) -> np.ndarray:
    """Return the seconds between arrivals of an answer of a server that is slow for a third of each period."""
    at, gaps = period * rng.random(), []
    for _ in range(tokens):
        factor = slow if at % period < period / 3 else 1.0
        gaps.append(step_s * factor * np.exp(0.04 * rng.standard_normal()) + 0.002 * rng.random())
        at += gaps[-1]
    return np.array(gaps)


@pytest.mark.parametrize("period", [0.1, 0.2, 0.3])
def test_pauses_within_requests_may_be_all_of_a_small_gain_and_not_of_a_large_one(period: float) -> None:
    rng, found = np.random.default_rng(round(10 * period)), {"small": 0, "large": 0, "both": 0, "none": 0, "other": 0}
    for _ in range(30):
        paused, even, longer, both = (
            [write(rng, step_s, slow, period, tokens) for tokens in rng.integers(12, 40, 30)]
            for step_s, slow in ((0.03, 1.8), (0.03, 1.0), (0.05, 1.0), (0.05, 1.8))
        )
        found["small"] += find_pauses(paused, longer, claimed=0.2) is not None
        found["large"] += find_pauses(paused, longer, claimed=np.log(3)) is not None
        found["both"] += find_pauses(paused, both, claimed=0.05) is not None
        found["none"] += find_pauses(even, longer, claimed=0.05) is not None
        found["other"] += find_pauses(longer, paused, claimed=0.05) is not None
    assert found["small"] >= 27
    assert found["large"] == found["other"] == 0
    assert max(found["both"], found["none"]) <= 2, found


def test_prompts_of_others_that_hold_a_request_up_are_no_pauses_of_a_server() -> None:
    """Each answer is held up twice; the one that has fewer steps has more of it in each."""
    rng = np.random.default_rng(3)
    plain, drafting = ([np.full(count, step_s) for _ in range(30)] for count, step_s in ((40, 0.03), (20, 0.05)))
    for gaps in (*plain, *drafting):
        gaps[rng.choice(len(gaps), 2, replace=False)] += 0.2 * rng.uniform(0.9, 1.1, 2)
    assert find_pauses(plain, drafting, claimed=0.05) is None
    assert find_pauses(drafting, plain, claimed=0.05) is None


def test_the_fastest_tenth_is_that_of_numpy_to_the_bit() -> None:
    for size in range(1, 80):
        sorted_N = np.sort(np.random.default_rng(size).exponential(size=size))
        assert _find_fastest(sorted_N) == np.quantile(sorted_N, _FASTEST)


def test_answers_that_arrive_at_once_have_no_pauses() -> None:
    assert find_pauses([np.zeros(0)] * 30, [np.full(20, 0.03)] * 30, claimed=0.1) is None


@pytest.mark.parametrize("size", [18, 60])
@pytest.mark.parametrize("sign", [-1, 1])
def test_of_two_servers_that_slow_down_the_one_that_does_so_more_may_be_all_of_a_gain(size: int, sign: int) -> None:
    late_T = np.where(np.arange(size) < size // 3, 0.0, sign)
    own_T, other_T = 0.9 * late_T + noise(1, size), 0.5 * late_T + noise(2, size)
    claimed = -0.4 * sign * 2 / 3
    assert find_pace_change(own_T, other_T, claimed=claimed) is None, "shared by half"
    found = find_split_apart(own_T, other_T, claimed=claimed)
    assert found is not None
    assert found.ratio == pytest.approx(np.exp(0.4 * sign), rel=0.1)
    assert find_split_apart(own_T, other_T, claimed=-2.0 * sign) is None, "most of it is left in each part"
    assert find_split_apart(late_T + noise(1, size), late_T + noise(2, size), claimed=claimed) is None


def test_noise_is_what_changes_from_turn_to_turn() -> None:
    series_T = noise(1, 400, 0.1)
    assert find_step_noise(series_T) == pytest.approx(0.1, rel=0.1)
    assert find_step_noise(series_T + np.linspace(0, 2, 400)) == pytest.approx(0.1, rel=0.1)


def test_a_drift_began_before_the_run() -> None:
    """A server that slows down with each request had its warm-up, too: the run sees half of what it explains."""
    drift_T = np.linspace(0, 0.08, 50) + noise(1, 50, 0.02)
    assert find_drift_apart(drift_T, noise(2, 50, 0.02), np.arange(50.0), claimed=-0.13)
    assert find_drift_apart(drift_T, noise(2, 50, 0.02), np.arange(50.0), claimed=-0.3) is None
    apart_T = np.linspace(0, 0.08, 20) + 0.035 * (-1.0) ** np.arange(20)
    assert find_drift_apart(apart_T, 0 * apart_T, np.arange(20.0), claimed=-0.13), "a loss needs less proof: |t| is 2.5"
    assert find_drift_apart(apart_T, 0 * apart_T, np.arange(20.0), claimed=0.13) is None


def test_few_turns_tell_of_what_is_not_chance() -> None:
    drift_T = np.linspace(-0.3, 0.3, 7)
    assert find_drift_apart(drift_T + noise(1, 7), noise(2, 7, 0.01), np.arange(7.0), claimed=-0.3)
    assert find_drift_apart(drift_T + noise(1, 7, 0.3), noise(2, 7, 0.3), np.arange(7.0), claimed=-0.3) is None


def test_a_server_has_slowed_where_the_other_one_has_not() -> None:
    assert has_slowed(np.log(1.3), 0.0, 0.03)
    assert not has_slowed(np.log(1.3), np.log(1.25), 0.03), "both"
    assert not has_slowed(np.log(1.3), 0.0, 0.1), "chance"
    assert not has_slowed(np.log(1.1), 0.0, 0.0)
    assert has_slowed(np.log(1.1), 0.0, 0.03, claimed=0.08), "all of a small gain"
    assert has_slowed(np.log(1.3), 0.0, 0.1, claimed=0.3), "2.6 standard errors, and most of what is claimed"
    assert not has_slowed(np.log(1.3), 0.0, 0.1, claimed=0.1), "2.6 standard errors, and far more than is claimed"
    assert not has_slowed(-np.log(1.3), 0.0, 0.0), "it was not warm"
    assert not has_slowed(0.0, -np.log(1.3), 0.0), "the other one was not"


def test_how_far_late_warm_ups_scatter_is_what_most_servers_show() -> None:
    rng = np.random.default_rng(0)
    read = [find_warm_noise([*rng.normal(0.1, 0.15, 11), np.log(2)]) for _ in range(300)]
    assert np.median(read) == pytest.approx(np.sqrt(2) * 0.15, rel=0.15), "one that did slow down hardly counts"
    assert find_warm_noise([0.1, 0.5, -0.2]) == 0.0, "too few to tell"


@pytest.mark.parametrize("size", [13, 30, 100])
def test_a_pace_that_rises_and_falls_by_itself_may_be_all_of_a_gain(size: int) -> None:
    """No split and no line fits a noisy neighbor that comes and goes."""
    rng = np.random.default_rng(size)
    found = {"waves": 0, "large": 0, "both": 0, "chance": 0}
    for _ in range(200):
        own, other = rng.normal(0, 0.04, size=(2, size))
        waves = 0.25 * np.sin(2 * np.pi * (1.2 * np.arange(size) / size + rng.random()))
        found["waves"] += find_waves(own + waves, other, claimed=0.2) is not None
        found["large"] += find_waves(own + waves, other, claimed=np.log(3)) is not None
        found["both"] += find_waves(own + waves, other + waves, claimed=0.2) is not None
        found["chance"] += find_waves(own, other, claimed=0.05) is not None
    assert found["waves"] >= (100 if size < 30 else 195), found
    assert (found["large"], max(found["both"], found["chance"]) <= 4) == (0, True), found


def test_waves_that_a_noisy_arm_shares_are_the_machines() -> None:
    """The noise of one arm hides half of what it shares from a regression, and nothing of it here."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(200):
        waves = 0.09 * np.sin(2 * np.pi * (4 * np.arange(300) / 300 + rng.random()))
        own, other = waves + rng.normal(0, 0.11, 300), 1.5 * waves + rng.normal(0, 0.28, 300)
        found += find_waves(own, other, claimed=0.1) is not None
    assert found <= 20


def test_noise_of_the_other_arm_shares_no_waves() -> None:
    rng, found = np.random.default_rng(0), 0
    for _ in range(200):
        waves = 0.12 * np.sin(2 * np.pi * (2.5 * np.arange(24) / 24 + rng.random()))
        own, other = waves + rng.normal(0, 0.03, 24), rng.normal(0, 0.15, 24)
        found += find_waves(own, other, claimed=0.13) is not None
    assert found >= 170, "0.6 of them if a chance covariance counts"
