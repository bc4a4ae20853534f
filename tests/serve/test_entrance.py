"""Which requests are answered at all: those of clients, not those of foreign web pages."""

import contextlib
import http.client
import socket
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_engine import FakeEngine
from tests.support.serving import serving

from draftwise.core import InvalidSetup
from draftwise.serve import connections
from draftwise.serve.entrance import AccessRules, check_origins
from draftwise.serve.http_server import ServerOptions, make_rules

BODY = '{"prompt": "a"}'
JSON_TYPE = "application/json"
OURS = [
    "localhost",
    "localhost:8000",
    "127.0.0.1:80",
    "127.9.9.9",
    "[::1]:8000",
    "[::1]",
    "LOCALHOST.",
    "a.localhost:1",
]
FOREIGN = [
    "evil.example",
    "evil.example:8000",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "10.0.0.1",
    "",
    "[::2]",
]


@pytest.mark.parametrize("host", OURS)
def test_hosts_of_this_machine(host):
    assert AccessRules().admits_host(host)


@pytest.mark.parametrize("host", FOREIGN)
def test_hosts_of_others(shared, host):
    assert not AccessRules().admits_host(host)
    answers = [shared.http.get(path, headers={"host": host}) for path in ("/metrics", "/version", "/v1/models")]
    assert {answer.status_code for answer in answers} <= {400, 403}


@given(st.text(st.characters(codec="latin-1"), max_size=20))
def test_no_other_name_is_this_machine(name):
    ours = {"localhost", "::1"}
    if AccessRules().admits_host(name):
        bare = name.rpartition(":")[0] if name.rpartition(":")[2].isdecimal() else name
        bare = bare.strip("[]").rstrip(".").lower()
        assert bare in ours or bare.startswith("127.") or bare.endswith(".localhost") or "::ffff:127." in bare


@pytest.mark.parametrize("media_type", [JSON_TYPE, "application/json; charset=utf-8", "Application/JSON"])
def test_json_is_read(shared, media_type):
    assert shared.http.post("/v1/completions", content=BODY, headers={"content-type": media_type}).status_code == 200


@pytest.mark.parametrize(
    "media_type",
    [None, "", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded", "application/jsonp"],
)
def test_what_a_page_may_send_without_asking_is_refused(shared, media_type):
    headers = {} if media_type is None else {"content-type": media_type}
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        answer = shared.http.post(path, content=BODY, headers=headers)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Content-Type")


def test_pages_are_refused_unless_they_are_named(checkpoint):
    with serving(FakeEngine(checkpoint), allowed_origins=("https://good.example",)) as server:

        def ask(origin, method="POST"):
            headers = {"origin": origin, "content-type": JSON_TYPE, "access-control-request-method": "POST"}
            return server.http.request(method, "/v1/completions", content=BODY, headers=headers)

        assert ask("https://good.example").status_code == 200
        assert ask("https://good.example").headers["access-control-allow-origin"] == "https://good.example"
        assert ask("https://good.example", "OPTIONS").status_code == 200
        for bad in ("https://evil.example", "null", "http://good.example", "https://good.example.evil"):
            assert ask(bad).status_code == 403
            assert ask(bad, "OPTIONS").status_code in (400, 403)
            assert "access-control-allow-origin" not in ask(bad).headers


def test_no_page_is_let_in_by_default(shared):
    answer = shared.http.get("/v1/models", headers={"origin": "http://localhost:8000"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "PermissionDeniedError")


def raw(server, sent):
    """Return what the server answers to bytes, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port), timeout=60) as client:
        client.sendall(sent)
        with contextlib.suppress(ConnectionError):
            return b"".join(iter(lambda: client.recv(65536), b""))
    return b""


def test_two_hosts_are_none(shared):
    head = b"GET /metrics HTTP/1.1\r\nConnection: close\r\n"
    assert raw(shared, head + b"Host: localhost\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert raw(shared, head + b"Host: localhost\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 40")


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("size", [70_000, 1_000_000])
def test_headers_are_bounded(shared, size, ends):
    head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: " + b"y" * size
    answer = raw(shared, head + (b"\r\n\r\n" if ends else b""))
    assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431", b"")


@pytest.mark.parametrize("sent", [b"", b"GET /health HTT", b"GET /health HTTP/1.1\r\nHost: localhost\r\n"])
def test_a_connection_without_a_request_is_closed(checkpoint, monkeypatch, sent):
    monkeypatch.setattr(connections, "_HEAD_S", 0.05)
    monkeypatch.setattr(connections, "_KEEP_ALIVE_S", 0.05)
    before = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" if sent else b""
    with serving(FakeEngine(checkpoint)) as server:
        assert raw(server, sent) == b""
        if sent:
            assert raw(server, before + sent).startswith(b"HTTP/1.1 200"), "also behind an earlier request"


@pytest.mark.parametrize(
    ("options", "host", "admitted"),
    [
        (ServerOptions(), "api.example", False),
        (ServerOptions(allowed_hosts=("API.example",)), "api.example:80", True),
        (ServerOptions(allowed_hosts=("*",)), "api.example", True),
        (ServerOptions(allow_remote=True), "api.example", True),
        (ServerOptions(allow_remote=True, allowed_hosts=("a.example",)), "b.example", False),
    ],
)
def test_hosts_of_the_options(options, host, admitted):
    assert make_rules(options).admits_host(host) is admitted


@pytest.mark.parametrize("origin", ["https://a.example/", "a.example", "https://", "https://a b"])
def test_an_origin_that_no_browser_sends_is_refused(origin):
    with pytest.raises(InvalidSetup, match="not a web origin"):
        check_origins(["https://a.example:8080", "*", origin])


@pytest.mark.parametrize("size", [2, 300_000, 3_000_000])
@pytest.mark.parametrize(
    ("method", "path", "media_type"),
    [
        ("PATCH", "/v1/completions", JSON_TYPE),
        ("POST", "/v1/completions", "text/plain"),
        ("POST", "/v1/completions", JSON_TYPE),
        ("POST", "/nowhere", JSON_TYPE),
        ("GET", "/health", JSON_TYPE),
    ],
)
def test_a_connection_that_closes_is_announced(shared, method, path, media_type, size):
    """Whatever is answered before the body has come: the next request is not sent into a reset."""
    parts = urlsplit(shared.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    for _ in range(3):
        connection.request(method, path, b"x" * size, {"content-type": media_type})
        answer = connection.getresponse()
        answer.read()
        if answer.getheader("connection") == "close":
            break
        connection.auto_open = 0  # it must still be open
    connection.close()
