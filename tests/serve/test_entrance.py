"""Which requests are answered at all: those of clients, not those of foreign web pages."""

import asyncio
import contextlib
import http.client
import re
import socket
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_engine import FakeEngine
from tests.support.serving import serving

from draftwise.core import InvalidSetup
from draftwise.serve import app, connections
from draftwise.serve.entrance import AccessRules, check_names
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
    "localhost:",
    "[::1]:",
    "LocalHost.:8000",
    "[0:0:0:0:0:0:0:1]",
]
FOREIGN = [
    "evil.example",
    "evil.example:8000",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "10.0.0.1",
    "",
    "[::2]",
    "localhost@evil.example",
    "evil.example@localhost",
    "localhost:80:80",
    "localhost,evil.example",
    "localhost/evil.example",
    "localhost%00.evil.example",
    "0.0.0.0",
    "[::]",
    "2130706433",
    "0x7f.1",
    "]localhost[",
    "localhost..evil.example",
    "127.0.0.1:8000.evil.example",
    "[::1].evil.example",
    "[::1]evil.example:80",
    "*",
    ":8000",
]


@pytest.mark.parametrize("host", OURS)
def test_hosts_of_this_machine(host):
    assert AccessRules().admits_host(host)


@pytest.mark.parametrize("host", FOREIGN)
def test_hosts_of_others(shared, host):
    assert not AccessRules().admits_host(host)
    answers = [shared.http.get(path, headers={"host": host}) for path in ("/metrics", "/version", "/v1/models")]
    assert {answer.status_code for answer in answers} <= {400, 403}


@given(st.text(st.characters(codec="latin-1"), max_size=20) | st.text("localhst127.:[]0", max_size=14))
def test_no_other_name_is_this_machine(name):
    ours = r"(localhost|.*\.localhost|127\.[\d.]+|\[?[0:]+:0*1(%.*)?\]?|\[?.*:127\.[\d.]+\]?)\.?(:[0-9]*)?"
    assert not AccessRules().admits_host(name) or re.fullmatch(ours, name, re.IGNORECASE | re.DOTALL)


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


@pytest.mark.parametrize(("coding", "status"), [("gzip", 415), ("Deflate", 415), ("identity", 200), ("", 200)])
def test_a_compressed_body_is_refused_by_name(shared, coding, status):
    headers = {"content-type": JSON_TYPE, "content-encoding": coding}
    answer = shared.http.post("/v1/completions", content=BODY, headers=headers)
    assert answer.status_code == status
    assert status == 200 or "must not be compressed" in answer.json()["error"]["message"]


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


def connect(server):
    return socket.create_connection(("127.0.0.1", httpx.URL(server.url).port), timeout=60)


def raw(server, *sent, ends=False):
    """Return what the server answers to bytes, until it closes the connection; with `ends` nothing more is sent."""
    with connect(server) as client:
        for each in sent:
            client.sendall(each)
        if ends:
            client.shutdown(socket.SHUT_WR)
        return receive_all(client)


def receive_all(client):
    pieces = []
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


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
        (ServerOptions(allowed_hosts=("api.example:8000", "[fe80::1]:80")), "API.example.", True),
        (ServerOptions(allowed_hosts=("api.example:8000", "[fe80::1]:80")), "[fe80::1]", True),
        (ServerOptions(allowed_hosts=("fe80::1",)), "[fe80::1]:8000", True),
        (ServerOptions(allowed_hosts=("api.example",)), "x.api.example", False),
        (ServerOptions(allowed_hosts=("api.example",)), "api.example.evil", False),
        (ServerOptions(allow_remote=True), "api.example", True),
        (ServerOptions(allow_remote=True, allowed_hosts=("a.example",)), "b.example", False),
    ],
)
def test_hosts_of_the_options(options, host, admitted):
    assert make_rules(options).admits_host(host) is admitted


OF_NO_PAGE = [
    *("https://a.example/", "a.example", "https://", "https://a b", "https://A.example", "HTTPS://a.example"),
    *("https://a.example:443", "http://a.example:80", "https://me@a.example", "https://a.example:", "null", ""),
    *("https://*.example", "https://a.example?b", "https://mün.example", "https://a.example, https://b.example"),
]


@pytest.mark.parametrize("origin", OF_NO_PAGE)
def test_an_origin_that_no_browser_sends_is_refused(origin):
    usual = ("https://a.example:8080", "http://[::1]:8080", "http://a.example:443", "tauri://localhost", "*")
    check_names((), usual)
    with pytest.raises(InvalidSetup, match="not a web origin"):
        check_names((), [*usual, origin])


@pytest.mark.parametrize(
    "host", ["https://api.example", "*.example", "api.example/v1", "a b", "", "me@a.example", "mün.de"]
)
def test_a_name_that_no_client_sends_is_refused(host):
    usual = ("api.example", "API.example:80", "10.0.0.1", "[fe80::1]:8000", "fe80::1%eth0", "my_host", "*")
    check_names(usual, ())
    with pytest.raises(InvalidSetup, match="not a host name"):
        check_names([*usual, host], ())


TARGETS = [
    *(b"GET http://evil.example/metrics", b"GET http://[/metrics", b"GET [/", b"GET *", b"OPTIONS *", b"CONNECT a:1"),
    *(b"GET //metrics", b"GET /%6detrics", b"GET /metrics%00", b"GET /%ff", b"GET /a%3Fb", b"GET /..%2fmetrics"),
    *(b"GET /v1/models/%5B", b"TRACE /", b"PRI *", b"get /metrics", b"GET /metrics#a", b"GET ?a", b"GET http://a"),
]
ODD_HEADERS = [
    *(b"Host: [", b"Host: ", b"Host: localhost\r\nHost: evil.example", b"X-Forwarded-Host: evil.example"),
    *(b"Origin: null", b"Origin: ", b"Origin: http://localhost\r\nOrigin: http://localhost"),
    *(b"Content-Length: 1\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Content-Length: -1"),
    *(b"Content-Length: 1\r\nContent-Length: 2", b"Upgrade: websocket\r\nConnection: Upgrade", b"Expect: a"),
]


@pytest.mark.parametrize("target", TARGETS)
def test_odd_targets_get_an_answer_and_no_traceback(open_server, target, caplog):
    for head in (b"Host: localhost", b"Host: ["):
        answer = raw(open_server, target + b" HTTP/1.1\r\nConnection: close\r\n" + head + b"\r\n\r\n")
        assert re.match(rb"HTTP/1.1 [234]|$", answer)
    assert not caplog.records


@pytest.mark.parametrize("header", ODD_HEADERS)
@pytest.mark.parametrize("method", [b"GET /nowhere", b"POST /v1/completions", b"GET /v1/completions"])
def test_odd_headers_get_an_answer_and_no_traceback(open_server, method, header, caplog):
    for rest in (b"", b"0\r\n\r\n"):
        kind = b"Content-Type: application/json\r\nConnection: close\r\n" if b"Upgrade" not in header else b""
        answer = raw(open_server, method + b" HTTP/1.0\r\n" + kind + header + b"\r\n\r\n" + rest, ends=True)
        assert re.match(rb"HTTP/1.[01] 4|$", answer)
    assert not caplog.records


@pytest.fixture(scope="module")
def open_server(checkpoint):
    """One that takes any name, and no web page."""
    with serving(FakeEngine(checkpoint), allowed_hosts=None) as server:
        yield server


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"


def test_chunks_with_extensions_and_trailers_are_one_body(shared):
    chunks = b'5;a=b;c="d"\r\n{"pro\r\n00A;x\r\nmpt": "a"}\r\n0;last\r\nHost: evil.example\r\nX: y\r\n\r\n'
    answer = raw(shared, CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert answer.startswith(b"HTTP/1.1 200")
    for endless in (b"X: " + b"y" * 300_000, b"X: y\r\n" * 50_000):
        start = CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
        assert re.match(rb"HTTP/1.1 400|$", raw(shared, start, endless))
    broken = raw(shared, CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n" + b"zz\r\n{}\r\n0\r\n\r\n")
    assert re.match(rb"HTTP/1.1 400|$", broken)


def test_a_stream_over_http_1_0_has_no_chunks_and_ends_with_its_connection(shared):
    for stream in (False, True):
        body = b'{"prompt": "a", "stream": %s}' % str(stream).lower().encode()
        head = CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Content-Length: %d\r\n\r\n" % len(body)
        head, _, content = raw(shared, head + body).partition(b"\r\n\r\n")
        assert b" 200 " in head
        assert b"chunked" not in head.lower()
        assert content.startswith(b"data: {") == stream
        assert content.endswith(b"data: [DONE]\n\n" if stream else b"}")


def test_what_asks_for_another_protocol_is_answered_in_this_one(shared):
    """Java's client sends such headers with its first request."""
    head = b"Host: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    post = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 15\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with connect(shared) as client:
        client.sendall(post + head + b"\r\n" + BODY.encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(last)
        assert b"HTTP/1.1 200" in receive_all(client)


def test_a_body_that_comes_in_drops_is_given_up(checkpoint, monkeypatch):
    monkeypatch.setattr(app, "_PAUSE_S", 0.2)
    with serving(FakeEngine(checkpoint)) as server, connect(server) as client:
        client.sendall(CHUNKED + b"Content-Length: 1000000\r\n\r\n")
        client.settimeout(0.05)
        answer = b""
        while not answer:
            with contextlib.suppress(TimeoutError):
                client.sendall(b" ")
                answer = client.recv(100)
        assert answer.startswith(b"HTTP/1.1 408")


def test_a_client_that_reads_nothing_is_left(monkeypatch):
    flow = SimpleNamespace(pause_writing=lambda: None, resume_writing=lambda: None)

    async def run(*, reads):
        protocol, left = object.__new__(connections._StrictProtocol), asyncio.Event()
        protocol.flow = flow
        protocol.loop, protocol.transport = asyncio.get_running_loop(), SimpleNamespace(abort=left.set)
        protocol.pause_writing()
        if reads:
            protocol.resume_writing()
            assert protocol._stall.cancelled()
        else:
            await left.wait()

    monkeypatch.setattr(connections, "_STALL_S", 0.01)
    asyncio.run(run(reads=True))
    asyncio.run(run(reads=False))


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
