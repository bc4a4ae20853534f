"""A bad drafter is rolled out behind a real HAProxy under load: how soon is it out of the traffic, what is lost?

    python benchmarks/cpu/guarded_service.py --out benchmarks/cpu/results/guarded_service.json

Three servers of the bundled model: with its drafter, with the drafter's weights disturbed, and without speculation.
HAProxy (Debian's, unpacked into the cache folder) sends traffic to the first and the last; then the second is put into
the traffic, as by a roll-out. `draftwise guard` looks every two seconds and has HAProxy's socket.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from provenance import provenance, write

from draftwise.core import Baseline, ClosedLoop, Condition, Relation, Rollback, RollbackBasis
from draftwise.guarding.executors.haproxy import parse_servers
from draftwise.machine.cache import cache_folder
from draftwise.workloads.loading import load_workloads

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "bundle"
SCRAPE_S = 2.0
BREAK_EVEN = 1.6
"""Tokens per step; given, not measured: the drafter reaches about 2.2 and the disturbed one about 1.1."""
NOISE = 1.0
STREAMS, TOKENS = 4, 16
BEFORE_S, AT_MOST_S, AFTER_S = 20.0, 90.0, 600.0


def unpack_haproxy() -> tuple[Path, Mapping[str, str]]:
    """Return the program and the environment that finds its libraries."""
    root = cache_folder() / "haproxy"
    program = root / "root" / "usr" / "sbin" / "haproxy"
    if not program.exists():
        root.mkdir(parents=True, exist_ok=True)
        unpack = ROOT / "ci" / "platform" / "unpack.sh"
        subprocess.run(["bash", unpack, root, "bookworm", "/var/lib/dpkg/status", "haproxy"], check=True)
    libraries = sorted({str(path.parent) for path in (root / "root").rglob("*.so*")})
    return program, {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


def disturb(out: Path) -> Path:
    """Write the bundled drafter with every matrix's elements times (1 + NOISE x normal), and return its folder."""
    import torch
    from safetensors.torch import load_file, save_file

    source = BUNDLE / "eagle3"
    out.mkdir()
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            (out / path.name).write_bytes(path.read_bytes())
    generator = torch.Generator().manual_seed(0)
    for path in source.glob("*.safetensors"):
        tensors = load_file(path)
        for name, each in tensors.items():
            if each.is_floating_point() and each.dim() == 2:
                noise = torch.randn(each.shape, generator=generator) * NOISE
                tensors[name] = (each.float() * (1 + noise)).to(each.dtype)
        save_file(tensors, out / path.name)
    return out


@contextmanager
def running(*words: object, **given: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([str(word) for word in words], stderr=subprocess.STDOUT, **given)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def serve(port: int, drafter: Path | None, log: Path) -> Any:
    words = [sys.executable, "-m", "draftwise", "serve", BUNDLE / "target", "--served-model-name", "target",
             "--host", "127.0.0.1", "--port", port]  # fmt: skip
    if drafter is not None:
        config = {"method": "eagle3", "model": str(drafter), "num_speculative_tokens": 3}
        words += ["--speculative-config", json.dumps(config)]
    return running(*words, stdout=log.open("wb"), env={**os.environ, "OMP_NUM_THREADS": "1"})


def wait_for(holds: Callable[[], bool], seconds: float, what: str) -> float:
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds:
            raise SystemExit(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.2)
    return time.monotonic() - began


def answers(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def write_proxy(folder: Path, front: int, ports: Mapping[str, int]) -> Path:
    servers = "\n".join(
        f"    server {name} 127.0.0.1:{port} check inter 500ms weight 100 {'disabled' if name == 'bad' else ''}"
        for name, port in ports.items()
    )
    path = folder / "haproxy.cfg"
    path.write_text(
        f"""global
    stats socket {folder}/haproxy.sock level admin
defaults
    mode http
    timeout client 120s
    timeout connect 2s
    timeout server 120s
    option redispatch
frontend llm
    bind 127.0.0.1:{front}
    default_backend llm
backend llm
    balance leastconn
    http-response set-header x-server %s
{servers}
"""
    )
    return path


def order(folder: Path, text: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(folder / "haproxy.sock"))
        connection.sendall(f"{text}\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


class Load:
    """Streams that send one request after the other through HAProxy, and what became of each."""

    def __init__(self, port: int) -> None:
        self._port, self._ends = port, threading.Event()
        self._prompts = [prompt.text for prompt in load_workloads("code", max_tokens=TOKENS)[0].prompts]
        self.rows: list[tuple[float, str, str]] = []
        self._threads = [threading.Thread(target=self._stream, args=(i,)) for i in range(STREAMS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _stream(self, number: int) -> None:
        while not self._ends.is_set():
            prompt = self._prompts[(len(self.rows) + 7 * number) % len(self._prompts)]
            body = json.dumps({"model": "target", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0})
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
            try:
                connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
                answer = connection.getresponse()
                whole = bool(json.loads(answer.read())["choices"][0]["text"]) and answer.status == 200
                self.rows.append((time.monotonic(), answer.getheader("x-server") or "", "whole" if whole else "lost"))
            except (OSError, ValueError, LookupError, http.client.HTTPException):
                self.rows.append((time.monotonic(), "", "lost"))
            finally:
                connection.close()


def write_baseline(path: Path) -> None:
    """Write a break-even, and nothing else that a run would know."""
    rule = Rollback(
        workload="code", arm="eagle3", metric="tokens_per_step", relation=Relation.BELOW, value=BREAK_EVEN, for_s=3600,
        basis=RollbackBasis.BREAK_EVEN, condition=Condition(load=ClosedLoop(concurrency=STREAMS), temperature=0.0),
    )  # fmt: skip
    path.write_text(Baseline(setup_sha256="0" * 64, arm="eagle3", rollback=(rule,), missing=("No run.",)).to_json())


def measure(folder: Path) -> dict[str, Any]:
    """Return what was seen of one roll-out."""
    program, environment = unpack_haproxy()
    ports = {"good": free_port(), "bad": free_port(), "plain": free_port()}
    drafters = {"good": BUNDLE / "eagle3", "bad": disturb(folder / "disturbed"), "plain": None}
    front, state = free_port(), folder / "guard.json"
    write_baseline(folder / "baseline.json")
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    with ExitStack() as stack:
        for name, port in ports.items():
            stack.enter_context(serve(port, drafters[name], folder / f"{name}.log"))
        for name, port in ports.items():
            wait_for(lambda port=port: answers(port), 180, f"the server {name} starts")
        config = write_proxy(folder, front, ports)
        proxy = (program, "-db", "-f", config)
        stack.enter_context(running(*proxy, env=environment, stdout=(folder / "haproxy.log").open("wb")))
        wait_for(lambda: answers(front), 20, "HAProxy starts")
        load = stack.enter_context(Load(front))
        words = (sys.executable, "-m", "draftwise", "guard", urls["good"], urls["bad"], "--plain", urls["plain"],
                 "--baseline", folder / "baseline.json", "--state", state, "--every", SCRAPE_S,
                 "--act", f"haproxy={folder}/haproxy.sock", "--min-spec", 1, "--json")  # fmt: skip
        guard = stack.enter_context(running(*words, stdout=(folder / "guard.log").open("wb")))
        time.sleep(BEFORE_S)
        order(folder, "enable server llm/bad")
        wait_for(lambda: not is_out(folder, "bad"), 10, "the disturbed server is put into the traffic")
        seconds = wait_for(lambda: is_out(folder, "bad"), AT_MOST_S, "the disturbed server is taken out")
        drained = time.monotonic()
        time.sleep(AFTER_S)
        flapped = not is_out(folder, "bad") or guard.poll() is not None
        others = {name: is_out(folder, name) for name in ("good", "plain")}
    steps = [json.loads(line) for line in state.with_suffix(".steps.jsonl").read_text().splitlines()]
    ticks = [json.loads(line) for line in (folder / "guard.log").read_text().splitlines() if line.startswith("{")]
    return {
        "fault_to_out_s": round(seconds, 1),
        "requests": len(load.rows),
        "lost": sum(outcome == "lost" for _, _, outcome in load.rows),
        "by_server": dict(Counter(server for _, server, _ in load.rows)),
        "after_it_was_out": dict(Counter(server for at, server, _ in load.rows if at > drained + 10)),
        "flapped": flapped,
        "others_taken_out": [name for name, out in others.items() if out],
        "tokens_per_step": {name: median_of(ticks, url) for name, url in urls.items()},
        "steps": [{**step, "replicas": [name for name in urls if urls[name] in step["replicas"]]} for step in steps],
    }


def median_of(ticks: Sequence[Mapping[str, Any]], url: str) -> float | None:
    """Return the tokens per step of a replica in the median window that has any."""
    seen = [each["tokens_per_step"] for tick in ticks for each in tick["replicas"] if each["url"] == url]
    known = [value for value in seen if value is not None]
    return round(statistics.median(known), 3) if known else None


def is_out(folder: Path, name: str) -> bool:
    return next(each for each in parse_servers(order(folder, "show servers state")) if each.name == name).is_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    folder = Path(mkdtemp(prefix="guarded-"))
    result = {
        "what": "a disturbed drafter is put into the traffic of a service behind HAProxy; scrapes every 2 s",
        "command": "python benchmarks/cpu/guarded_service.py",
        **provenance(),
        "break_even": BREAK_EVEN,
        "streams": STREAMS,
        **measure(folder),
    }
    print(json.dumps(result, indent=1))
    write(result, given.out)


if __name__ == "__main__":
    main()
