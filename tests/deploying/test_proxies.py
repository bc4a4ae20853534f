"""Proxies keep from the pool that speculates what it must not get, share the rest, and survive the loss of a pool."""

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.adopted import IMAGES, ORDER, SETUP
from tests.support.shares import is_drawn_share, is_share

from draftwise.core import InvalidSetup, Setup, SpecConfig
from draftwise.deploying import TARGETS, deploy, make_order
from draftwise.deploying.api_server import validate_text
from draftwise.deploying.proxies import PROXIES, ProxyOptions
from draftwise.deploying.proxies.pool_policy import POOL_HEADER, bound_gain, find_policy, judge_split

LORA = replace(SETUP, args={"enable_lora": True, "served_model_name": ["llama", "chat"]})
TOOLS = replace(
    SETUP,
    spec=SpecConfig(method="ngram", num_speculative_tokens=5, options={"prompt_lookup_min": 2}),
    args={"enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
)
STRUCTURED = replace(SETUP, args={"structured_outputs_config": {"backend": "lm-format-enforcer"}})
SHORT_HEAD = replace(
    SETUP,
    spec=SpecConfig(method="eagle3", num_speculative_tokens=3, model="a/b-eagle3", options={"max_model_len": 2048}),
    env={"VLLM_USE_V2_MODEL_RUNNER": "0"},
)


def files_of(setup: Setup, kind: str, **wanted: Any) -> dict[str, str]:
    return dict(deploy(make_order(setup), "kubernetes", proxy=ProxyOptions(kind=kind, **wanted)).files)


def test_refused_parameters_are_those_of_the_release() -> None:
    assert set(find_policy(SETUP).parameters) == {"min_p", "logit_bias"}
    assert set(find_policy(replace(SETUP, engine_version="0.16.0")).parameters) == {"min_p", "logit_bias", "min_tokens"}
    # 0.13 answers them as if they were not there; what it answers without drafts is right.
    assert set(find_policy(replace(SETUP, engine_version="0.13.0")).parameters) == {
        "logit_bias", "min_tokens", "bad_words",
    }  # fmt: skip


def test_each_class_comes_from_what_check_says() -> None:
    policy = find_policy(SETUP)
    assert (policy.models, policy.tools, policy.structured) == ((), "", "")
    assert find_policy(LORA).models == ("llama", "chat")
    assert "malformed tool calls" in find_policy(TOOLS).tools
    assert "lm-format-enforcer" in find_policy(STRUCTURED).structured


@pytest.mark.parametrize(("release", "is_kept"), [("0.26.0", True), ("0.32.0", True), ("0.33.0", False)])
def test_structured_outputs_stay_away_from_ngram_gpu_until_its_masks_are_right(release: str, is_kept: bool) -> None:
    spec = SpecConfig(method="ngram_gpu", num_speculative_tokens=3)
    setup = replace(SETUP, spec=spec, engine_version=release, env={"VLLM_USE_V2_MODEL_RUNNER": "0"})
    assert ("each other's grammars" in find_policy(setup).structured) == is_kept


@pytest.mark.parametrize("to", ["compose", "systemd"])
def test_twins_that_take_each_others_place_are_no_two_pools(to: str) -> None:
    """Both listen on the same port of the host: a proxy in front of both needs to be told where they are."""
    with pytest.raises(InvalidSetup) as refused:
        deploy(make_order(SETUP), to, proxy=ProxyOptions(kind="haproxy"))
    assert [finding.code for finding in refused.value.findings] == ["pool-address"]
    files = deploy(make_order(SETUP), to, proxy=ProxyOptions(kind="haproxy", spec="a:8000", plain="b:8000")).files
    assert "server spec a:8000" in files["haproxy.cfg"]


def test_a_context_beyond_the_drafter_is_bounded_by_prompt_and_answer() -> None:
    policy = find_policy(SHORT_HEAD)
    assert policy.context == 2048 - 3
    assert (policy.longest_body, policy.longest_answer) == (3066, 1022)
    assert any("stops drafting for its whole batch" in line for line in policy.describe())
    assert find_policy(SETUP).longest_body is None


@pytest.mark.parametrize("kind", PROXIES)
def test_every_proxy_says_what_it_does_and_how_it_is_drained(kind: str) -> None:
    folder = deploy(replace(ORDER, setup=LORA), "kubernetes", proxy=ProxyOptions(kind=kind))
    memo, limits = folder.files["MEMO.md"], [each.code for each in folder.limits]
    text = folder.files[PROXIES[kind].file]
    assert all(f"#   {line}" in text for line in find_policy(LORA).describe())
    assert PROXIES[kind].start in memo
    assert ("proxy-sees-no-body" in limits) == (kind in ("httproute", "epp"))
    assert ("Drain the speculative pool" in memo) == (kind != "epp")
    assert ("proxy-has-no-share" in limits) == (kind == "epp")


def test_none_of_them_looks_at_load() -> None:
    for kind in PROXIES:
        text = files_of(SETUP, kind)[PROXIES[kind].file]
        assert not any(word in text for word in ("be_conn", "agent-check", "leastconn", "LEAST_REQUEST", "nbsrv"))


def test_a_route_has_the_share_as_weights_and_is_a_whole_object() -> None:
    text = files_of(SETUP, "httproute", share=25)["httproute.yaml"]
    assert list(validate_text(text, name="httproute.yaml")) == []
    marked, shared = yaml.safe_load(text)["spec"]["rules"]
    assert marked["matches"] == [{"headers": [{"name": POOL_HEADER, "value": "plain"}]}]
    names = [each["name"] for each in shared["backendRefs"]]
    assert names == [make_order(SETUP).name, f"{make_order(SETUP).name}-plain"]
    assert [each["weight"] for each in shared["backendRefs"]] == [25, 75]


def test_the_picker_has_a_profile_for_each_value_of_the_header() -> None:
    config = yaml.safe_load(files_of(SETUP, "epp")["endpoint-picker.yaml"])
    plugins = {each.get("name", each["type"]): each for each in config["plugins"]}
    profiles = {each["name"]: [one["pluginRef"] for one in each["plugins"]] for each in config["schedulingProfiles"]}
    assert set(profiles) == {"shared", "spec", "plain"}
    assert all(name in plugins for names in profiles.values() for name in names)
    assert plugins["header-profile-handler"]["parameters"] == {"headerName": POOL_HEADER, "defaultProfile": "shared"}
    for pool, side in (("spec", ORDER), ("plain", ORDER.without_speculation())):
        assert plugins[profiles[pool][0]]["parameters"]["matchLabels"].items() <= side.labels.items()


def test_where_the_platform_does_not_settle_it_the_addresses_are_asked_for() -> None:
    for to, target in TARGETS.items():
        order = make_order(SETUP, image=IMAGES.get(to, ""))
        if target.address:
            deploy(order, to, proxy=ProxyOptions(kind="haproxy"))
            continue
        with pytest.raises(InvalidSetup, match="--spec-address"):
            deploy(order, to, proxy=ProxyOptions(kind="haproxy"))
        files = deploy(order, to, proxy=ProxyOptions(kind="haproxy", spec="a:1", plain="b:2")).files
        assert "server spec a:1 " in files["haproxy.cfg"]


def test_a_split_by_class_is_offered_only_with_its_bound() -> None:
    assert bound_gain({"code": 1.4, "chat": 1.1}) == pytest.approx(0)  # one pool is best for both
    assert bound_gain({"code": 2.0, "chat": 0.7}) == pytest.approx((2 / 1.5) / max(1.0, 2 / (0.5 + 1 / 0.7)) - 1)
    (worth,) = judge_split({"code": 2.0, "chat": 0.7})
    assert "at most" in worth.message
    assert f"chat go to the plain pool with the header {POOL_HEADER}" in worth.fix
    (not_worth,) = judge_split({"code": 1.4, "chat": 0.98})
    assert "not worth it" in not_worth.message
    assert list(judge_split({"code": 1.4})) == []


# ---- with the programs themselves ----

CASES: list[tuple[dict[str, Any], str]] = [
    ({"model": "llama", "prompt": "x"}, "spec"),
    ({"model": "chat", "prompt": "x", "temperature": 1.0}, "spec"),
    ({"model": "llama", "min_p": 0.1}, "plain"),
    ({"model": "llama", "logit_bias": {"5": 1.0}}, "plain"),
    ({"model": "my-adapter", "prompt": "x"}, "plain"),
    ({"model": "llama", "prompt": 'say "min_p": 0.1 and {"logit_bias": {"1": 2}}'}, "spec"),
    ({"model": "llama", "max_tokens": 20}, "spec"),
    ({"model": "llama", "max_tokens": 1500}, "plain"),
    ({"model": "llama", "max_completion_tokens": 1500}, "plain"),
    ({"model": "llama", "prompt": "x" * 5000}, "plain"),
    ({"model": "llama", "response_format": {"type": "json_object"}}, "plain"),
    ({"model": "llama", "response_format": {"type": "text"}}, "spec"),
    ({"model": "llama", "structured_outputs": {"json": {}}}, "plain"),
    ({"model": "llama", "tools": [{"type": "function", "function": {"name": "f"}}]}, "plain"),
]


@dataclass
class Pool:
    """A server that says its name."""

    name: str
    port: int = 0
    asked: int = 0
    is_dead: bool = False
    server: ThreadingHTTPServer = field(init=False)

    def __post_init__(self) -> None:
        pool = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                pool.asked += 1
                self.answer()

            def do_GET(self) -> None:
                self.answer()

            def answer(self) -> None:
                if pool.is_dead:
                    self.close_connection = True  # of connections that others keep open
                    return
                self.send_response(200)
                self.send_header("content-length", str(len(pool.name)))
                self.end_headers()
                self.wfile.write(pool.name.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.is_dead = True
        self.server.shutdown()
        self.server.server_close()


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


def ask(port: int, body: dict[str, Any], **headers: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    with urllib.request.urlopen(request, timeout=20) as response:
        answer: str = response.read().decode()
        return answer


@dataclass
class Running:
    port: int
    socket: str
    admin: int
    spec: Pool
    plain: Pool


COMMANDS = {"haproxy": ["haproxy", "-db", "-f"], "envoy": ["envoy", "--base-id", "{id}", "--log-level", "off", "-c"]}


@pytest.fixture(params=COMMANDS)
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    kind = request.param
    if shutil.which(kind) is None:
        pytest.skip(f"{kind} is not installed")
    spec, plain = Pool("spec"), Pool("plain")
    found = Running(free_port(), str(tmp_path / "admin.sock"), free_port(), spec, plain)
    policy = replace(find_policy(LORA), context=2045, tools="They break.", structured="They fail.")
    from draftwise.deploying.proxies.pool_policy import Pools

    pools = Pools(name="llama", spec=f"127.0.0.1:{spec.port}", plain=f"127.0.0.1:{plain.port}", share=100)
    text = PROXIES[kind].render(policy, pools).replace("/run/haproxy/admin.sock", found.socket)
    text = text.replace("bind :8080", f"bind 127.0.0.1:{found.port}").replace("0.0.0.0", "127.0.0.1")
    text = text.replace("port_value: 8080", f"port_value: {found.port}")
    text = text.replace("port_value: 9901", f"port_value: {found.admin}")
    file = tmp_path / PROXIES[kind].file
    file.write_text(text)
    command = [word.format(id=found.port) for word in COMMANDS[kind]]
    process = subprocess.Popen([*command, str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: ask(found.port, {"model": "llama"}) == "spec")
        yield found
    finally:
        process.terminate()
        process.wait(timeout=120)
        for pool in (spec, plain):
            pool.stop()


def wait_until(holds: Any) -> None:
    """Wait for what comes sooner or later: a proxy that is up, a pool that is seen to be down."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if holds():
                return
        except OSError:
            pass
        time.sleep(0.1)
    pytest.fail("waited in vain")


def test_bodies_tell_where_requests_go(running: Running) -> None:
    went = [(body, ask(running.port, body)) for body, _ in CASES]
    assert [(body, pool) for (body, pool), (_, wanted) in zip(went, CASES, strict=True) if pool != wanted] == []
    assert ask(running.port, {"model": "llama"}, x_draftwise_pool="plain") == "plain"


def test_the_other_pool_answers_when_one_dies(running: Running) -> None:
    running.spec.stop()
    wait_until(lambda: ask(running.port, {"model": "llama"}) == "plain")
    assert [ask(running.port, {"model": "llama"}) for _ in range(20)] == ["plain"] * 20
    running.spec = Pool("spec", running.spec.port)
    wait_until(lambda: ask(running.port, {"model": "llama"}) == "spec")


@pytest.mark.parametrize("percent", [5, 15, 20, 50, 90])
def test_a_wrong_share_is_no_share(percent: int) -> None:
    """A canary of 10 % that gets another share, of as many requests as the tests of proxies send."""
    assert is_share(10, 100, percent=10)
    assert not is_share(percent, 100, percent=10)
    assert is_drawn_share(85, 800, percent=10)
    assert not is_drawn_share(8 * percent, 800, percent=10)


def test_shares_change_while_it_runs(running: Running, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["running"]

    def set_share(percent: int) -> None:
        told = PROXIES[kind].set_share(percent, "llama")
        if kind == "envoy":
            url = told.split("'")[1].replace(":9901", f":{running.admin}")
            urllib.request.urlopen(urllib.request.Request(url, b""), timeout=20).read()
        else:
            with socket.socket(socket.AF_UNIX) as admin:
                admin.connect(running.socket)
                admin.sendall(told.split('"')[1].encode() + b"\n")
                assert admin.recv(1000).strip() == b""

    set_share(25)
    wait_until(lambda: ask(running.port, {"model": "llama"}) == "plain")
    before = running.spec.asked
    answers = [ask(running.port, {"model": "llama"}) for _ in range(800)]
    holds = {"haproxy": is_share, "envoy": is_drawn_share}[kind]
    assert holds(answers.count("spec"), 800, percent=25)
    assert running.spec.asked - before == answers.count("spec")
    set_share(0)
    wait_until(lambda: {ask(running.port, {"model": "llama"}) for _ in range(20)} == {"plain"})


@pytest.mark.parametrize(("kind", "check"), [("haproxy", ["-c", "-f"]), ("envoy", ["--mode", "validate", "-c"])])
@pytest.mark.parametrize("setup", [SETUP, LORA, TOOLS, SHORT_HEAD], ids=range(4))
def test_the_program_takes_its_file(kind: str, check: list[str], setup: Setup, tmp_path: Path) -> None:
    if shutil.which(kind) is None:
        pytest.skip(f"{kind} is not installed")
    files = files_of(setup, kind, spec="127.0.0.1:8001", plain="127.0.0.1:8002")
    file = tmp_path / PROXIES[kind].file
    file.write_text(files[PROXIES[kind].file].replace("/run/haproxy/admin.sock", str(tmp_path / "a.sock")))
    done = subprocess.run([kind, *check, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
