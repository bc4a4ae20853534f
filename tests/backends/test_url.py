"""A URL that is not what it should be is explained."""

import asyncio

import httpx
import pytest

from draftwise.backends import ServerInfo, UrlBackend
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
        (httpx.Response(401), "wants an API key. Name the variable that holds it with --api-key-env."),
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
    backend = UrlBackend("plain", "http://127.0.0.1:1/v1", api_key="secret")
    backend._open()
    assert backend.client.headers["authorization"] == "Bearer secret"
    assert "secret" not in f"{backend.url}{backend.command}{vars(backend)['name']}"
