"""The first load after a start beside the same load later: what a server still has to do once it says that it is ready.

    python benchmarks/h200/first_load.py --scale 8b 1.5b --out benchmarks/h200/results/first_load.json --commit COMMIT
    python benchmarks/h200/first_load.py --scale tiny --device cpu --out /tmp/first_load.json

`draftwise serve` starts twice with one folder of kernels: empty, then filled. Each time: seconds until `/health` says
ready and what they were spent on, then three loads of 192 requests, 64 at a time (512 tokens in, 128 out, random
prompts, streamed). With vLLM not beside it, the first load is held against the mean of the later two: output tokens/s
and the 99th percentile of the time to first token. No kernel may be compiled after the server is ready: the folder
tells, and so does the server's log. Weights are random, in the shapes of shapes.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from cases import CASES, spec_config
from http_streams import write_tokenizer
from shapes import SCALES, write_folders

from draftwise import __version__
from draftwise.engine.kernel_cache import count_kernels

GOALS = {"cold_ready_s": 20.0, "filled_ready_s": 8.0, "tokens_per_s_ratio": 0.95, "ttft_p99_ratio": 1.2}
_START_S = 150
_LOAD_S = 90
_COUNTED = re.compile(r"^vllm:generation_tokens_total\{[^}]*\} (\S+)$", re.MULTILINE)
_PHASE = re.compile(r"^(.+): (\d+\.\d) s$", re.MULTILINE)
_LATE = "was compiled while requests wait"
_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class Load(NamedTuple):
    """What is sent."""

    requests: int
    at_once: int
    prompt_tokens: int
    output_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


LOADS = {"cuda": Load(192, 64, 512, 128, 128, 8192, 4096), "cpu": Load(12, 4, 32, 16, 8, 256, 128)}


class Server:
    """`draftwise serve` on a folder of kernels, from its start to its end."""

    def __init__(
        self, target: Path, kernels: Path, load: Load, device: str, spec: dict[str, Any] | None, *, by_default: bool
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._log = kernels.with_name(f"{self.port}.log")
        command = [sys.executable, "-m", "draftwise", "serve", str(target), "--load-format", "dummy"]
        command += ["--device", device, "--dtype", "bfloat16", "--port", str(self.port), "--served-model-name", "m"]
        command += ["--no-enable-prefix-caching", *(() if by_default else ("--kernel-cache", str(kernels)))]
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            command += [f"--{name.replace('_', '-')}", str(getattr(load, name))]
        if device == "cuda":
            command += ["--gpu-memory-utilization", "0.8"]
        if spec:
            command += ["--speculative-config", json.dumps(spec)]
        self._began = time.perf_counter()
        with self._log.open("a") as log:
            environment = os.environ | {"TRITON_CACHE_DIR": str(kernels)}  # which --kernel-cache sets itself
            self._child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environment)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.terminate()
        try:
            self._child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def wait(self) -> float:
        """Return the seconds from the start of the process until `/health` says 200."""
        while time.perf_counter() - self._began < _START_S:
            if self._child.poll() is not None:
                raise RuntimeError(f"the server ended:\n{self.log()[-3000:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return time.perf_counter() - self._began
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.01)
        raise RuntimeError(f"not ready after {_START_S} s:\n{self.log()[-3000:]}")

    def log(self) -> str:
        """Return what the server wrote so far."""
        return self._log.read_text(errors="replace")

    def generated(self) -> int:
        """Return the output tokens that the server has counted."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            found = _COUNTED.search(answer.read().decode())
        assert found is not None, "/metrics has no vllm:generation_tokens_total"
        return int(float(found[1]))


class _Connection(asyncio.Protocol):
    """One request after the other on one connection; notes when the first and the last token of each came."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float, float]] = []
        self._end = b""
        self._start = self._first = self._last = 0.0
        self._done: asyncio.Future[None]
        self._transport: Any

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    async def send(self, body: bytes) -> None:
        """Send a request and return at the end of its answer."""
        self._done = asyncio.get_running_loop().create_future()
        self._end, self._first = b"", 0.0
        self._start = time.perf_counter()
        self._transport.write(_HEAD % len(body) + body)
        await self._done
        self.times.append((self._start, self._first, self._last))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._first and b"data: {" in data:
            self._first = now
        if b"data: {" in data:
            self._last = now
        self._end = (self._end + data)[-64:]
        if self._done.done():
            return
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            self._done.set_exception(RuntimeError(f"refused: {data[:300]!r}"))
        elif self._end.endswith(b"0\r\n\r\n"):
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if hasattr(self, "_done") and not self._done.done():
            self._done.set_exception(error or ConnectionError("closed before the answer's end"))


async def send_all(port: int, bodies: Sequence[bytes], at_once: int) -> list[tuple[float, float, float]]:
    """Send all requests, so many at a time; return when each began, had its first token and its last."""
    left, loop = list(reversed(bodies)), asyncio.get_running_loop()
    connections = [(await loop.create_connection(_Connection, "127.0.0.1", port))[1] for _ in range(at_once)]

    async def work(connection: _Connection) -> None:
        while left:
            await connection.send(left.pop())

    async with asyncio.timeout(_LOAD_S):
        await asyncio.gather(*map(work, connections))
    for connection in connections:
        connection._transport.close()
    return [each for connection in connections for each in connection.times]


def run_load(server: Server, load: Load, vocab: int, seed: int) -> dict[str, Any]:
    """Return what clients saw of a load."""
    rng = random.Random(seed)
    fixed = {"model": "m", "max_tokens": load.output_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    prompts = [[rng.randrange(3, vocab - 3) for _ in range(load.prompt_tokens)] for _ in range(load.requests)]
    bodies = [json.dumps(fixed | {"prompt": prompt}).encode() for prompt in prompts]
    before = server.generated()
    times = asyncio.run(send_all(server.port, bodies, load.at_once))
    tokens = server.generated() - before
    assert tokens == load.requests * load.output_tokens, f"{tokens} tokens were generated"
    span = max(last for _, _, last in times) - min(start for start, _, _ in times)
    ttft = sorted(1e3 * (first - start) for start, first, _ in times)
    tpot = sorted(1e3 * (last - first) / (load.output_tokens - 1) for _, first, last in times)
    return {
        "seconds": round(span, 3),
        "tokens_per_s": round(tokens / span, 1),
        "ttft_ms": _describe(ttft),
        "tpot_ms": _describe(tpot),
    }


def _describe(ascending: list[float]) -> dict[str, float]:
    place = min(len(ascending) - 1, int(0.99 * len(ascending)))
    found = {"mean": statistics.fmean(ascending), "p50": statistics.median(ascending), "p99": ascending[place]}
    return {name: round(value, 2) for name, value in found.items()}


def measure_start(name: str, server: Server, kernels: Path, load: Load, vocab: int, loads: int) -> dict[str, Any]:
    """Return the row of a start: until it is ready, and the loads after it."""
    ready_s = server.wait()
    phases = {phase: float(seconds) for phase, seconds in _PHASE.findall(server.log())}
    num_kernels, num_bytes = count_kernels(kernels)
    rows = [run_load(server, load, vocab, seed) for seed in range(1, loads + 1)]
    later = rows[1:]
    steady_rate = statistics.fmean(row["tokens_per_s"] for row in later)
    steady_p99 = statistics.fmean(row["ttft_ms"]["p99"] for row in later)
    log = server.log()
    return {
        "start": name,
        "ready_s": round(ready_s, 2),
        "phases_s": phases,
        "kernels_when_ready": num_kernels,
        "folder_mib": round(num_bytes / 2**20, 1),
        "compiled_after_ready": count_kernels(kernels)[0] - num_kernels,
        "named_in_the_log": [line[:200] for line in log.splitlines() if _LATE in line][:20],
        "log": [line[:200] for line in log.splitlines() if "compile ahead" in line or "WARNING" in line][:10],
        "tokens_per_s_ratio": round(rows[0]["tokens_per_s"] / steady_rate, 4),
        "ttft_p99_ratio": round(rows[0]["ttft_ms"]["p99"] / steady_p99, 4),
        "loads": rows,
    }


def judge(rows: Sequence[dict[str, Any]]) -> dict[str, bool]:
    """Return which goals the starts of a scale reach."""
    found = {}
    for row in rows:
        name = row["start"]
        found[f"{name}: ready in time"] = row["ready_s"] <= GOALS[f"{name}_ready_s"]
        found[f"{name}: tokens/s"] = row["tokens_per_s_ratio"] >= GOALS["tokens_per_s_ratio"]
        found[f"{name}: TTFT P99"] = row["ttft_p99_ratio"] <= GOALS["ttft_p99_ratio"]
        found[f"{name}: nothing compiled late"] = row["compiled_after_ready"] == 0 and not row["named_in_the_log"]
    return found


def about(args: argparse.Namespace) -> dict[str, Any]:
    """Return where and how the run takes place."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        gpu = "none"
    versions = {"draftwise": __version__}
    for package in ("torch", "triton", "numba"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "commit": args.commit,
        "gpu": gpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "case": args.case,
        "goals": GOALS,
    }


def main() -> None:
    """Measure each scale; what is known is on disk after every start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, nargs="+", default=["8b", "1.5b"])
    parser.add_argument("--case", choices=CASES, default="plain")
    parser.add_argument("--device", choices=LOADS, default="cuda")
    parser.add_argument("--by-default", action="store_true", help="no --kernel-cache: Triton keeps kernels as it does")
    parser.add_argument("--loads", type=int, default=3, help="after each start; at least 2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    load = LOADS[args.device]
    content: dict[str, Any] = {"about": about(args), "load": load._asdict(), "scales": {}}
    for scale_name in args.scale:
        scale = SCALES[scale_name]
        root = Path(tempfile.mkdtemp(prefix=f"first-load-{scale_name}-"))
        try:
            folders = write_folders(root, scale)
            write_tokenizer(folders.target, scale.target["vocab_size"])
            kernels, spec = root / "kernels", spec_config(CASES[args.case], folders)
            rows: list[dict[str, Any]] = []
            for name in ("cold", "filled"):
                kept = {"by_default": args.by_default}
                with Server(folders.target, kernels, load, args.device, spec, **kept) as server:
                    row = measure_start(name, server, kernels, load, scale.target["vocab_size"], max(2, args.loads))
                rows.append(row)
                content["scales"][scale_name] = {"starts": rows, "reached": judge(rows)}
                args.out.write_text(json.dumps(content, indent=1) + "\n")
                short = {key: value for key, value in row.items() if key != "loads"}
                print(scale_name, json.dumps(short), flush=True)
                for each in row["loads"]:
                    print(f"  {json.dumps(each)}", flush=True)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({name: each["reached"] for name, each in content["scales"].items()}, indent=1))


if __name__ == "__main__":
    main()
