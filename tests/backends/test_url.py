"""A URL that is not what it should be is explained."""

import asyncio
import subprocess
import sys
from collections.abc import Callable

import httpx
import pytest

from draftwise.backends import ServerInfo, UrlBackend
from draftwise.backends.address import is_served_here
from draftwise.core import BackendError, Counters, InvalidSetup, ServerLoad


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "", "http://host:port", "http://[::1"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetup, match="is not an http"):
        UrlBackend("plain", url)


def talk(answer: httpx.Response) -> str:
    backend = UrlBackend("plain", "http://127.0.0.1:1")
    backend._open(httpx.MockTransport(lambda request: answer))
    with pytest.raises(BackendError) as caught:
        asyncio.run(backend.describe())
    return str(caught.value)


def test_a_dead_port_is_named() -> None:
    with pytest.raises(BackendError, match=r":1/v1/models does not answer"):
        asyncio.run(UrlBackend("plain", "http://127.0.0.1:1").start())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            httpx.Response(401),
            "wants an API key. Name the variable that holds it with --api-key-env, and",
        ),
        (httpx.Response(404), "answered 404 without a JSON object"),
        (httpx.Response(200, text="<html>"), "answered 200 without a JSON object"),
        (httpx.Response(200, json={"data": []}), "lists no model"),
        (httpx.Response(200, json={"data": ["x"]}), "lists no model"),
    ],
)
def test_a_server_of_another_kind_is_told_apart(answer: httpx.Response, words: str) -> None:
    assert words in talk(answer)


def test_what_a_server_does_not_tell_is_left_open() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        return httpx.Response(200 if request.url.path == "/version" else 404, text="<html>")

    async def ask() -> tuple[ServerInfo, Counters, ServerLoad]:
        backend = UrlBackend("plain", "http://127.0.0.1:1")
        backend._open(httpx.MockTransport(answer))
        return await backend.describe(), await backend.counters(), await backend.gauges()

    assert asyncio.run(ask()) == (ServerInfo(model="m"), Counters(), ServerLoad())


def test_the_key_is_sent_and_kept_out_of_what_is_shown() -> None:
    backend = UrlBackend("plain", "http://127.0.0.1:1/v1", headers={"Authorization": "Bearer secret"})
    backend._open()
    assert backend.client.headers["authorization"] == "Bearer secret"
    assert "secret" not in f"{backend.url}{backend.command}{vars(backend)['name']}"


def scrape(*answers: httpx.Response, **settings) -> Callable[[], list[Counters]]:
    """Return the work of reading the counters once for each answer of the page."""
    left = iter(answers)

    async def read() -> list[Counters]:
        backend = UrlBackend("plain", "http://127.0.0.1:1", **settings)
        backend._open(httpx.MockTransport(lambda request: next(left)))
        return [await backend.counters() for _ in answers]

    return lambda: asyncio.run(read())


COUNTED = httpx.Response(200, text="vllm:generation_tokens_total 7.0")
GONE = httpx.Response(503)


def test_counters_that_go_away_are_not_taken_for_zeros() -> None:
    assert [each.generation_tokens for each in scrape(GONE, COUNTED)()] == [None, 7]
    with pytest.raises(BackendError, match="answered 503 without counters of a known server"):
        scrape(COUNTED, GONE)()


def test_a_page_of_counters_that_is_named_must_hold_some() -> None:
    with pytest.raises(BackendError, match=r"http://127.0.0.1:2/metrics answered 503"):
        scrape(GONE, metrics_url="http://127.0.0.1:2/metrics")()


@pytest.mark.parametrize(
    ("page", "sent"),
    [
        ("http://gateway:80/other/metrics", {"x-team": "a", "host": "plain.example"}),
        ("http://pod:8000/metrics", {"x-pod": "b", "host": "pod:8000"}),
    ],
)
def test_secrets_of_a_gateway_do_not_go_to_another_origin(page: str, sent: dict[str, str]) -> None:
    seen: dict[str, str] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        seen.update(request.headers)
        return COUNTED

    async def read() -> None:
        headers = {"X-Team": "a", "Host": "plain.example"}
        backend = UrlBackend(
            "plain", "http://gateway", headers=headers, metrics_url=page, metrics_headers={"X-Pod": "b"}
        )
        backend._open(httpx.MockTransport(answer))
        await backend.counters()

    asyncio.run(read())
    assert {name: seen[name] for name in sent} == sent
    assert ("x-team" in seen) == ("x-team" in sent)


def test_vllm_in_development_mode_tells_its_config_and_its_gpus() -> None:
    about = {
        "vllm_config": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "model": None}},
        "system_env": {"nvidia_gpu_models": "GPU 0: NVIDIA H200\nGPU 1: NVIDIA H200"},
    }

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        return httpx.Response(200, json=about) if request.url.path == "/server_info" else httpx.Response(404)

    async def ask() -> ServerInfo:
        backend = UrlBackend("plain", "http://127.0.0.1:1")
        backend._open(httpx.MockTransport(answer))
        return await backend.describe()

    told = asyncio.run(ask())
    assert told.version == {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    assert told.hardware == "GPU 0: NVIDIA H200; GPU 1: NVIDIA H200"


LISTEN = """
import socket, sys
sock = socket.create_server(("127.0.0.1", 0))
print(sock.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="sockets of processes are read in /proc")
@pytest.mark.parametrize(("script", "here"), [("vllm", True), ("kubectl", False)])
def test_only_a_server_of_this_machine_is_here(script: str, here: bool, tmp_path) -> None:
    """A tunnel listens on this machine, too; that it leads to a server called vllm makes it none."""
    path = tmp_path / script
    path.write_text(LISTEN)
    command = [sys.executable, str(path), "port-forward", "svc/vllm"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        port = child.stdout.readline().strip()
        assert is_served_here(f"http://127.0.0.1:{port}") is here
        assert not is_served_here(f"http://10.1.2.3:{port}")
        child.communicate("")
