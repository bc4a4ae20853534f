"""Latencies are functions of raw clock readings, by vLLM's definitions."""

import pytest

from draftwise.core import Timing


def test_definitions() -> None:
    timing = Timing(sent=10.0, chunks=((10.5, 1), (10.75, 3), (11.5, 1)), finished=11.625)
    assert timing.num_tokens == 5
    assert timing.ttft_s == pytest.approx(0.5)
    assert timing.tpot_s == pytest.approx(1.0 / 4), "the first token is excluded"
    assert timing.itl_s == pytest.approx((0.25, 0.75))
    assert timing.e2e_s == pytest.approx(1.625)
    assert timing.tokens_per_s == pytest.approx(5 / 1.625)


def test_nothing_arrived() -> None:
    timing = Timing(sent=0.0, chunks=(), finished=1.0)
    assert timing.ttft_s is None
    assert timing.tpot_s is None
    assert timing.tokens_per_s is None
    assert timing.itl_s == ()
