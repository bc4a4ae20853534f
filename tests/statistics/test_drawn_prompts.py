"""Prompts drawn in a spread order over a log: intervals hold the truth of its traffic, and order and clusters count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.support.simulated import binomial_bounds

from draftwise.statistics import Design, RatioEstimate, prompt_ratio

STEP = (5**0.5 - 1) / 2
RUNS = 400


def drawn(rng: np.random.Generator, rows: int, count: int) -> np.ndarray:
    return (((rng.random() + STEP * np.arange(count)) % 1) * rows).astype(int)


def estimate(
    gains_P: np.ndarray,
    places: np.ndarray | None,
    rows: int = 0,
    clusters: np.ndarray | None = None,
    routes: np.ndarray | None = None,
) -> RatioEstimate:
    units = range(len(gains_P))
    design = Design.of(
        [(unit, unit) for unit in units],
        places=None if places is None else {unit: float(places[unit]) for unit in units},
        clusters=None if clusters is None else {unit: int(clusters[unit]) for unit in units},
        population=rows,
        routes=None if routes is None else {unit: int(routes[unit]) for unit in units},
    )
    found = prompt_ratio(np.exp(gains_P), np.ones(len(gains_P)), design)
    assert found is not None
    return found


def cover(
    rows: int, count: int, make: str, *, population: bool = True, labels: bool = False
) -> tuple[float, float, float]:
    """Return coverage of the traffic's gain, RMS z and mean half-width, each run with a log and a draw of its own."""
    rng, held, z, widths = np.random.default_rng(1), 0, [], []
    for _ in range(RUNS):
        kinds = np.sort(rng.choice(3, rows, p=[0.5, 0.3, 0.2]))
        of_kind = np.array([-0.1, 0.0, 0.25])
        log_N = 0.1 * rng.standard_normal(rows) + (of_kind[kinds] if make == "routes" else 0.0)
        truth = float(of_kind @ [0.5, 0.3, 0.2]) if make == "routes" else 0.0
        places = drawn(rng, rows, count)
        routes = kinds[places] * (make == "routes") if labels else None
        logs = log_N[places] + 0.06 * rng.standard_normal(count)
        found = estimate(logs, places, rows if population else 10**9, routes=routes)
        half = math.log(found.interval().high / found.value)
        held += abs(found.log - truth) < half
        z.append(1.96 * (found.log - truth) / half)
        widths.append(half)
    return held / RUNS, math.sqrt(float(np.mean(np.square(z)))), float(np.mean(widths))


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("make", ["plain", "routes"])
@pytest.mark.parametrize(("rows", "count"), [(246, 30), (246, 120), (2000, 120)])
def test_intervals_hold_the_gain_of_the_traffic(labels: bool, make: str, rows: int, count: int) -> None:
    covered, z, _ = cover(rows, count, make, labels=labels)
    assert covered > binomial_bounds(0.95, RUNS, deviations=3)[0]
    assert 0.85 < z < 1.1


def test_the_logs_own_mix_is_a_sample_too() -> None:
    """What the coverage test is for: without the term of the log's size three routes are not covered."""
    covered, z, _ = cover(246, 120, "routes", population=False)
    assert covered < 0.935
    assert z > 1.1


def test_routes_that_gain_differently_do_not_widen_what_was_drawn_over_them() -> None:
    rng = np.random.default_rng(0)
    places = drawn(rng, 10_000, 60)
    gains = np.where(places < 5000, -0.3, 0.3) + 0.02 * rng.standard_normal(60)
    spread, blind = estimate(gains, places, 10_000).spread, estimate(gains, None).spread
    assert spread.error < 0.25 * blind.error
    assert spread.degrees == pytest.approx(2 * 59 / 3)


def test_what_changes_along_a_log_of_one_route_is_no_mix_of_routes() -> None:
    rng = np.random.default_rng(0)
    places = drawn(rng, 240, 120)
    gains = np.where(places < 60, 0.3, -0.1) + 0.05 * rng.standard_normal(120)
    unknown, one = (estimate(gains, places, 240, routes=each).spread for each in (None, np.zeros(120)))
    assert one.variance == pytest.approx(0.05**2 / 120, rel=0.4)
    assert unknown.variance - one.variance == pytest.approx(gains.var() / 240, rel=0.2)
    many = estimate(gains, places, 240, routes=np.arange(120)).spread
    assert many.variance == unknown.variance, "a route for each prompt tells nothing"


def test_fewer_than_twelve_prompts_have_no_neighbours() -> None:
    gains, places = np.linspace(0, 1, 11), np.arange(11)
    assert estimate(gains, places, 50).spread == estimate(gains, None).spread
    assert estimate(np.linspace(0, 1, 12), np.arange(12), 50).spread != estimate(np.linspace(0, 1, 12), None).spread


def test_a_whole_log_is_a_sample_of_its_traffic() -> None:
    gains = np.random.default_rng(0).standard_normal(40)
    assert estimate(gains, np.arange(40), 40).spread.variance == pytest.approx(gains.var(ddof=1) / 40)


def coverage_of_clusters(tenants: int) -> float:
    rng, held = np.random.default_rng(2), 0
    for _ in range(RUNS):
        tenants_N = np.arange(40) % tenants
        gains = 0.21 * rng.standard_normal(tenants)[tenants_N] + 0.21 * rng.standard_normal(40)
        interval = estimate(gains, tenants_N, 4000, tenants_N).interval()
        held += interval.low < 1 < interval.high
    return held / RUNS


def test_clusters_are_covered() -> None:
    assert coverage_of_clusters(20) > binomial_bounds(0.95, RUNS, deviations=3)[0]


def test_fewer_than_six_clusters_are_parts_of_the_log() -> None:
    rng = np.random.default_rng(3)
    tenants_N = np.repeat(np.arange(5), 8)
    gains = rng.standard_normal(5)[tenants_N] + 0.1 * rng.standard_normal(40)
    with_them, without = estimate(gains, tenants_N, 4000, tenants_N), estimate(gains, tenants_N, 4000)
    assert with_them.spread == without.spread


@pytest.mark.parametrize("passes", [1, 3])
def test_prompts_asked_again_count_once(passes: int) -> None:
    gains = np.random.default_rng(0).standard_normal(20)
    places = {unit: float(unit) for unit in range(20)}
    design = Design.of([(unit, (again, unit)) for again in range(passes) for unit in range(20)], places=places)
    found = prompt_ratio(np.exp(np.tile(gains, passes)), np.ones(20 * passes), design)
    assert found is not None
    alone = estimate(gains, np.arange(20))
    assert found.spread.variance == pytest.approx(alone.spread.variance)
    assert found.spread.degrees == alone.spread.degrees
