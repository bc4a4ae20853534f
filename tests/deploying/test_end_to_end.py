"""A canary whose drafter goes wrong is rolled back, with real parts and under load: no request is lost.

The embedded server speculates beside its plain twin, behind HAProxy; Prometheus asks what the rendered analysis asks,
Alertmanager tells, and what is told drains the canary. `make e2e` unpacks the programs and names their folder.
"""

import csv
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.support.adopted import SPEED
from tests.support.shares import is_share

from draftwise.cli import main
from draftwise.core import Device, Setup, SpecConfig
from draftwise.deploying import RunEvidence, deploy, make_order

pytestmark = pytest.mark.engine

BUNDLE = Path(__file__).parents[2] / "bundle"
TOOLS = Path(os.environ.get("DRAFTWISE_TOOLS") or "no-tools") / "service" / "root"
PROGRAMS = {name: TOOLS / "usr" / name for name in ("bin/prometheus", "bin/prometheus-alertmanager", "sbin/haproxy")}
NOISE = 0.15
"""Standard deviation of the factors on the drafter's weights: about a seventh of its tokens per draft is lost."""
MARGIN = 0.92
"""Break-even of tokens per step over what was measured: a damaged drafter loses an eighth of them; the answers to its
probe, which are longer and better drafted, are in its counters too."""
NUM_PROMPTS, NUM_TOKENS, STREAMS = 32, 16, 4
PATIENCE_S = 900.0
"""Far beyond what a step takes on two cores; it bounds a failure, and no success waits for it."""


def await_that(is_so: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := is_so()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.2)
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def answers(url: str) -> bool:
    try:
        return bool(get(url)) or True
    except OSError:
        return False


@dataclass
class Stage:
    """The programs of one run; they end with it."""

    folder: Path
    stack: ExitStack
    ports: Mapping[str, int] = field(
        default_factory=lambda: {
            name: free_port() for name in ("spec", "wrong", "plain", "haproxy", "prometheus", "alertmanager", "hook")
        }
    )
    told: list[str] = field(default_factory=list)
    """Alerts that arrived."""

    def url(self, name: str, path: str = "") -> str:
        return f"http://127.0.0.1:{self.ports[name]}{path}"

    def start(self, name: str, *words: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen:
        log = self.stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            list(map(str, words)), cwd=self.folder, stdout=log, stderr=log, env={**os.environ, **(env or {})}
        )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def serve(self, name: str, spec: Mapping[str, Any] | None) -> subprocess.Popen:
        words = [sys.executable, "-m", "draftwise", "serve", BUNDLE / "target", "--served-model-name", "target"]
        config = [] if spec is None else ["-sc", json.dumps(spec)]
        process = self.start(name, *words, "--port", str(self.ports[name]), *config)
        await_that(lambda: answers(self.url(name, "/health")) or process.poll(), f"the server {name}")
        assert process.poll() is None, (self.folder / f"{name}.log").read_text()
        return process

    def balance(self) -> None:
        servers = "".join(
            f"    server {name} 127.0.0.1:{self.ports[name]} weight {weight} check inter 500ms\n"
            for name, weight in (("spec", 0), ("wrong", 0), ("plain", 90))
        )
        (self.folder / "haproxy.cfg").write_text(
            f"global\n    stats socket {self.folder}/haproxy.sock level admin\n"
            "defaults\n    mode http\n    timeout client 60s\n    timeout connect 2s\n    timeout server 60s\n"
            f"frontend entry\n    bind 127.0.0.1:{self.ports['haproxy']}\n    default_backend llm\n"
            f"backend llm\n    balance roundrobin\n    http-response set-header x-server %s\n{servers}"
        )
        libraries = {"LD_LIBRARY_PATH": str(next((TOOLS / "usr/lib").glob("*-linux-gnu")))}
        self.start("haproxy", PROGRAMS["sbin/haproxy"], "-db", "-f", "haproxy.cfg", env=libraries)
        await_that(lambda: answers(self.url("haproxy", "/health")), "HAProxy")

    def tell_proxy(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self.folder / "haproxy.sock"))
            line.sendall(f"{command}\n".encode())
            return line.recv(1 << 16).decode()

    def count_given(self) -> dict[str, int]:
        """Return the requests that the proxy has given to each server so far."""
        rows = csv.DictReader(self.tell_proxy("show stat -1 4 -1").lstrip("# ").splitlines())
        return {row["svname"]: int(row["stot"]) for row in rows}

    def weigh(self, **weights: int) -> None:
        for name, weight in weights.items():
            self.tell_proxy(f"set server llm/{name} weight {weight}")

    def watch(self, expression: str) -> None:
        """Start what scrapes the servers, and what is told where the expression holds; that drains the canary."""
        known = re.search(r'service="([^"]+)",revision=~"(\w+)\|', expression)
        assert known, "the analysis selects by the labels that deploy puts on"
        own = {"service": known[1], "revision": known[2]}
        targets = [
            {"targets": [f"127.0.0.1:{self.ports[name]}"], "labels": {**own, "pool": name}}
            for name in ("spec", "wrong", "plain")
        ]
        rule = {"alert": "AnalysisFailed", "expr": expression, "for": "3s"}
        manager = {"static_configs": [{"targets": [f"127.0.0.1:{self.ports['alertmanager']}"]}]}
        files = {
            "rules.yml": {"groups": [{"name": "analysis", "interval": "1s", "rules": [rule]}]},
            "prometheus.yml": {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": ["rules.yml"],
                "alerting": {"alertmanagers": [manager]},
                "scrape_configs": [{"job_name": "vllm", "static_configs": targets}],
            },
            "alertmanager.yml": {
                "route": {"receiver": "hook", "group_wait": "1s", "group_interval": "5s"},
                "receivers": [{"name": "hook", "webhook_configs": [{"url": self.url("hook", "/")}]}],
            },
        }
        for name, value in files.items():
            (self.folder / name).write_text(yaml.safe_dump(value))
        for template in (TOOLS / "usr/share/prometheus/alertmanager").glob("*.tmpl"):
            shutil.copy(template, self.folder)
        self._listen()
        self.start(
            "alertmanager",
            PROGRAMS["bin/prometheus-alertmanager"],
            *("--config.file=alertmanager.yml", "--storage.path=alerts", "--cluster.listen-address="),
            f"--web.listen-address=127.0.0.1:{self.ports['alertmanager']}",
        )
        self.start(
            "prometheus",
            PROGRAMS["bin/prometheus"],
            *("--config.file=prometheus.yml", "--storage.tsdb.path=data"),
            f"--web.listen-address=127.0.0.1:{self.ports['prometheus']}",
        )
        await_that(lambda: answers(self.url("prometheus", "/-/ready")), "Prometheus")
        await_that(lambda: answers(self.url("alertmanager", "/-/ready")), "Alertmanager")

    def _listen(self) -> None:
        stage = self

        class Hook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if body["status"] == "firing":  # that it resolves says nothing: a drained pool has no data
                    stage.tell_proxy("set server llm/wrong state drain")
                    stage.told.append(body["alerts"][0]["labels"]["alertname"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        hook = ThreadingHTTPServer(("127.0.0.1", self.ports["hook"]), Hook)
        threading.Thread(target=hook.serve_forever, daemon=True).start()
        self.stack.callback(hook.shutdown)

    def ask(self, expression: str) -> float | None:
        row = json.loads(get(self.url("prometheus", f"/api/v1/query?query={quote(expression)}")))
        result = row["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    def count(self, name: str, sample: str) -> float:
        pattern = re.compile(rf"^vllm:{sample}_total(?:{{.*}})? (\S+)$", re.MULTILINE)
        return sum(map(float, pattern.findall(get(self.url(name, "/metrics")))))

    def measure(self, name: str, send: Callable[[], None]) -> float:
        """Return the tokens of a step while something is sent to a server."""
        before = [self.count(name, sample) for sample in ("generation_tokens", "spec_decode_num_accepted_tokens")]
        send()
        after = [self.count(name, sample) for sample in ("generation_tokens", "spec_decode_num_accepted_tokens")]
        generated, accepted = (b - a for a, b in zip(before, after, strict=True))
        return generated / (generated - accepted)


def read_prompts() -> list[str]:
    lines = (BUNDLE / "heldout" / "code.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines[:NUM_PROMPTS]]


def send(url: str, prompt: str) -> tuple[str, int]:
    """Return who answered a prompt, and with which status; 0 where nobody did."""
    body = {"model": "target", "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return answer.headers.get("x-server", ""), answer.status
    except urllib.error.HTTPError as error:
        return "", error.code
    except OSError:
        return "", 0


@dataclass
class Load:
    """Streams that send prompts, one after the other, until they are stopped."""

    url: str
    prompts: list[str] = field(default_factory=read_prompts)
    seen: Counter = field(default_factory=Counter)
    stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._run, args=(number,)) for number in range(STREAMS)]
        for thread in threads:
            thread.start()
        return threads

    def _run(self, number: int) -> None:
        while not self.stopped.is_set():
            number += 1
            self.seen[send(self.url, self.prompts[number % len(self.prompts)])] += 1

    def served(self, name: str) -> int:
        return self.seen[name, 200]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    for name, program in PROGRAMS.items():
        if not program.is_file():
            pytest.skip(f"DRAFTWISE_TOOLS names no folder with {name}: `make e2e` unpacks it")
    with ExitStack() as stack:
        yield Stage(tmp_path, stack)


def disturb(head: Path) -> None:
    """Damage a head without a trace in its config, as a wrong file or a faulty disk would."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(head / "model.safetensors")
    random = torch.Generator().manual_seed(0)
    noised = {
        name: (value.float() * (1 + NOISE * torch.randn(value.shape, generator=random))).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in weights.items()
    }
    save_file(noised, head / "model.safetensors", metadata={"format": "pt"})


def verify(stage: Stage, name: str, setup: Path, *more: str) -> Result:
    words = ["verify", stage.url(name), "--setup", str(setup), "--json", *more]
    return CliRunner().invoke(main, words, catch_exceptions=False)


def codes(result: Result) -> set[str]:
    """Return the codes of errors, but for the one that the embedded engine is no release of vLLM."""
    errors = [f for row in json.loads(result.stdout) for f in row["findings"] if f["severity"] == "error"]
    return {f["code"] for f in errors if not f["message"].startswith("The server runs release ")}


def read_steps(result: Result) -> str:
    said = " ".join(f["message"] for row in json.loads(result.stdout) for f in row["findings"])
    found = re.search(r"A step gave ([\d.]+) tokens", said)
    assert found, said
    return found[1]


def read_analysis(head: Path, measured: float, pool: str) -> tuple[str, float]:
    """Return the query of the rendered analysis, and the value under which it fails."""
    setup = Setup(
        target="target",
        engine="vllm",
        engine_version="0.26.0",
        device=Device(name="GPU", kind="cuda"),
        spec=SpecConfig(method="eagle3", model=str(head), num_speculative_tokens=3),
    )
    rule = replace(SPEED, value=MARGIN * measured, measured=measured)
    folder = deploy(
        make_order(setup, evidence=RunEvidence(run="e2e", rollback=(rule,), wanted_gain=0.01)), "kubernetes"
    )
    metric = yaml.safe_load(folder.files["observe/analysis.yaml"])["spec"]["metrics"][0]
    fails = re.search(r"result\[0\] < ([\d.]+)", metric["failureCondition"])
    assert fails, metric
    return metric["provider"]["prometheus"]["query"].replace("{{args.canary}}", pool), float(fails[1])


class _Quick(BaseHTTPRequestHandler):
    """Answers at once."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize(("weight", "holds"), [(10, True), (20, False), (5, False)])
def test_a_wrong_share_is_seen_in_what_the_proxy_gave(stage: Stage, weight: int, holds: bool) -> None:
    for name in ("spec", "wrong", "plain"):
        server = ThreadingHTTPServer(("127.0.0.1", stage.ports[name]), _Quick)
        stage.stack.callback(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    stage.balance()
    stage.weigh(spec=weight, plain=100 - weight)
    before = stage.count_given()
    for _ in range(100):
        get(stage.url("haproxy", "/v1/models"))
    given = {name: count - before[name] for name, count in stage.count_given().items()}
    assert sum(given.values()) == 100
    assert is_share(given["spec"], 100, percent=10) == holds


def test_a_canary_whose_drafter_goes_wrong_is_noticed_and_rolled_back(stage: Stage, tmp_path: Path) -> None:
    head = tmp_path / "eagle3"
    shutil.copytree(BUNDLE / "eagle3", head)
    spec = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    stage.serve("plain", None)
    right = stage.serve("spec", spec)
    setup = tmp_path / "setup.json"
    given = {"target": "target", "engine_version": "0.26.0", "speculative_config": spec, "args": {}}
    setup.write_text(json.dumps(given))

    # Before it has traffic: it is what was ordered, and its outputs are the plain server's.
    good = verify(stage, "spec", setup, "--against", stage.url("plain"))
    assert codes(good) == set(), good.stdout
    measured = stage.measure("spec", lambda: [send(stage.url("spec"), prompt) for prompt in read_prompts()] and None)
    (query, break_even), (wrong_query, _) = (read_analysis(head, measured, pool) for pool in ("spec", "wrong"))

    stage.balance()
    stage.watch(f"({wrong_query}) < {break_even}")
    load = Load(stage.url("haproxy"))
    threads = load.start()
    try:
        stage.weigh(spec=10)
        before = stage.count_given()
        await_that(lambda: stage.count_given()["spec"] >= before["spec"] + 8, "requests to the canary")
        after = stage.count_given()
        given = {name: after[name] - before[name] for name in after}
        assert is_share(given["spec"], sum(given.values()), percent=10), given
        stage.weigh(spec=100, plain=1)
        value = await_that(lambda: stage.ask(query), "enough requests for the analysis")
        assert value >= break_even

        # The next roll-out has another drafter under the same name.
        disturb(head)
        stage.serve("wrong", spec)
        bad = verify(stage, "wrong", setup, "--expected", read_steps(good))
        assert codes(bad) == {"fewer-tokens-per-step"}, bad.stdout

        # Had nobody asked, the analysis would have told.
        stage.weigh(wrong=100, spec=0)
        await_that(lambda: stage.told, "the alert")
        assert stage.told[0] == "AnalysisFailed"
        told = load.served("wrong"), load.served("plain")
        stage.weigh(plain=100)
        await_that(lambda: load.served("plain") >= told[1] + 20, "requests to the plain server")
        assert load.served("wrong") <= told[0] + 2 * STREAMS  # those that were on their way
        right.terminate()
        assert right.wait(60) is not None
        await_that(lambda: load.served("plain") >= told[1] + 40, "requests after the roll-back")
    finally:
        load.stopped.set()
        for thread in threads:
            thread.join()
    lost = {key: count for key, count in load.seen.items() if key[1] != 200}
    assert lost == {}
    assert sum(load.seen.values()) > 100
