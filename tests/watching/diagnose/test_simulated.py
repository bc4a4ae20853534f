"""A cheap part of `benchmarks/cpu/simulated_diagnoses.py`: services that are simulated request by request."""

from __future__ import annotations

import pytest
from tests.support.combinations import tries
from tests.support.production import FAULTS, PAIRS, Fault
from tests.support.simulated_service import Server
from tests.support.simulated_watch import observe

pytestmark = pytest.mark.engine  # numba

PLANTED = {fault.diagnosis: fault for fault in FAULTS if fault.simulated is not None}


def name(*faults: Fault, seed: int = 1, **options: object) -> list[str]:
    found = observe(faults=faults, seed=seed, **options).diagnose()  # type: ignore[arg-type]
    return [each.code for each in found if not each.follows_from]


@pytest.mark.parametrize("fault", PLANTED.values(), ids=lambda fault: fault.diagnosis)
def test_what_is_planted_is_named_first(fault: Fault) -> None:
    assert name(fault)[0] in {fault.diagnosis, *fault.also}


@pytest.mark.parametrize("pair", PAIRS[:3], ids="+".join)
def test_two_faults_are_both_in_the_top_three(pair: tuple[str, str]) -> None:
    service = Server(rate=10.0)  # that both together do not overload
    assert set(pair) <= set(name(*(PLANTED[code] for code in pair), service=service)[:3])


@pytest.mark.parametrize("rate", [10 / 60, 1.0, 14.0])
def test_nothing_is_said_of_a_healthy_service(rate: float) -> None:
    for seed in range(tries(3)):
        assert name(seed=seed, service=Server(rate=rate)) in ([], ["no-traffic"])


def test_without_a_probe_the_traffic_is_not_told_from_the_drafter() -> None:
    for code in ("traffic-changed", "drafter-changed", "lora-changed"):
        assert name(PLANTED[code], with_probe=False)[0] == "acceptance-fell"
