"""`draftwise guard` behind a real HAProxy and with a real Prometheus: how soon a bad replica is out, and what is lost.

    python benchmarks/cpu/guard_drill.py --tools FOLDER --out benchmarks/cpu/results/guard_drill.json

FOLDER is what `catalogue/platform/service.sh` unpacks (`root/usr`). The replicas are small servers that count as vLLM
does. In turn: two guards at once, a page that is gone, a drafter that fails, `kill -9` of the guard, `--undo`, a hang.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from provenance import provenance, write

from draftwise.core import Baseline, ClosedLoop, Condition, Relation, Rollback, RollbackBasis
from draftwise.guarding.executors import parse_servers

BREAK_EVEN, HEALTHY, FAILED = 1.6, 0.9, 0.02
"""Tokens per step under which speculation loses, and tokens accepted a step of a healthy and a failed drafter."""
STREAMS, ANSWER_S, STEPS, EVERY_S = 4, 0.2, 20, 2.0
SETTLED_S, GONE_S, AT_MOST_S = 20.0, 40.0, 180.0


@dataclass
class Replica:
    """A server that answers after a while, and counts the steps and the accepted tokens of its answers."""

    accepts: float
    speculates: bool = True
    shows: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    began_s: float = field(default_factory=time.time)

    def answer(self) -> None:
        time.sleep(ANSWER_S)
        accepted = sum(random.random() < self.accepts for _ in range(STEPS)) if self.speculates else 0
        with self.lock:
            self.counts["generation_tokens_total"] += STEPS + accepted
            self.counts["request_generation_tokens_count"] += 1
            if self.speculates:
                self.counts["spec_decode_num_drafts_total"] += STEPS
                self.counts["spec_decode_num_draft_tokens_total"] += STEPS
                self.counts["spec_decode_num_accepted_tokens_total"] += accepted

    def page(self) -> str:
        names = ["generation_tokens_total", "request_generation_tokens_count"]
        if self.speculates:
            names += [f"spec_decode_num_{name}_total" for name in ("drafts", "draft_tokens", "accepted_tokens")]
        lines = [f'vllm:{name}{{engine="0",model_name="m"}} {self.counts[name]}' for name in names]
        lines.append(f'vllm:num_requests_running{{engine="0",model_name="m"}} {STREAMS}')
        return "\n".join([*lines, f"process_start_time_seconds {self.began_s}", ""])

    def serve(self, stack: ExitStack) -> int:
        replica = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                is_page = self.path == "/metrics"
                self._send(503 if is_page and not replica.shows else 200, replica.page() if is_page else "ok")

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                replica.answer()
                self._send(200, '{"choices": [{"text": "x"}]}')

            def _send(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # HAProxy resets connections it is done with
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        return int(server.server_address[1])


def wait_for(holds: Callable[[], object], what: str) -> float:
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > AT_MOST_S:
            raise SystemExit(f"{what}: not within {AT_MOST_S:.0f} s")
        time.sleep(0.2)
    return round(time.monotonic() - began, 1)


def answers(port: int, path: str = "/health") -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


class Drill:
    """The programs of one drill, and what becomes of its requests."""

    def __init__(self, tools: Path, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack, self.socket = folder, stack, folder / "haproxy.sock"
        self.replicas = {"good": Replica(HEALTHY), "bad": Replica(HEALTHY), "plain": Replica(0.0, speculates=False)}
        self.ports = {name: each.serve(stack) for name, each in self.replicas.items()}
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            self.front, self.prometheus = one.getsockname()[1], other.getsockname()[1]
        self.requests: Counter[str] = Counter()
        self.ended = threading.Event()
        rule = Rollback(
            workload="code", arm="spec", metric="tokens_per_step", relation=Relation.BELOW, value=BREAK_EVEN,
            for_s=3600, basis=RollbackBasis.BREAK_EVEN, condition=Condition(load=ClosedLoop(concurrency=STREAMS)),
        )  # fmt: skip
        baseline = Baseline(setup_sha256="0" * 64, arm="spec", rollback=(rule,), missing=("No run.",))
        (folder / "baseline.json").write_text(baseline.to_json())
        self._start_programs(tools)

    def _start_programs(self, tools: Path) -> None:
        servers = "".join(f"    server {name} 127.0.0.1:{port} weight 100\n" for name, port in self.ports.items())
        (self.folder / "haproxy.cfg").write_text(
            f"global\n    stats socket {self.folder}/haproxy.sock level admin\ndefaults\n    mode http\n"
            "    timeout client 60s\n    timeout connect 5s\n    timeout server 60s\n"
            f"frontend llm\n    bind 127.0.0.1:{self.front}\n    default_backend llm\n"
            f"backend llm\n    balance leastconn\n    http-response set-header x-server %s\n{servers}"
        )
        targets = [f"127.0.0.1:{port}" for port in self.ports.values()]
        scraped = {"job_name": "vllm", "static_configs": [{"targets": targets}]}
        config = {"global": {"scrape_interval": "2s"}, "scrape_configs": [scraped]}
        (self.folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        usr = tools / "root" / "usr"
        env = {"LD_LIBRARY_PATH": str(next((usr / "lib").glob("*-linux-gnu")))}
        self.start("haproxy", usr / "sbin/haproxy", "-db", "-f", "haproxy.cfg", env=env)
        address = f"--web.listen-address=127.0.0.1:{self.prometheus}"
        self.start("prometheus", usr / "bin/prometheus", "--config.file=prometheus.yml", address)
        wait_for(lambda: answers(self.front) and answers(self.prometheus, "/-/ready"), "HAProxy and Prometheus")

    def start(self, name: str, *words: object, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        log = self.stack.enter_context((self.folder / f"{name}.log").open("ab"))
        process = subprocess.Popen(
            list(map(str, words)), cwd=self.folder, stdout=log, stderr=log,
            env={**os.environ, "DRAFTWISE_CACHE_DIR": str(self.folder / "cache"), **(env or {})},
        )  # fmt: skip
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def guard(self, state: str = "guard.json") -> subprocess.Popen[bytes]:
        urls = {name: f"http://127.0.0.1:{port}" for name, port in self.ports.items()}
        return self.start(
            state, sys.executable, "-m", "draftwise", "guard", urls["good"], urls["bad"], "--plain", urls["plain"],
            "--baseline", "baseline.json", "--state", state, "--every", EVERY_S, "--min-spec", 1,
            "--act", f"haproxy={self.socket}",
            "--prometheus", f"http://127.0.0.1:{self.prometheus}", "--json",
        )  # fmt: skip

    def settle(self, state: str = "guard.json") -> None:
        """Wait until a guard has looked some more times."""
        log = self.folder / f"{state}.log"
        enough = log.read_text().count("\n{") + SETTLED_S / EVERY_S
        wait_for(lambda: log.read_text().count("\n{") > enough, "looks of the guard")

    def steps(self, state: str = "guard") -> list[dict[str, Any]]:
        path = self.folder / f"{state}.steps.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def is_out(self, name: str) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self.folder / "haproxy.sock"))
            line.sendall(b"show servers state\n")
            shown = b"".join(iter(lambda: line.recv(65536), b"")).decode()
        return next(each for each in parse_servers(shown) if each.name == name).is_out

    def load(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._send) for _ in range(STREAMS)]
        for thread in threads:
            thread.start()
        return threads

    def _send(self) -> None:
        while not self.ended.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.front, timeout=60)
            try:
                connection.request("POST", "/v1/completions", "{}", {"content-type": "application/json"})
                answer = connection.getresponse()
                whole = answer.status == 200 and json.loads(answer.read())["choices"][0]["text"] == "x"
                self.requests[(answer.getheader("x-server") or "") if whole else "lost"] += 1
            except (OSError, ValueError, LookupError, http.client.HTTPException):
                self.requests["lost"] += 1
            finally:
                connection.close()


def play(drill: Drill) -> dict[str, Any]:
    """Return what was seen, from the first request to the last."""
    seen: dict[str, Any] = {}
    guard = drill.guard()
    drill.settle()
    seen["steps_of_a_healthy_service"] = len(drill.steps())
    seen["second_guard_exits"] = drill.guard("second.json").wait(AT_MOST_S)
    drill.replicas["good"].shows = False
    time.sleep(GONE_S)
    seen["steps_while_a_page_is_gone"] = len(drill.steps())
    drill.replicas["good"].shows = True
    drill.settle()
    drill.replicas["bad"].accepts = FAILED
    seen["fault_to_out_s"] = wait_for(lambda: drill.is_out("bad"), "the failed replica is out")
    wait_for(lambda: drill.steps()[-1]["outcome"] == "done", "the step is recorded")
    guard.send_signal(signal.SIGKILL)
    guard.wait()
    before = len(drill.steps())
    guard = drill.guard()
    drill.settle()
    seen["out_after_kill"], seen["steps_after_kill"] = drill.is_out("bad"), len(drill.steps()) - before
    seen["others_out"] = [name for name in ("good", "plain") if drill.is_out(name)]
    guard.send_signal(signal.SIGINT)
    guard.wait(AT_MOST_S)
    undo = drill.start("undo", sys.executable, "-m", "draftwise", "guard", "--state", "guard.json", "--undo")
    seen["undo_exits"] = undo.wait(AT_MOST_S)
    seen["out_after_undo"] = drill.is_out("bad")
    served = drill.requests["bad"]
    wait_for(lambda: drill.requests["bad"] > served, "requests to the replica that is back")
    seen["steps"] = [f"{each['outcome']} {each['step']}" for each in drill.steps()]
    drill.replicas["bad"].accepts, seen["lost_before_the_hang"] = HEALTHY, drill.requests["lost"]
    drill.guard("hung.json")
    drill.settle("hung.json")
    drill.replicas["bad"].lock.acquire()  # no answer ends any more
    seen["hang_to_out_s"] = wait_for(lambda: drill.is_out("bad"), "the hung replica is out")
    seen["steps_after_the_hang"] = [f"{each['outcome']} {each['step']}" for each in drill.steps("hung")]
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with TemporaryDirectory() as name, ExitStack() as stack:
        drill = Drill(given.tools.resolve(), Path(name), stack)
        threads = drill.load()
        try:
            seen = play(drill)
        finally:
            drill.ended.set()
            for thread in threads:
                thread.join()
    result = {
        "what": "two guards, a page gone, a drafter that fails, kill -9, undo, a hang; HAProxy 2.6, Prometheus 2.42",
        "command": "python benchmarks/cpu/guard_drill.py --tools FOLDER",
        **provenance(),
        "load_average": round(os.getloadavg()[0], 1),
        **seen,
        "requests": sum(drill.requests.values()),
        "lost": drill.requests["lost"],
        "by_server": dict(drill.requests),
    }
    print(json.dumps(result, indent=1))
    write(result, given.out)


if __name__ == "__main__":
    main()
