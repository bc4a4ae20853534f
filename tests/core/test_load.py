"""Loads by name: what a label says, whether a rate is steady, and that conditions survive JSON."""

import pytest

from draftwise.core import Arm, Arrivals, ClosedLoop, Condition, Load, OpenLoop, Phase, Replay
from draftwise.core.documents import from_json, to_json

RAMP = OpenLoop(phases=(Phase(start_per_s=1, end_per_s=8, duration_s=60), Phase(start_per_s=8, end_per_s=8)))
STEPS = OpenLoop(phases=(Phase(start_per_s=2, end_per_s=2, duration_s=9), Phase(start_per_s=2, end_per_s=2)))


@pytest.mark.parametrize(
    ("load", "label"),
    [
        (ClosedLoop(concurrency=8), "c=8"),
        (OpenLoop.steady(0.5), "0.5/s"),
        (OpenLoop.steady(2, Arrivals.CONSTANT), "2/s constant"),
        (RAMP, "60s:1-8/s,8/s"),
        (Replay(), "replay"),
        (Replay(speed=2), "replay x2"),
    ],
)
def test_a_condition_has_a_name_and_survives_json(load: Load, label: str) -> None:
    warm = Condition(load=load, temperature=0.7)
    assert Condition(load=load).label == label
    assert warm.label == f"{label} T=0.7"
    assert from_json(Condition, to_json(warm)) == warm


@pytest.mark.parametrize(("load", "rate"), [(OpenLoop.steady(2), 2), (STEPS, 2), (RAMP, None)])
def test_only_a_rate_that_never_changes_is_one_number(load: OpenLoop, rate: float | None) -> None:
    assert load.rate_per_s == rate


@pytest.mark.parametrize(
    ("url", "here"),
    [(None, True), ("http://localhost:8000", True), ("http://[::1]:8000/v1", True), ("http://10.0.0.7:8000", False)],
)
def test_a_server_is_here_when_its_address_is_this_machine(url: str | None, here: bool) -> None:
    assert Arm(name="plain", url=url).is_here is here
