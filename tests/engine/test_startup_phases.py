"""The phases of the start-up."""

import pytest

from draftwise import LLM
from draftwise.engine.startup_phases import TimedStartup


def test_phases_are_timed_in_order_and_add_up():
    ticks = iter([0.0, 2.0, 2.0, 5.0, 5.0, 6.0])
    startup = TimedStartup(clock=lambda: next(ticks))
    for name in ("load weights", "allocate KV cache", "load weights"):
        with startup.phase(name):
            pass
    assert list(startup.seconds.items()) == [("load weights", 3.0), ("allocate KV cache", 3.0)]


class Confirming(TimedStartup):
    """Keeps what it is confirming."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def began(self, name: str) -> None:
        self.names.append(f"{name} ...")

    def ended(self, name: str, seconds: float) -> None:
        self.names.append(name)


def test_a_phase_that_fails_is_not_told_as_done():
    startup = Confirming()
    with pytest.raises(RuntimeError), startup.phase("load weights"):
        raise RuntimeError
    assert (startup.seconds, startup.names) == ({}, ["load weights ..."])
    with startup.phase("load weights"):
        pass
    assert startup.names == ["load weights ...", "load weights ...", "load weights"]


def test_llm_keeps_the_seconds(tiny_target, capfd):
    llm = LLM(str(tiny_target), dtype="float32", device="cpu", max_model_len=64)
    assert llm.startup_s["load weights"] > 0
    assert capfd.readouterr() == ("", ""), "and says nothing"
