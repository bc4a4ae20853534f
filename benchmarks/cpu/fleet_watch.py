"""What one `draftwise watch` over a fleet takes: 200 services of five replicas, recorded by a real Prometheus.

    python benchmarks/cpu/fleet_watch.py --tools FOLDER --out benchmarks/cpu/results/fleet_watch.json

FOLDER has `bin/prometheus` and `bin/promtool`, as Debian's package unpacks them below `usr`. Ten minutes of counters
are written as blocks, so that nothing is scraped meanwhile. On a busy machine, only processor time means something.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from provenance import provenance, write

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.production import BREAK_EVEN, PLAIN, SPEC, Server

SERVICES, SPEC_REPLICAS, STEP_S, STEPS = 200, 4, 60, 11
FALLEN = replace(SPEC, positions=(0.2, 0.06, 0.05))
BUCKETS = 20
"""Of each of three histograms that nobody asks for."""


def list_series(number: int) -> Iterator[tuple[str, Mapping[str, str], float, bool]]:
    """Yield name, labels, value or growth in a second, and whether it grows, of one service."""
    service = {"namespace": f"team-{number % 20}", "service": f"service-{number}", "revision": "0123456789abcdef"}
    spec = FALLEN if number % 10 == 0 else SPEC
    for replica in range(SPEC_REPLICAS + 1):
        server = spec if replica < SPEC_REPLICAS else PLAIN
        instance = f"10.{number // 256}.{number % 256}.{replica}:8000"
        own = {**service, "job": "vllm", "instance": instance, "pool": "spec" if server is spec else "plain"}
        engine = {**own, "engine": "0", "model_name": "meta-llama/Llama-3.1-8B-Instruct"}
        yield from _list_server(server, engine)
        yield "process_start_time_seconds", own, 1_700_000_000.0 + number + replica / 10, False
    constants = {"breakeven_tokens_per_step": BREAK_EVEN, "expected_tokens_per_step": 1.87, "configured_k": 3.0}
    for name, value in {**constants, "expected_coverage": 0.99}.items():
        yield f"draftwise:{name}", {each: service[each] for each in ("service", "revision")}, value, False


def _list_server(server: Server, labels: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, str], float, bool]]:
    for name, rate in server.count().items():
        sample, _, position = name.partition("{")
        yield f"vllm:{sample}", {**labels, **({"position": position.split('"')[1]} if position else {})}, rate, True
    for name, value in server.read_gauges().items():
        yield f"vllm:{name}", labels, value, False
    for histogram in ("e2e_request_latency", "inter_token_latency", "request_time_per_output_token"):
        for edge in range(BUCKETS):
            yield f"vllm:{histogram}_seconds_bucket", {**labels, "le": f"{edge + 1}.0"}, server.finished, True


def write_history(path: Path, now_s: int) -> int:
    """Write all series as OpenMetrics, and return how many there are."""
    rows = [row for number in range(SERVICES) for row in list_series(number)]
    rows.sort(key=lambda row: row[0])
    with path.open("w") as out:
        for name, labels, value, grows in rows:
            text = name + "{" + ",".join(f'{key}="{each}"' for key, each in labels.items()) + "}"
            for at_s in range(now_s - STEP_S * (STEPS - 1), now_s + 1, STEP_S):
                out.write(f"{text} {value * (at_s - now_s + 86_400) if grows else value} {at_s}\n")
        out.write("# EOF\n")
    return len(rows)


@contextmanager
def serving(tools: Path, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield the URL of a Prometheus over a folder of blocks."""
    (folder / "prometheus.yml").write_text("global: {scrape_interval: 1h}\n")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    words = ("--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([tools / "bin/prometheus", *words], cwd=folder, stdout=log, stderr=log)
        try:
            while process.poll() is None and not _is_ready(f"http://{address}/-/ready"):
                time.sleep(0.2)
            yield f"http://{address}", process
        finally:
            process.kill()
            process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def watch(url: str) -> dict[str, float]:
    """Return what one command took, and how many services it showed."""
    began = time.monotonic()
    words = [sys.executable, "-m", "draftwise", "watch", "--prometheus", url, "--once", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, env=os.environ | {"PYTHONDONTWRITEBYTECODE": ""})
    assert process.stdout is not None
    shown = json.loads(process.stdout.read())
    _, _, used = os.wait4(process.pid, 0)
    return {
        "wall_s": round(time.monotonic() - began, 2),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "peak_mb": round(used.ru_maxrss / 1024),
        "services": len(shown["services"]),
        "with_a_finding": sum(any(each["severity"] != "info" for each in row["findings"]) for row in shown["services"]),
    }


def _read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    tools = given.tools.resolve()
    with TemporaryDirectory() as name:
        folder = Path(name)
        count = write_history(folder / "history", int(time.time()))
        blocks = ("tsdb", "create-blocks-from", "openmetrics", "history", "data")
        subprocess.run([tools / "bin/promtool", *blocks], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with serving(tools, folder) as (url, prometheus):
            before = _read_cpu_s(prometheus.pid)
            runs: list[dict[str, Any]] = [watch(url) for _ in range(given.runs + 1)][1:]  # the first one compiles
            asked_s = (_read_cpu_s(prometheus.pid) - before) / (given.runs + 1)
    result = {
        "what": f"{SERVICES} services of {SPEC_REPLICAS + 1} replicas, {count} series; one command each",
        "command": f"python benchmarks/cpu/fleet_watch.py --tools FOLDER --runs {given.runs}",
        **provenance(),
        "load_average": round(os.getloadavg()[0], 1),
        "median": {key: statistics.median(run[key] for run in runs) for key in runs[0]},
        "prometheus_cpu_s_a_run": round(asked_s, 2),
        "runs": runs,
    }
    print(json.dumps(result, indent=1))
    write(result, given.out)


if __name__ == "__main__":
    main()
