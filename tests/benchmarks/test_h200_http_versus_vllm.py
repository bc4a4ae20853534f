"""What clients see of two servers, and in which order these are loaded."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import http_versus_vllm
import pytest
from http_load import Answer, Load, Server, run_load, summarise
from http_versus_vllm import RESULT, Session, as_markdown

STREAMING = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["prompt"] in seen:
            return self.send_error(409)
        seen.append(asked["prompt"])
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        events = [{"choices": [{"text": "ab"}]}] * -(-asked["max_tokens"] // 2)
        for event in [*events, {"choices": [], "usage": {"completion_tokens": asked["max_tokens"] - MISSING}}]:
            self.chunk(f"data: {json.dumps(event)}\\n\\n")
        self.chunk("data: [DONE]\\n\\n")
        self.chunk("")

    def chunk(self, text):
        self.wfile.write(f"{len(text):x}\\r\\n{text}\\r\\n".encode())

    def log_message(self, *_):
        pass

seen = []
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""


def streaming(tmp_path: Path, *, missing: int = 0) -> Server:
    """Return a server of two tokens an event that takes no prompt twice and leaves out tokens."""
    return Server([sys.executable, "-c", STREAMING.replace("MISSING", str(missing))], tmp_path / "log")


def test_every_request_is_answered_in_full(tmp_path: Path) -> None:
    load = Load(requests=5, at_once=2, prompt_tokens=(4, 9), output_tokens=(2, 16), temperature=0.7, top_p=0.9)
    with streaming(tmp_path) as server:
        assert server.wait(60) > 0
        assert run_load(server.port, load, 1000, seed=1)
        with pytest.raises(RuntimeError, match=r"refused: b'HTTP/1\.1 409"):
            run_load(server.port, load, 1000, seed=1)
        assert run_load(server.port, load, 1000, seed=2), "another seed has other prompts"


def test_what_clients_saw() -> None:
    answers = [Answer(0.0, first=0.1, last=0.5, events=3, tokens=5, pause=0.3), Answer(1.0, 1.2, 2.0, 3, 5, 0.5)]
    row = summarise(answers)
    assert (row["seconds"], row["tokens_per_s"]) == (2.0, 5.0)
    assert row["ttft_ms"] == {"mean": 150.0, "p50": 150.0, "p99": 200.0}
    assert (row["tpot_ms"]["mean"], row["itl_ms"]) == (150.0, 300.0), "events carry several tokens"
    assert row["pause_ms"] == {"mean": 400.0, "p50": 400.0, "p99": 500.0}


def test_an_answer_that_lacks_tokens_is_no_row(tmp_path: Path) -> None:
    with streaming(tmp_path, missing=3) as server:
        server.wait(60)
        with pytest.raises(RuntimeError, match="an answer of 5 instead of 8 tokens"):
            run_load(server.port, Load(5, 2, (6, 6), (8, 8)), 1000, seed=1)


def test_a_server_that_ends_says_why(tmp_path: Path) -> None:
    with (
        Server([sys.executable, "-c", "raise SystemExit('no such card')"], tmp_path / "log") as server,
        pytest.raises(RuntimeError, match="no such card"),
    ):
        server.wait(60)


class Silent:
    """A server that is ready at once."""

    def __init__(self, command: list[str], log: Path, env: dict[str, str]) -> None:
        self.port, self.command = log.stem, command
        if env:
            Path(env["LOADED_MODELS"]).write_text('{"folder": "target"}\n')

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, timeout_s: float) -> float:
        return 1.0

    def version(self) -> str:
        return "1.0"

    def terminate(self) -> None:
        pass


def session(out: Path, **other: Any) -> Session:
    given = {"vllm_python": "python", "commit": "c", "seconds": 1000, "cases": ["plain"], "concurrency": [4, 8]}
    given |= {"repeats": 2, "times": 3, "first_requests": 12, "first_at_once": 4, "prompt_tokens": [64]}
    given |= {
        "output_tokens": [16],
        "temperature": 0.0,
        "top_p": 1.0,
        "batched_tokens": 256,
        "resume": None,
        "scale": "tiny-fp8",
        "dtype": "bfloat16",
    }
    given |= {"folders": out / "models", "device": "cpu", "acceptance": "synthetic", "out": out, "as_typed": None}
    return Session(argparse.Namespace(**(given | other)))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int, int]]:
    """Return the loads in order: server, requests, streams."""
    found: list[tuple[Any, int, int]] = []

    def answer(port: Any, load: Load, vocab: int, seed: int) -> dict[str, Any]:
        found.append((port, load.requests, load.at_once))
        times = {"mean": 1.0, "p50": 1.0, "p99": 2.0}
        return {"seconds": 1.0, "tokens_per_s": 10.0, "ttft_ms": times, "tpot_ms": times, "itl_ms": 1.0}

    monkeypatch.setattr(http_versus_vllm, "Server", Silent)
    monkeypatch.setattr(http_versus_vllm, "run_load", answer)
    return found


@pytest.mark.engine  # the models' tokenizer is written
def test_first_loads_come_first_and_rounds_alternate(tmp_path: Path, sent: list[tuple[Any, int, int]]) -> None:
    run = session(tmp_path)
    run.run()
    ours, vllm = "draftwise-plain", "vllm-plain"
    assert sent[:2] == [(ours, 12, 4), (vllm, 12, 4)]
    assert sent[2:4] == [(ours, 12, 4), (vllm, 12, 4)], "three requests a stream; the first load has warmed up"
    assert sent[4:8] == [(ours, 8, 8), (ours, 24, 8), (vllm, 8, 8), (vllm, 24, 8)]
    assert sent[8:] == [(vllm, 12, 4), (ours, 12, 4), (vllm, 24, 8), (ours, 24, 8)]
    for server in run.servers.values():
        words = " ".join(server.command)
        assert "--quantization fp8 --kv-cache-dtype fp8" in words
        assert "--max-num-seqs 8 " in words
    sent.clear()
    session(tmp_path, resume=tmp_path / RESULT, repeats=3).run()
    assert [each for each in sent if each[1] != each[2]] == [
        *[(ours, 12, 4), (vllm, 12, 4)],
        *[(ours, 12, 4), (vllm, 12, 4), (ours, 24, 8), (vllm, 24, 8)],
    ], "what is there is not measured again"
    result = json.loads((tmp_path / RESULT).read_text())
    assert len(result["rows"]) == 2 * 2 * 3
    assert len(result["first"]) == 2
    assert len(result["resumed"]) == 1
    assert result["engines"] == {
        "draftwise plain": {"version": "1.0", "ready_s": 1.0},
        "vllm plain": {"version": "1.0", "ready_s": 1.0, "loaded": [{"folder": "target"}]},
    }


def test_means_of_turns_are_compared() -> None:
    def row(engine: str, rate: float, mean: float, p99: float) -> dict[str, Any]:
        times = {"mean": mean, "p99": p99}
        found = {"engine": engine, "case": "plain", "concurrency": 64, "tokens_per_s": rate, "ttft_ms": times}
        return found | {"itl_ms": 8.0, "tpot_ms": times}

    rows = [row("draftwise", 900, 90, 1), row("draftwise", 1340, 110, 1), row("vllm", 1000, 90, 1)]
    first = [row("draftwise", 960, 1, 1300), row("vllm", 1000, 1, 1000)]
    about = {"gpu": "g", "date": "d", "commit": "c"}
    engines = {"draftwise plain": {"ready_s": 18.0}}
    table = as_markdown({"about": about, "engines": engines, "first": first, "rows": rows, "notes": []})
    assert "| plain | 960 | 1000 | **0.960** | 1300 | 1000 | 1.300 | 18.0 | - |" in table
    assert "| plain | 64 | 2/1 | 1120 | 1000 | **1.120** | 100 | 90 | 1.111 |" in table
