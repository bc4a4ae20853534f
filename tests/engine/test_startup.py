"""The phases of the start-up."""

import logging

import pytest

from draftwise import LLM
from draftwise.engine.startup import LoggedStartup, TimedStartup


def test_phases_are_timed_in_order_and_add_up():
    ticks = iter([0.0, 2.0, 2.0, 5.0, 5.0, 6.0])
    startup = TimedStartup(clock=lambda: next(ticks))
    for name in ("load weights", "capture CUDA graphs", "load weights"):
        with startup.phase(name):
            pass
    assert list(startup.seconds.items()) == [("load weights", 3.0), ("capture CUDA graphs", 3.0)]


def test_a_phase_that_fails_is_not_told_as_done(caplog):
    startup = LoggedStartup()
    with caplog.at_level(logging.INFO), pytest.raises(RuntimeError), startup.phase("load weights"):
        raise RuntimeError
    assert (startup.seconds, caplog.text) == ({}, "")
    with caplog.at_level(logging.INFO), startup.phase("load weights"):
        pass
    assert "load weights: 0.0 s" in caplog.text


def test_llm_keeps_the_seconds(tiny_target, capfd):
    llm = LLM(str(tiny_target), dtype="float32", device="cpu", max_model_len=64)
    assert llm.startup_s["load weights"] > 0
    assert capfd.readouterr() == ("", ""), "and says nothing"
