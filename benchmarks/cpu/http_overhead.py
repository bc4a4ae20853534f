"""What HTTP costs a fast engine: tokens/s through `draftwise serve` against the same engine called directly.

    python benchmarks/cpu/http_overhead.py --out benchmarks/cpu/results/http_overhead.json

The engine (paced_engine.py) stands for one on a GPU: a step occupies the "device" for `--step-ms`, the host works
`--host-ms` on it, letting go of the GIL as often as torch calls do, and results are read one step behind, so that the
device idles only when a step is launched later than the one before it ends. Streams are chat completions with
server-sent events, read by this process. Beside the server as it is, with the engine in a process of its own, the
engine is also put into a thread of the server, to show what sharing the GIL would cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paced_engine import TOKENS_PER_STEP, PacedEngine, build
from provenance import provenance, write

from draftwise.engine.config import EngineConfig
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.step.sequence import Request
from draftwise.serve import server
from draftwise.serve.launch import start_thread

MODEL = "bundle/target"
PLACES = ("process", "thread")


def main() -> None:
    """Measure both ways and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL, help="Checkpoint whose tokenizer is used.")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--step-ms", type=float, default=6.0)
    parser.add_argument("--host-ms", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--tokens", type=int, default=500, help="A stream.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=PLACES, help=argparse.SUPPRESS)
    parser.add_argument("--clock", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.serve:
        serve(given)
        return
    rows = [row for host_ms in given.host_ms for place in PLACES for row in measure(given, place, host_ms)]
    print_table(rows)
    about = provenance() | {"load": os.getloadavg()[0], "step_ms": given.step_ms, "tokens": given.tokens}
    about |= {name: bool(find_spec(name)) for name in ("uvloop", "httptools")}
    write(about | {"rows": rows}, given.out)


def config_of(given: argparse.Namespace) -> EngineConfig:
    return EngineConfig(model=given.model, device="cpu", dtype="bfloat16", max_num_seqs=64, max_model_len=4096)


def run_direct(given: argparse.Namespace, host_ms: float, streams: int) -> float:
    """Return the engine's own tokens/s, called in a loop as `LLM` does."""
    engine = PacedEngine(config_of(given), given.step_ms / 1e3, host_ms / 1e3)
    for i in range(streams):
        params = SamplingParams(max_tokens=given.tokens)
        engine.add(Request(request_id=str(i), prompt_token_ids=[300] * 16, params=params))
    began, tokens, pending = 0.0, 0, ()
    while engine.has_work():
        pending, deltas = engine.step(pending)
        tokens += sum(len(delta.token_ids) for delta in deltas) if began else 0
        if deltas and not began:
            began = time.perf_counter()
    return tokens / (time.perf_counter() - began)


def serve(given: argparse.Namespace) -> None:
    """Serve a paced engine that writes its clock to a file."""
    if given.serve == "thread":
        server.start_process = start_thread
    make = partial(build, given.step_ms / 1e3, given.host_ms[0] / 1e3, given.clock)
    options = server.ServerOptions(port=0, served_model_name="m")
    server.serve(config_of(given), None, options, on_ready=lambda line: print(line, flush=True), build=make)


@dataclass
class Served:
    """The server's process."""

    pid: int
    port: int
    clock: Path

    def cpu_s(self) -> float:
        """Return the seconds of processor time that the process has used, its children left out."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(given: argparse.Namespace, place: str, host_ms: float, folder: Path) -> Iterator[Served]:
    """Start the server; end it when done."""
    clock = folder / "clock.json"
    times = ["--step-ms", str(given.step_ms), "--host-ms", str(host_ms)]
    command = [sys.executable, __file__, "--serve", place, "--clock", str(clock), "--model", given.model, *times]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    try:
        line = child.stdout.readline()
        yield Served(child.pid, int(line.partition("http://127.0.0.1:")[2].partition(";")[0]), clock)
    finally:
        child.terminate()
        child.wait(timeout=20)


async def read_stream(port: int, tokens: int) -> tuple[float, float, int]:
    """Return when the first and last tokens of one stream came, and how many events."""
    body = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": tokens, "stream": True, "temperature": 0}
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    first = last = 0.0
    events, seen = 0, b""
    while data := await reader.read(2**16):
        events += data.count(b'"delta"')
        last = time.perf_counter()
        first = first or (last if events > 1 else 0.0)  # the opening brings no token
        seen = seen[-200:] + data
    writer.close()
    assert b"[DONE]" in seen, seen
    return first, last, events


def run_http(given: argparse.Namespace, running: Served, streams: int) -> dict[str, float]:
    """Return what clients of the server see, and what the device did meanwhile."""

    async def run() -> list[tuple[float, float, int]]:
        return await asyncio.gather(*(read_stream(running.port, given.tokens) for _ in range(streams)))

    running.clock.unlink(missing_ok=True)
    cpu_s, began = running.cpu_s(), time.perf_counter()
    read = asyncio.run(run())
    first, last = min(each[0] for each in read), max(each[1] for each in read)
    clock = json.loads(running.clock.read_text())
    events = sum(each[2] for each in read)
    return {
        "tokens_per_s": streams * (given.tokens - statistics.mean(TOKENS_PER_STEP)) / (last - first),
        "events_per_s": events / (last - first),
        "cpu_us_per_event": (running.cpu_s() - cpu_s) / events * 1e6,
        "idle_share": clock["idle_s"] / (clock["idle_s"] + clock["busy_s"]),
        "latest_ms": clock["latest_s"] * 1e3,
        "first_ms": (first - began) * 1e3,
    }


def measure(given: argparse.Namespace, place: str, host_ms: float) -> list[dict[str, Any]]:
    """Return one row a number of streams: medians over the rounds, both ways in turns."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, served(given, place, host_ms, Path(folder)) as running:
        for streams in given.streams:
            turns = [
                (run_direct(given, host_ms, streams), run_http(given, running, streams)) for _ in range(given.rounds)
            ]
            row = {"engine": place, "host_ms": host_ms, "streams": streams}
            row |= {"ratio": statistics.median(http["tokens_per_s"] / direct for direct, http in turns)}
            row |= {"direct_tokens_per_s": statistics.median(direct for direct, _ in turns)}
            row |= {name: statistics.median(http[name] for _, http in turns) for name in turns[0][1]}
            rows.append(row)
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print a line a row."""
    heads = ("engine in", "host ms", "streams", "direct tok/s", "HTTP tok/s", "ratio", "events/s", "server us/event")
    heads += ("device idle", "latest ms", "first ms")
    print("  ".join(heads))
    for row in rows:
        cells = [row["engine"], f"{row['host_ms']:g}", str(row["streams"]), f"{row['direct_tokens_per_s']:.0f}"]
        cells += [f"{row['tokens_per_s']:.0f}", f"{row['ratio']:.3f}", f"{row['events_per_s']:.0f}"]
        cells += [f"{row['cpu_us_per_event']:.0f}", f"{row['idle_share']:.1%}"]
        cells += [f"{row['latest_ms']:.1f}", f"{row['first_ms']:.1f}"]
        print("  ".join(cell.rjust(len(head)) for head, cell in zip(heads, cells, strict=True)))


if __name__ == "__main__":
    main()
