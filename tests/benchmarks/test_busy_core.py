"""The benchmark of decoding beside a busy process: what it makes of its readings, and that its company goes."""

import time

import pytest
from busy_core import Engine, company, ratio, summarize

from draftwise.engine.step.threads import StepThreads


def test_ratios_are_taken_round_by_round():
    assert ratio([100, 50, 60], [50, 50, 20]) == {"median": 2.0, "lower_quartile": 1.5, "upper_quartile": 2.5}
    assert ratio([3], [2]) == {"median": 1.5, "lower_quartile": 1.5, "upper_quartile": 1.5}


def test_a_summary_has_every_situation_beside_quiet_with_all_threads():
    readings = {
        "quiet": {"all threads": [200.0], "governed": [190.0]},
        "busy": {"all threads": [20.0], "governed": [120.0]},
    }
    summary = summarize(readings)
    assert summary["tokens_per_s"]["busy"] == {"all threads": 20.0, "governed": 120.0}
    assert summary["governed_to_all_threads"]["busy"]["median"] == 6.0
    assert summary["share_of_quiet_all_threads"]["busy"]["governed"]["median"] == 0.6


def test_company_ends_with_its_block(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with company(None) as nobody:
        assert nobody is None
    with company(1.0) as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_where_nothing_is_governed_it_says_so(tiny_target, monkeypatch):
    monkeypatch.setattr("draftwise.engine.build.make_threads", lambda device: StepThreads())
    with pytest.raises(SystemExit, match="Nothing is governed here"):
        Engine(str(tiny_target))
