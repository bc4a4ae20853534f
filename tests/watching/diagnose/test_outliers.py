"""Engine, replica, pool, service: what is ill is named by the smallest of them, and the rest is judged without it."""

from dataclasses import replace

import pytest
from tests.support.made_windows import make_window
from tests.support.production import SPEC, Server

from draftwise.core import ServerLoad, Window
from draftwise.watching.diagnose.diagnose import diagnose

DEAD = replace(SPEC, positions=(0.0,) * 3)
SLOW = replace(SPEC, step_s=0.05)


def make(server: Server, number: int, *, ranks: bool) -> Window:
    window = make_window(server, instance="http://a" if ranks else f"http://{number}")
    return replace(window, engine=str(number) if ranks else "")


@pytest.mark.parametrize("ranks", [False, True], ids=["replicas", "data-parallel ranks"])
@pytest.mark.parametrize("ill", [DEAD, SLOW], ids=["accepts nothing", "slow"])
@pytest.mark.parametrize("of", [2, 3, 4])
def test_one_ill_engine_is_named_and_the_pool_is_not_blamed(ill: Server, of: int, ranks: bool) -> None:
    windows = [make(ill if number == 0 else SPEC, number, ranks=ranks) for number in range(of)]
    found = diagnose({"spec": windows})
    first = found[0]
    assert first.where == windows[0].instance
    assert ("engine 0" in first.message) == ranks
    assert not [each.code for each in found if not each.where.startswith("http")]


@pytest.mark.parametrize("of", [2, 3, 4])
def test_where_all_are_ill_none_is_accused(of: int) -> None:
    found = diagnose({"spec": [make(DEAD, number, ranks=False) for number in range(of)]})
    assert "replica-outlier" not in {each.code for each in found}
    assert found[0].where == "spec"


@pytest.mark.parametrize("load", [ServerLoad(running=16.0, waiting=0.0), ServerLoad(running=0.0, waiting=90.0)])
def test_a_hung_engine_is_the_first_finding(load: ServerLoad) -> None:
    idle = replace(SPEC, steps=0.0, finished=0.0, prompt_tokens=0.0)
    hung = replace(make_window(idle, instance="http://b"), load=load, duration_s=20.0)
    for windows in ([hung], [make(SPEC, 1, ranks=False), hung]):
        first = diagnose({"spec": windows})[0]
        assert (first.code, first.severity, first.where) == ("engine-hung", "error", "http://b")
    resting = replace(hung, load=ServerLoad(running=0.0, waiting=0.0))
    assert "engine-hung" not in {each.code for each in diagnose({"spec": [resting]})}
