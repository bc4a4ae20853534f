"""The stand-in engine of the HTTP benchmark keeps its own time, and the benchmark counts every token."""

import argparse
import sys
import time
from pathlib import Path

CPU = Path(__file__).parents[2] / "benchmarks" / "cpu"
sys.path.insert(0, str(CPU))

from http_overhead import measure  # noqa: E402
from paced_engine import PacedEngine  # noqa: E402

from draftwise.engine.config import EngineConfig  # noqa: E402
from draftwise.engine.sampling.params import SamplingParams  # noqa: E402
from draftwise.engine.step.sequence import Request  # noqa: E402


def test_the_device_idles_by_what_the_host_is_late(tiny_target):
    engine = PacedEngine(EngineConfig(model=str(tiny_target)), step_s=0.01, host_s=0.0)
    engine.add(Request(request_id="r", prompt_token_ids=[1], params=SamplingParams(max_tokens=10)))
    pending, deltas = engine.step(())
    assert deltas == [], "the first step is only launched"
    pending, deltas = engine.step(pending)
    assert len(deltas[0].token_ids) in (2, 3)
    before = engine.clock.idle_s
    time.sleep(0.05)
    engine.step(pending)
    assert 0.03 < engine.clock.idle_s - before < 0.5, "it was left alone for 50 ms, 10 of them with a step to do"


def test_a_row_has_both_ways(tiny_target):
    given = argparse.Namespace(model=str(tiny_target), streams=[2], step_ms=2.0, tokens=60, rounds=1)
    (row,) = measure(given, "process", 0.1)
    assert 0.2 < row["ratio"] < 1.5
    assert row["direct_tokens_per_s"] <= 2 * 3 / 0.002
    assert 0 <= row["idle_share"] < 1
