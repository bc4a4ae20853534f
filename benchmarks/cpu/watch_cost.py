"""What watching costs: CPU time of this process for one look at 20 replicas, and for what follows from it.

    python benchmarks/cpu/watch_cost.py --out benchmarks/cpu/results/watch_cost.json

The replicas are 20 listeners of one other process that answer with a page as vLLM writes it (histograms and all), whose
counters grow from look to look. Connections are kept; the first look, which opens them, is reported apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from provenance import provenance, write
from tests.support.fake_server.metrics import FakeMetrics

from draftwise.core import ServerLoad
from draftwise.watching.diagnose import diagnose
from draftwise.watching.pages import open_pages
from draftwise.watching.watcher import Watcher

LIMIT_MS = 50.0


def serve(count: int) -> None:
    """Answer at as many ports, until killed; the first line of output is their list."""
    asyncio.run(_serve(count))


async def _serve(count: int) -> None:
    servers = [await asyncio.start_server(_answer, "127.0.0.1", 0) for _ in range(count)]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    await asyncio.Event().wait()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    metrics = FakeMetrics(model="meta-llama/Llama-3.1-8B-Instruct", max_model_len=131072, k=3)
    with suppress(asyncio.IncompleteReadError):  # the watcher has gone
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(_make_page(metrics))


def _make_page(metrics: FakeMetrics) -> bytes:
    """Return an answer with the counters of another thousand steps."""
    metrics.steps = [count + grown for count, grown in zip(metrics.steps, (500, 250, 120, 130), strict=True)]
    metrics.generation_tokens += 1880
    page = metrics.exposition(0, ServerLoad(running=8, waiting=0, kv_usage=0.4)).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page) + page


def measure(replicas: int, looks: int) -> dict[str, object]:
    """Return what looks cost, in milliseconds of CPU."""
    server = subprocess.Popen([sys.executable, __file__, "--serve", str(replicas)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        ports = json.loads(server.stdout.readline())
        return asyncio.run(_look([f"http://127.0.0.1:{port}" for port in ports], looks))
    finally:
        server.terminate()
        server.wait()


async def _look(urls: list[str], looks: int) -> dict[str, object]:
    watcher = Watcher(open_pages({"spec": urls}, {}))
    took: list[float] = []
    judged: list[float] = []
    for _ in range(looks + 1):
        began = time.process_time()
        sight = await watcher.look()
        seen = time.process_time()
        diagnose({"spec": sight.recent}) if sight.recent else ()
        took.append(1000 * (seen - began))
        judged.append(1000 * (time.process_time() - seen))
        await asyncio.sleep(0.05)
    watcher.close()
    assert not sight.findings
    return {
        "first_look_ms": round(took[0], 2),
        "look_ms": {"median": round(statistics.median(took[1:]), 2), "max": round(max(took[1:]), 2)},
        "diagnose_ms": {"median": round(statistics.median(judged[1:]), 2), "max": round(max(judged[2:]), 2)},
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=20)
    parser.add_argument("--looks", type=int, default=100)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    metrics = FakeMetrics(model="meta-llama/Llama-3.1-8B-Instruct", max_model_len=131072, k=3)
    result = {
        **provenance(),
        "replicas": given.replicas,
        "looks": given.looks,
        "page_bytes": len(metrics.exposition(0, ServerLoad())),
        "limit_ms": LIMIT_MS,
        **measure(given.replicas, given.looks),
    }
    print(json.dumps(result, indent=1))
    write(result, given.out)


if __name__ == "__main__":
    main()
