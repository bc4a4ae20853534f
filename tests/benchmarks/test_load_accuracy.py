"""load_accuracy.py: errors against a known truth, found through the files of each tool."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import load_accuracy
import pytest
from load_peers import PEERS, Job

TRUTH = [
    {"number": 1, "request_id": "warm", "prompt": 7, "arrived": 90.0, "started": 90.0, "chunks": [[90.05, 1]]},
    {
        "number": 2,
        "request_id": "measured-0",
        "prompt": 7,
        "arrived": 100.0,
        "started": 100.0,
        "chunks": [[100.05, 1], [100.09, 1], [100.09, 1], [100.11, 1]],
    },
]
"""The measured request: 50 ms to the first token, gaps of 40 (its second chunk was late), 0 and 20 ms, mean 20."""


def vllm(folder: Path) -> None:
    told = {"failed": 0, "ttfts": [0.052], "itls": [[0.041, 0.0005, 0.018]], "output_throughput": 5.0}
    (folder / "vllm.json").write_text(json.dumps(told))


def draftwise(folder: Path) -> None:
    chunks = [[at, 1] for at in (100.051, 100.092, 100.0925, 100.1105)]
    told = {"answers": [{"prompt": 7, "sent": 99.999, "chunks": chunks}], "tokens": 10, "seconds": 2.0}
    (folder / "draftwise.json").write_text(json.dumps(told))


def guidellm(folder: Path) -> None:
    def row(number: int, start: float) -> dict[str, Any]:
        return {
            "response_id": f"cmpl-{number}",
            "request_start_time": start,
            "request_end_time": start + 2,
            "output_tokens": 10,
            "time_to_first_token_ms": 52.0,
            "inter_token_latency_ms": 19.5,
        }

    rows = [row(2, 100.0), row(1, 90.0)]
    (folder / "guidellm.json").write_text(json.dumps({"benchmarks": [{"requests": {"successful": rows}}]}))


def aiperf(folder: Path) -> None:
    values = {
        "time_to_first_token": 52.0,
        "inter_token_latency": 19.5,
        "inter_chunk_latency": [41.0, 0.5, 18.0],
        "output_sequence_length": 10,
    }
    about = {"x_request_id": "measured-0", "request_start_ns": 0, "request_end_ns": 2_000_000_000}
    metrics = {name: {"value": value} for name, value in values.items()}
    lines = [{"metadata": {**about, "benchmark_phase": phase}, "metrics": metrics} for phase in ("warmup", "profiling")]
    (folder / "profile_export.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("name", "write"),
    [("vllm bench serve", vllm), ("draftwise", draftwise), ("guidellm", guidellm), ("aiperf", aiperf)],
)
def test_the_file_of_each_tool_gives_the_errors_that_are_in_it(name: str, write: Any, tmp_path: Path) -> None:
    """2 ms too much to the first token, 1 ms and 2 ms in the gaps; what was sent at once has no gap."""
    write(tmp_path)
    job = Job(url="", streams=1, requests=1, tokens=4, prompts=tmp_path, tokenizer="", folder=tmp_path, flood=False)
    readings, tokens_per_s = PEERS[name].read(job)
    row = load_accuracy.compare(readings, TRUTH)
    assert tokens_per_s == pytest.approx(5)
    assert row["ttft_error_ms"] == {"median": 2.0, "p99": 2.0, "bias": 2.0, "readings": 1}
    assert row["itl_error_ms"]["median"] == pytest.approx(0.5 if name in ("guidellm", "aiperf") else 1 / 6, abs=1e-3)
    if name == "guidellm":
        assert row["gap_error_ms"] is None
    else:
        assert row["gap_error_ms"] == {"median": 1.5, "p99": 2.0, "bias": -0.5, "readings": 2}
    assert row["requests_with_another_number_of_chunks"] == 0


def test_a_late_fake_is_told() -> None:
    assert load_accuracy.lateness(TRUTH[1:]) == pytest.approx([0, 0.02, 0, 0], abs=1e-9)


@pytest.mark.parametrize("name", sorted(PEERS))
def test_no_place_of_this_machine_is_in_what_is_recorded(name: str, tmp_path: Path) -> None:
    job = Job(
        url="http://127.0.0.1:7",
        streams=4,
        requests=8,
        tokens=4,
        prompts=tmp_path / "prompts.jsonl",
        tokenizer="/somewhere/target",
        folder=tmp_path,
    )
    shown = PEERS[name].run("true", job)
    assert str(tmp_path) not in shown
    assert "/somewhere" not in shown
    assert ":7" not in shown


def test_a_tool_that_fails_is_said_and_the_others_go_on(tmp_path: Path, monkeypatch, capsys) -> None:
    arguments = ["load_accuracy.py", "--streams", "--work", str(tmp_path), "--vllm", "false --"]
    monkeypatch.setattr(load_accuracy, "version", lambda name, command: "1")
    monkeypatch.setattr(load_accuracy, "CAPACITY_ROUNDS", 1)
    monkeypatch.setattr(load_accuracy, "CAPACITY_PARTS", load_accuracy.CAPACITY_PARTS[:1])
    monkeypatch.setattr(load_accuracy, "CAPACITY_TOKENS", 5)
    monkeypatch.setattr(sys, "argv", arguments)
    assert load_accuracy.main() == 1
    assert "| capacity, tokens/s |" in capsys.readouterr().out
    assert [path.parent.name for path in tmp_path.glob("*/row.json")] == ["draftwise-capacity-1"]
