"""The stand-in engine of the HTTP benchmark keeps its own time, and the benchmark counts every token."""

import argparse
import time

from http_overhead import measure
from paced_engine import PacedEngine

from draftwise.engine.config import EngineConfig
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.step.sequence import Request


def test_the_device_idles_by_what_the_host_is_late(tiny_target):
    engine = PacedEngine(EngineConfig(model=str(tiny_target)), step_s=0.01, host_s=0.0)
    engine.add(Request(request_id="r", prompt_token_ids=[1], params=SamplingParams(max_tokens=10)))
    pending, deltas = engine.step(())
    assert deltas == [], "the first step is only launched"
    began = time.perf_counter()
    pending, deltas = engine.step(pending)
    assert len(deltas[0].token_ids) in (2, 3)
    before = engine.clock.idle_s
    time.sleep(0.05)
    engine.step(pending)
    left_alone_s = time.perf_counter() - began
    assert 0.03 < engine.clock.idle_s - before < left_alone_s, "of 50 ms or more it had a step to do for 10"


def test_a_row_has_both_ways(tiny_target):
    given = argparse.Namespace(model=str(tiny_target), streams=[2], step_ms=2.0, tokens=60, rounds=1)
    (row,) = measure(given, "process", 0.1)
    assert row["ratio"] == row["tokens_per_s"] / row["direct_tokens_per_s"]
    assert row["direct_tokens_per_s"] <= 2 * 3 / 0.002
    assert 0 <= row["idle_share"] < 1
