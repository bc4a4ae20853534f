"""Everything but load goes through the proxy of the environment and trusts its certificates; NO_PROXY excepts hosts."""

import json
import os
import select
import socket
import ssl
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest
from tests.support.production import SPEC
from tests.support.watched import serving_counters

from draftwise.machine.network import find_proxy

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2}


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """Run a server, or proxy, that answers everything with a config.json; give its URL and what it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps(CONFIG).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def run(folder: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    own = {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"}
    plain = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and name not in own
    }
    return subprocess.run(
        [sys.executable, "-m", "draftwise", *words], cwd=folder, env=plain | variables, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_the_hub_is_asked_through_the_proxy(variable: str, tmp_path: Path) -> None:
    with listening() as (proxy, asked):
        run(tmp_path, "check", "nobody/nothing", "--hub", HF_ENDPOINT="http://hub.invalid", **{variable: proxy})
    assert asked
    assert asked[0].startswith("http://hub.invalid/nobody/nothing/")


def test_hosts_of_no_proxy_are_asked_directly(tmp_path: Path) -> None:
    with listening() as (proxy, through), listening() as (hub, directly):
        run(tmp_path, "check", "nobody/nothing", "--hub", HF_ENDPOINT=hub, HTTP_PROXY=proxy, NO_PROXY="127.0.0.1")
    assert (through, directly[0].partition("/nothing")[0]) == ([], "/nobody")


def test_this_machines_own_servers_are_asked_directly(tmp_path: Path) -> None:
    with listening() as (proxy, asked), serving_counters(SPEC) as (url,):
        done = run(tmp_path, "watch", url, "--once", "--interval", "0.2", HTTP_PROXY=proxy, ALL_PROXY=proxy)
    assert (done.returncode, asked) == (0, [])


HOSTS = ("hub", "index", "llm", "prometheus")
LOGIN = f"Basic {b64encode(b'me:p@ss').decode()}"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate that signs itself, of which no system knows."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    names = ",".join(f"DNS:{host}.corp.test" for host in HOSTS)
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=corp.test"]
    try:
        made = subprocess.run(
            [*words, "-addext", f"subjectAltName={names}", "-keyout", "-"], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("openssl is not there to make a certificate")
    path.write_bytes(made.stdout)
    return path


class Site(BaseHTTPRequestHandler):
    """Everything that a company has inside: a hub, a package index, a server with counters, a Prometheus."""

    ticks = count(1)

    def do_GET(self) -> None:
        self.server.seen.append(f"{self.headers['host']}{self.path}")  # type: ignore[attr-defined]
        rows = [f"vllm:spec_decode_num_drafts_total {1000 * next(self.ticks)}", "vllm:generation_tokens_total 5", ""]
        pages = {"/metrics": "\n".join(rows), "/api": '{"status": "success", "data": {"result": []}}'}
        body = next((page for path, page in pages.items() if self.path.startswith(path)), json.dumps(CONFIG)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


class Gate(BaseHTTPRequestHandler):
    """A proxy with a password that opens tunnels to the site, whatever host is asked for."""

    def do_CONNECT(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        if self.headers["Proxy-Authorization"] != LOGIN:
            self.send_error(407, "Say who you are")
            return
        with socket.create_connection(self.server.site) as inside:  # type: ignore[attr-defined]
            self.send_response(200)
            self.end_headers()
            ends = {self.connection: inside, inside: self.connection}
            while True:
                for end in select.select(list(ends), [], [])[0]:
                    if not (data := end.recv(1 << 16)):
                        return
                    ends[end].sendall(data)

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_error(503)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def company(certificate: Path) -> Iterator[tuple[ThreadingHTTPServer, ThreadingHTTPServer]]:
    """Run the site over TLS and the proxy in front of it."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    site, gate = (ThreadingHTTPServer(("127.0.0.1", 0), each) for each in (Site, Gate))
    site.socket = tls.wrap_socket(site.socket, server_side=True, do_handshake_on_connect=False)
    site.seen, gate.asked, gate.site = [], [], site.server_address  # type: ignore[attr-defined]
    for each in (site, gate):
        threading.Thread(target=each.serve_forever, daemon=True).start()
    yield site, gate
    for each in (site, gate):
        each.shutdown()
        each.server_close()


CLIENTS = {
    "hub": (("check", "nobody/nothing", "--hub"), "hub", "/nobody/nothing/"),
    "facts": (("facts", "add", "vllm==0.9.9"), "index", "/simple/vllm/"),
    "fetch": (("fetch", "smollm2"), "index", "/simple/"),
    "watch": (("watch", "https://llm.corp.test", "--once", "--interval", "0.2"), "llm", "/metrics"),
    "prometheus": (("watch", "--prometheus", "https://prometheus.corp.test", "--once"), "prometheus", "/api/v1/query"),
    "guard": (
        ("guard", "https://llm.corp.test", "--once", "--state", "guard.json", "--every", "0.5"),
        "llm",
        "/metrics",
    ),
    "verify": (("verify", "https://llm.corp.test", "--setup", "setup.json"), "llm", "/v1/models"),
}
BUNDLES = dict(zip(CLIENTS, ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE") * 3, strict=False))


@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_goes_through_the_proxy_and_trusts_the_bundle(
    client: str, company: tuple[ThreadingHTTPServer, ThreadingHTTPServer], certificate: Path, tmp_path: Path
) -> None:
    site, gate = company
    words, host, path = CLIENTS[client]
    (tmp_path / "setup.json").write_text('{"target": "Qwen/Qwen3-8B", "engine_version": "0.33.0", "args": {}}')
    variables = {
        "HTTPS_PROXY": f"http://me:p%40ss@127.0.0.1:{gate.server_port}",
        "HF_ENDPOINT": "https://hub.corp.test",
        "PIP_INDEX_URL": "https://index.corp.test/simple",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_RETRIES": "0",
        "XDG_DATA_HOME": str(tmp_path),
    }
    done = run(tmp_path, *words, **variables, **{BUNDLES[client]: str(certificate)})
    assert set(gate.asked) == {f"{host}.corp.test:443"}, done.stderr  # type: ignore[attr-defined]
    assert any(each.startswith(f"{host}.corp.test{path}") for each in site.seen), (site.seen, done.stderr)  # type: ignore[attr-defined]
    assert "Traceback" not in done.stderr
    if client in ("hub", "watch"):
        seen = len(site.seen)  # type: ignore[attr-defined]
        done = run(tmp_path, *words, **variables)  # nobody vouches for the certificate
        assert (done.returncode in (1, 2, 3), len(site.seen)) == (True, seen)  # type: ignore[attr-defined]
        assert "certificate" in " ".join((done.stdout + done.stderr).lower().split())


def test_load_goes_directly(company: tuple[ThreadingHTTPServer, ThreadingHTTPServer], tmp_path: Path) -> None:
    _, gate = company
    proxy = f"http://127.0.0.1:{gate.server_port}"
    done = run(
        tmp_path, "decide", "--url", "http://llm.corp.test", "--candidate-url", "http://llm.corp.test:81",
        HTTP_PROXY=proxy, HTTPS_PROXY=proxy,
    )  # fmt: skip
    assert (done.returncode, gate.asked) == (3, [])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("variables", "code"),
    [
        ({"HTTPS_PROXY": "socks5://127.0.0.1:1"}, "proxy-not-usable"),
        ({"ALL_PROXY": "https://me:secret@127.0.0.1:1"}, "proxy-not-usable"),
        ({"HTTPS_PROXY": "http://127.0.0.1:port"}, "proxy-not-usable"),
        ({"SSL_CERT_FILE": "/no/such/file"}, "ca-bundle-unreadable"),
        ({"REQUESTS_CA_BUNDLE": __file__}, "ca-bundle-unreadable"),
    ],
    ids=str,
)
@pytest.mark.parametrize("client", ["hub", "watch"])
def test_what_cannot_be_used_is_a_finding(client: str, variables: dict[str, str], code: str, tmp_path: Path) -> None:
    done = run(tmp_path, *CLIENTS[client][0], "--json", HF_ENDPOINT="https://hub.corp.test", **variables)
    document = json.loads(done.stdout)
    assert code in json.dumps(document)
    assert done.returncode == 2
    assert "secret" not in done.stdout + done.stderr


def test_proxies_that_refuse_are_named(
    company: tuple[ThreadingHTTPServer, ThreadingHTTPServer], tmp_path: Path
) -> None:
    _, gate = company
    proxy = f"http://127.0.0.1:{gate.server_port}"
    done = run(tmp_path, *CLIENTS["watch"][0], HTTPS_PROXY=proxy, HTTP_PROXY=proxy)
    said = " ".join((done.stdout + done.stderr).split())
    assert (done.returncode, "the proxy answers" in said, "407" in said) == (3, True, True)
    run(tmp_path, "watch", "http://llm.corp.test", "--once", "--interval", "0.2", HTTPS_PROXY=proxy, HTTP_PROXY=proxy)
    assert gate.asked[-1] == "http://llm.corp.test/metrics"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("url", "excepted", "is_proxied"),
    [
        ("http://10.1.2.3:8000", "10.0.0.0/8", False),
        ("http://11.1.2.3:8000", "10.0.0.0/8", True),
        ("http://[fd00::1]:8000", "fd00::/8", False),
        ("http://llm.models.svc:8000", ".svc,.cluster.local", False),
        ("http://llm.models.svc.evil.test", ".svc", True),
        ("https://llm", "*", False),
        ("http://127.0.0.2:1", "", False),
        ("http://localhost", "", False),
        ("https://[::1]:1", "", False),
        ("https://notlocalhost", "/,x/y,10.0.0.0/99", True),
    ],
)
def test_excepted_hosts(url: str, excepted: str, is_proxied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ALL_PROXY", "proxy.corp.test:3128")
    monkeypatch.setenv("NO_PROXY", excepted)
    assert find_proxy(url) == ("http://proxy.corp.test:3128" if is_proxied else None)
