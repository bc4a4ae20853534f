"""Arrival times: reproducible, in order, and at the asked rate in every phase."""

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from draftwise.core import Arrivals, InvalidSetup, OpenLoop, Phase, Prompt, Replay
from draftwise.measure.load.requests import arrival_times, replay_times

RATES = st.floats(0, 50).map(lambda rate: round(rate, 2))
ENDING = st.builds(Phase, start_per_s=RATES, end_per_s=RATES, duration_s=st.floats(0.1, 60))
ENDLESS = st.floats(0.1, 50).map(lambda rate: Phase(start_per_s=rate, end_per_s=rate))
KINDS = st.sampled_from(Arrivals)


def draw(load: OpenLoop, count: int, seed: int = 0, key: str = "w/c/1/0") -> list[float]:
    return list(islice(arrival_times(load, seed=seed, key=key), count))


def area(phases: tuple[Phase, ...], until: float) -> float:
    """Integrate the rate up to a time, by its definition."""
    total = 0.0
    for phase in phases:
        length = until if phase.duration_s is None else min(until, phase.duration_s)
        slope = 0.0 if phase.duration_s is None else (phase.end_per_s - phase.start_per_s) / phase.duration_s
        total += phase.start_per_s * length + slope * length**2 / 2
        until -= length
    return total


@given(st.lists(ENDING, max_size=3), ENDLESS, KINDS, st.integers(0, 5))
def test_times_ascend_and_depend_on_seed_and_key_alone(
    phases: list[Phase], last: Phase, kind: Arrivals, seed: int
) -> None:
    load = OpenLoop(phases=(*phases, last), arrivals=kind)
    times = draw(load, 60, seed)
    assert times[0] >= 0
    assert all(a <= b for a, b in pairwise(times))
    assert times == draw(load, 60, seed)


@given(st.lists(ENDING, max_size=3), ENDLESS)
def test_constant_arrivals_are_one_apart_under_the_rate(phases: list[Phase], last: Phase) -> None:
    load = OpenLoop(phases=(*phases, last), arrivals=Arrivals.CONSTANT)
    areas = [area(load.phases, time) for time in draw(load, 50)]
    assert areas == pytest.approx(list(range(50)), abs=1e-6)


@given(st.lists(ENDING, min_size=1, max_size=3), KINDS)
def test_phases_that_end_have_their_expected_number_and_start_over(phases: list[Phase], kind: Arrivals) -> None:
    load, length = OpenLoop(phases=tuple(phases), arrivals=kind), sum(phase.duration_s or 0 for phase in phases)
    expected = area(load.phases, length)
    if expected == 0:
        with pytest.raises(InvalidSetup, match="rate is 0"):
            draw(load, 1)
        return
    number = max(1, round(expected))
    times = draw(load, 2 * number)
    assert all(0 <= time <= length for time in times[:number])
    assert all(length <= time <= 2 * length for time in times[number:])


def test_a_phase_without_arrivals_is_a_pause() -> None:
    phases = (
        Phase(start_per_s=5, end_per_s=5, duration_s=2),
        Phase(start_per_s=0, end_per_s=0, duration_s=10),
        Phase(start_per_s=5, end_per_s=5),
    )
    for kind in Arrivals:
        times = draw(OpenLoop(phases=phases, arrivals=kind), 30)
        assert not [time for time in times if 2 < time < 12]
        assert [time for time in times if time >= 12]


def test_poisson_gaps_are_exponential() -> None:
    times = draw(OpenLoop.steady(4.0), 4000)
    assert kstest(np.diff(times), "expon", args=(0, 1 / 4)).pvalue > 0.01
    assert times[-1] == pytest.approx(1000, rel=0.05)


@pytest.mark.parametrize("last", [Phase(start_per_s=9, end_per_s=9), Phase(start_per_s=9, end_per_s=1, duration_s=400)])
def test_poisson_arrivals_of_changing_rates_are_a_poisson_process_under_the_rate(last: Phase) -> None:
    """The number of arrivals is to the rate's integral as to time in a steady process: uniform, given their number."""
    phases = (Phase(start_per_s=1, end_per_s=9, duration_s=400), last)
    times = [time for time in draw(OpenLoop(phases=phases), 7000) if time < 800]
    shares = [area(phases, time) / area(phases, 800) for time in times]
    assert kstest(shares, "uniform").pvalue > 0.01


def test_other_seeds_and_keys_give_other_times() -> None:
    load = OpenLoop.steady(3.0)
    assert len({draw(load, 1, seed, key)[0] for seed in range(3) for key in "abc"}) == 9


def test_the_times_of_a_seed_never_change() -> None:
    """Resumed runs and both arms of a run rely on it."""
    assert draw(OpenLoop.steady(2.0), 3) == pytest.approx([0.12036195673954934, 0.5493622699597907, 1.199443123403059])


def prompt(arrival_s: float | None) -> Prompt:
    return Prompt(id=str(arrival_s), text="x", max_tokens=1, arrival_s=arrival_s)


def test_a_replay_keeps_the_recorded_gaps() -> None:
    prompts = [prompt(time) for time in (100.0, 100.0, 101.0, 105.0)]
    assert replay_times(prompts, Replay()) == [0, 0, 1, 5]
    assert replay_times(prompts, Replay(speed=2)) == [0, 0, 0.5, 2.5]


@pytest.mark.parametrize("times", [(1.0, None), (2.0, 1.0)])
def test_a_replay_needs_ascending_times(times: tuple[float | None, ...]) -> None:
    with pytest.raises(InvalidSetup, match="arrival time"):
        replay_times([prompt(time) for time in times], Replay())
