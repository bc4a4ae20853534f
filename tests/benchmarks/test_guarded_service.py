"""The real run of the guard behind HAProxy: what it writes for its servers, and what it makes of what it saw."""

from __future__ import annotations

from guarded_service import BREAK_EVEN, median_of, write_baseline, write_proxy

from draftwise.core import Baseline
from draftwise.watching.yardstick import Yardstick


def test_the_disturbed_server_begins_outside_the_traffic(tmp_path):
    text = write_proxy(tmp_path, 8000, {"good": 8001, "bad": 8002, "plain": 8003}).read_text()
    servers = [line.split() for line in text.splitlines() if line.strip().startswith("server ")]
    assert [(line[1], line[-1] == "disabled") for line in servers] == [("good", False), ("bad", True), ("plain", False)]
    assert f"stats socket {tmp_path}/haproxy.sock level admin" in text


def test_the_guard_is_given_a_break_even(tmp_path):
    write_baseline(path := tmp_path / "baseline.json")
    baseline = Baseline.from_json(path.read_text(), where=str(path))
    assert Yardstick(baseline=baseline).break_evens == (BREAK_EVEN,)


def test_idle_windows_do_not_count():
    ticks = [{"replicas": [{"url": "a", "tokens_per_step": value}]} for value in (None, 2.0, 1.0, 2.2)]
    assert median_of(ticks, "a") == 2.0
    assert median_of(ticks, "b") is None
