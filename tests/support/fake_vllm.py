"""A pretend `vllm`: prints a log that a real one printed, then serves a fake engine, above processes like vLLM's.

Below the API server stands an engine that outlives it (as vLLM's does when the server is killed), in a session of its
own, and below that a worker that can be told to keep a core busy. `--fake-pids FILE` receives the three process ids.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # it runs as a script

from tests.support.fake_server import FakeEngine, FakeScript
from tests.support.fake_server.server import FakeServer

LOGS = Path(__file__).with_name("vllm_logs")
WORKER = "import time\nwhile {busy}: pass\ntime.sleep(60)"
ENGINE = (
    "import os, subprocess, sys, time\n"
    "worker = subprocess.Popen([sys.executable, '-c', {worker!r}])\n"
    "print(os.getpid(), worker.pid, flush=True)\n"
    "time.sleep(60)"
)


def main() -> None:
    """Do what the arguments say; flags of the real one are let pass."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("target")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--speculative-config", type=json.loads)
    parser.add_argument("--fake-log", default="cpu_0.32.0_ngram")
    parser.add_argument("--fake-fails", action="store_true", help="End after the log.")
    parser.add_argument("--fake-hangs", action="store_true", help="Stay after the log, without answering.")
    parser.add_argument("--fake-taken", type=Path, help="Find the port taken, so often as lines are missing in FILE.")
    parser.add_argument("--fake-pids", type=Path)
    parser.add_argument("--fake-quiet", action="store_true", help="Do not say when it is ready.")
    parser.add_argument("--fake-busy", action="store_true")
    given, _ = parser.parse_known_args()
    if given.fake_taken and given.fake_taken.read_text():
        given.fake_taken.write_text(given.fake_taken.read_text()[1:])
        given.fake_log, given.fake_fails = "port_taken", True
    show(given.fake_log)
    if given.fake_fails:
        sys.exit(1)
    if given.fake_hangs:
        time.sleep(60)
    if given.fake_pids:
        given.fake_pids.write_text(f"{os.getpid()} {start_engine(busy=given.fake_busy)}")
    asyncio.run(serve(given.port, given.speculative_config, quiet=given.fake_quiet))


def show(name: str) -> None:
    """Print a log, all but the line that says it is ready."""
    lines = (LOGS / f"{name}.txt").read_text().splitlines()
    print("\n".join(line for line in lines if "startup complete" not in line), flush=True)


def start_engine(*, busy: bool) -> str:
    """Return the process ids of an engine and its worker."""
    code = ENGINE.format(worker=WORKER.format(busy=busy))
    engine = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert engine.stdout is not None
    return engine.stdout.readline().decode().strip()


async def serve(port: int, spec: dict | None, *, quiet: bool) -> None:
    """Answer until ended."""
    k = 0 if spec is None else spec["num_speculative_tokens"]
    script = FakeScript(
        k=k, accepted=(k, 0), first_token_s=0.001, step_s=0.001, model="/models/target", version={"version": "0.32.0"}
    )
    FakeServer(FakeEngine(script), port)
    if not quiet:
        print("INFO:     Application startup complete.", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
