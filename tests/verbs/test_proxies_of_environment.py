"""Downloads go through the proxy of the environment, except for hosts of NO_PROXY; servers that you name never do."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.support.production import SPEC
from tests.support.watched import serving_counters

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
    plain = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
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


def test_a_server_that_you_name_is_never_asked_through_a_proxy(tmp_path: Path) -> None:
    with listening() as (proxy, asked), serving_counters(SPEC) as (url,):
        done = run(tmp_path, "watch", url, "--once", "--interval", "0.2", HTTP_PROXY=proxy, ALL_PROXY=proxy)
    assert (done.returncode, asked) == (0, [])
