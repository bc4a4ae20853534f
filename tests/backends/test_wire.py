"""Connections as they are in the world: kept, stale, broken, silent, cancelled; and the times of what they bring."""

import asyncio
import errno
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.support.clocks import skip_time

from draftwise.backends import BrokenStream, UrlBackend, wire
from draftwise.backends.wire import Wire
from draftwise.core import BackendError
from draftwise.machine.processes import raise_file_limit

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
Handler = Callable[["Visit"], Awaitable[None]]


class Visit:
    """One connection as the server sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader, self.writer, self.number = reader, writer, number

    async def request(self) -> bytes:
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        return head + await self.reader.readexactly(size)

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


@asynccontextmanager
async def serving(handler: Handler, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None):
    """Yield the port of a server whose every connection is handled so, and the list of its connections."""
    visits: list[Visit] = []
    tasks = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(Visit(reader, writer, len(visits)))
        tasks.append(asyncio.current_task())
        try:
            await handler(visits[-1])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, host, 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1], visits
    finally:
        server.close()
        for visit in visits:
            visit.writer.transport.abort()
        await asyncio.gather(*tasks)


def converse(handler: Handler, talk: Callable[[Wire, list[Visit]], Awaitable[None]], **settings: float) -> None:
    """Let a wire talk to a server."""

    async def run() -> None:
        async with serving(handler) as (port, visits):
            wire = Wire(f"http://127.0.0.1:{port}", now=lambda: asyncio.get_running_loop().time(), **settings)
            await talk(wire, visits)
            wire.close()

    asyncio.run(run())


async def answer_all(visit: Visit) -> None:
    while True:
        await visit.request()
        await visit.say(OK)


def body(exchange) -> bytes:
    return b"".join(piece for _, piece in exchange.received)


def test_connections_are_kept_and_there_are_as_many_as_streams() -> None:
    everyone_is_here = asyncio.Event()

    async def handler(visit: Visit) -> None:
        await visit.request()
        if visit.number == 29:
            everyone_is_here.set()
        await everyone_is_here.wait()
        await visit.say(OK)
        await answer_all(visit)

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        for _ in range(3):
            exchanges = await asyncio.gather(*(wire.post("/p", b"{}") for _ in range(30)))
            assert {(each.status, body(each)) for each in exchanges} == {(200, b"ok")}
            everyone_is_here.set()
        assert len(visits) == 30

    converse(handler, talk)


def test_the_request_is_what_a_server_expects() -> None:
    heads: list[bytes] = []

    async def handler(visit: Visit) -> None:
        heads.append(await visit.request())
        await visit.say(OK)

    async def run() -> None:
        async with serving(handler) as (port, _):
            url = f"http://127.0.0.1:{port}"
            wire = Wire(f"{url}/base", now=time.perf_counter, headers={"Authorization": "Bearer key"})
            await wire.post("/v1/completions", b'{"a": 1}')
        lines = heads[0].decode().split("\r\n")
        assert lines[0] == "POST /base/v1/completions HTTP/1.1"
        assert {f"Host: 127.0.0.1:{port}", "Authorization: Bearer key", "Content-Length: 8"} <= set(lines)
        assert lines[-1] == '{"a": 1}'

    asyncio.run(run())


def test_a_connection_that_went_stale_is_replaced_unseen() -> None:
    async def handler(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK)
        if visit.number == 0:
            # Gone without answering: as a server does whose keep-alive ended just when the request was under way.
            await visit.request()
            visit.writer.transport.abort()
        else:
            await answer_all(visit)

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        for _ in range(3):
            assert body(await wire.post("/p", b"{}")) == b"ok"
        assert len(visits) == 2

    converse(handler, talk)


def test_a_request_is_sent_again_once_only() -> None:
    requests = 0

    async def handler(visit: Visit) -> None:
        nonlocal requests
        while True:
            await visit.request()
            requests += 1
            if requests > 1:
                return
            await visit.say(OK)

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        await wire.post("/p", b"{}")
        with pytest.raises(BrokenStream, match="closed by the server"):
            await wire.post("/p", b"{}")
        assert (requests, len(visits)) == (3, 2)

    converse(handler, talk)


def test_an_answer_that_had_begun_is_not_asked_for_again() -> None:
    async def handler(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK)
        await visit.request()
        await visit.say(STREAM + b"2\r\nab\r\n")

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        await wire.post("/p", b"{}")
        with pytest.raises(BrokenStream) as caught:
            await wire.post("/p", b"{}")
        partial = caught.value.partial
        assert partial is not None
        assert (partial.status, body(partial), len(visits)) == (200, b"ab", 1)

    converse(handler, talk)


def test_a_server_that_half_closes_after_its_answer_is_not_asked_there_again() -> None:
    async def handler(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK)
        visit.writer.write_eof()
        await visit.reader.read()

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        for _ in range(2):
            assert body(await wire.post("/p", b"{}")) == b"ok"
        assert len(visits) == 2

    converse(handler, talk)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "closed by the server"),
        (OK[:-1], "closed by the server"),
        (STREAM + b"2\r\nab\r\n", "closed by the server"),
        (b"220 smtp ready\r\n", "not HTTP/1.1"),
    ],
)
def test_what_breaks_an_answer_is_named(raw: bytes, reason: str) -> None:
    async def handler(visit: Visit) -> None:
        await visit.request()
        await visit.say(raw)

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        with pytest.raises(BrokenStream, match=reason):
            await wire.post("/p", b"{}")

    converse(handler, talk)


def test_a_body_without_length_ends_with_the_connection() -> None:
    async def handler(visit: Visit) -> None:
        await visit.request()
        await visit.say(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        exchange = await wire.post("/p", b"{}")
        assert body(exchange) == b"all of it"
        assert exchange.finished >= exchange.received[-1][0]

    converse(handler, talk)


def test_a_refusal_that_comes_before_the_whole_request_was_sent_is_an_answer() -> None:
    read = asyncio.Event()

    async def handler(visit: Visit) -> None:
        await visit.reader.readuntil(b"\r\n\r\n")
        await visit.say(b"HTTP/1.1 413 -\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        await read.wait()  # with bytes unread, closing would take the answer back

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        exchange = await wire.post("/p", bytes(30_000_000))
        assert (exchange.status, body(exchange)) == (413, b"big")
        read.set()

    converse(handler, talk)


def test_a_request_larger_than_the_sockets_buffer_arrives_whole() -> None:
    sizes: list[int] = []

    async def handler(visit: Visit) -> None:
        sizes.append(len(await visit.request()))
        await visit.say(OK)

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        assert body(await wire.post("/p", bytes(20_000_000))) == b"ok"
        assert sizes[0] > 20_000_000

    converse(handler, talk)


def test_silence_ends_an_answer_but_slowness_does_not() -> None:
    more = asyncio.Queue[bytes]()

    async def handler(visit: Visit) -> None:
        await visit.request()
        await visit.say(STREAM)
        for _ in range(8):
            await visit.say(await more.get())
        await visit.reader.read()

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        received: list[tuple[float, bytes]] = []
        asking = asyncio.create_task(wire.post("/p", b"{}", received))
        for number in range(8):
            skip_time(750)
            more.put_nowait(b"1\r\na\r\n")
            while len(received) <= number and not asking.done():
                await asyncio.sleep(0.001)
        skip_time(1000)
        with pytest.raises(BrokenStream, match="no byte for 1000 s") as caught:
            await asking
        assert caught.value.partial is not None
        assert body(caught.value.partial) == b"a" * 8

    converse(handler, talk, silence_s=1000)


def test_cancelling_closes_the_connection_and_keeps_what_came() -> None:
    gone = asyncio.Event()

    async def handler(visit: Visit) -> None:
        await visit.request()
        await visit.say(STREAM + b"2\r\nab\r\n")
        assert await visit.reader.read() == b""
        gone.set()

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        received: list[tuple[float, bytes]] = []
        task = asyncio.create_task(wire.post("/p", b"{}", received))
        while not received:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(gone.wait(), 60)
        assert [piece for _, piece in received] == [b"ab"]

    converse(handler, talk)


def test_what_a_server_says_unasked_is_not_taken_for_an_answer() -> None:
    spoken = asyncio.Event()

    async def handler(visit: Visit) -> None:
        await visit.request()
        await visit.say(OK)
        if visit.number == 0:
            await asyncio.sleep(0.01)
            await visit.say(OK.replace(b"ok", b"no"))
            spoken.set()
        await answer_all(visit)

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        await wire.post("/p", b"{}")
        await spoken.wait()
        assert body(await wire.post("/p", b"{}")) == b"ok"
        assert len(visits) == 2

    converse(handler, talk)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's arrival times are read on Linux")
def test_a_busy_event_loop_does_not_make_arrivals_late() -> None:
    """A thread sends while the loop is held up; a clock read by the loop could only say `released`."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked, go, spoken = threading.Event(), threading.Event(), threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(10_000)
            connection.sendall(STREAM)
            asked.set()
            go.wait()
            connection.sendall(b"2\r\nab\r\n")
            connection.sendall(b"0\r\n\r\n")
            spoken.set()

    async def talk() -> tuple[float, float, float]:
        wire = Wire(f"http://127.0.0.1:{listener.getsockname()[1]}", now=time.perf_counter)
        request = asyncio.create_task(wire.post("/p", b"{}"))
        while not asked.is_set():
            await asyncio.sleep(0.001)
        began = time.perf_counter()
        go.set()
        spoken.wait()
        time.sleep(0.3)
        released = time.perf_counter()
        ((arrived, _),) = (await request).received
        return began, arrived, released

    thread = threading.Thread(target=serve)
    thread.start()
    began, arrived, released = asyncio.run(talk())
    thread.join()
    listener.close()
    assert began - 0.1 < arrived < released - 0.1


@pytest.mark.parametrize("set_by_s", [-5.0, 0.5, 5.0])
def test_a_wall_clock_that_is_set_changes_no_times(set_by_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    wall = time.time

    async def handler(visit: Visit) -> None:
        await visit.request()
        await visit.say(STREAM + b"2\r\nab\r\n")
        await asyncio.sleep(0.02)
        await visit.say(b"2\r\ncd\r\n0\r\n\r\n")

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        monkeypatch.setattr(time, "time", lambda: wall() + set_by_s)
        exchange = await wire.post("/p", b"{}")
        times = [exchange.sent, *(at for at, _ in exchange.received), exchange.finished]
        assert times == sorted(times)
        assert times[-1] <= time.perf_counter()

    converse(handler, talk)


def test_nobody_there_is_said_with_the_backends_name() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        backend = UrlBackend("plain", f"http://127.0.0.1:{unused.getsockname()[1]}")

        async def talk() -> None:
            backend._open()
            await backend.stream("/p", b"{}")

        with pytest.raises(BackendError, match=r"plain: the connection to http://.* broke \(ConnectionRefusedError"):
            asyncio.run(talk())


def test_a_server_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        wire = Wire(url, now=time.perf_counter, tls=ssl.create_default_context(), connect_s=0.05)
        with pytest.raises(BrokenStream, match="no connection within"):
            asyncio.run(wire.post("/p", b"{}"))


def test_too_many_files_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    wire_to_nowhere = Wire("http://127.0.0.1:1", now=time.perf_counter)

    class NoMore(socket.socket):
        def __init__(self, *args: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

    async def talk() -> None:
        monkeypatch.setattr(wire.socket, "socket", NoMore)
        await wire_to_nowhere.post("/p", b"{}")

    with pytest.raises(BrokenStream, match="ulimit -Hn"):
        asyncio.run(talk())


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("host", "written"), [("::1", "[::1]"), ("127.0.0.1", "localhost")])
def test_addresses_of_both_kinds_and_names(host: str, written: str) -> None:
    async def run() -> None:
        async with AsyncExitStack() as stack:
            try:
                port, _ = await stack.enter_async_context(serving(answer_all, host=host))
            except OSError:
                pytest.skip(f"this machine has no {host}")
            wire = Wire(f"http://{written}:{port}", now=time.perf_counter)
            for _ in range(2):
                exchanges = await asyncio.gather(*(wire.post("/p", b"{}") for _ in range(3)))
                assert [body(each) for each in exchanges] == [b"ok"] * 3
            wire.close()

    asyncio.run(run())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for localhost that signs itself, in one file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    try:
        made = subprocess.run([*command.split(), "-keyout", "-"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("openssl is not there to make a certificate")
    path.write_bytes(made.stdout)
    return path


def over_tls(certificate: Path, handler: Handler, talk: Callable[[Wire, list[Visit]], Awaitable[None]]) -> None:
    """Let a wire talk to a server whose certificate it trusts."""

    async def run() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        async with serving(handler, tls=context) as (port, visits):
            trusting = ssl.create_default_context(cafile=str(certificate))
            wire = Wire(f"https://localhost:{port}", now=time.perf_counter, tls=trusting)
            await talk(wire, visits)
            wire.close()

    asyncio.run(run())


def test_tls_connections_are_kept_and_answers_cut_anywhere(certificate: Path) -> None:
    cuts = [STREAM[:9], STREAM[9:], b"2\r\nab\r\n", b"1\r", b"\nc\r\n0\r\n\r\n"]

    async def handler(visit: Visit) -> None:
        while True:
            await visit.request()
            for cut in cuts:
                await visit.say(cut)
                await asyncio.sleep(0.005)

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        for size in (2, 5_000_000, 2):
            exchange = await wire.post("/p", bytes(size))
            assert body(exchange) == b"abc"
            assert exchange.sent <= exchange.received[0][0] <= exchange.received[-1][0] <= exchange.finished
        assert len(visits) == 1

    over_tls(certificate, handler, talk)


def test_tls_ends_a_body_without_length_and_breaks_any_other(certificate: Path) -> None:
    heads = [b"HTTP/1.1 200 OK\r\n\r\n", STREAM, STREAM]

    async def handler(visit: Visit) -> None:
        await visit.request()
        await visit.say(heads[visit.number])
        await visit.say(b"2\r\nab\r\n")
        if visit.number == 2:
            visit.writer.transport.abort()

    async def talk(wire: Wire, visits: list[Visit]) -> None:
        assert body(await wire.post("/p", b"{}")) == b"2\r\nab\r\n"
        for _ in range(2):
            with pytest.raises(BrokenStream):
                await wire.post("/p", b"{}")
        assert len(visits) == 3

    over_tls(certificate, handler, talk)


def test_tls_with_a_certificate_that_nobody_vouches_for_is_refused(certificate: Path) -> None:
    async def talk(wire: Wire, visits: list[Visit]) -> None:
        distrusting = Wire(f"https://localhost:{wire._port}", now=time.perf_counter, tls=ssl.create_default_context())
        with pytest.raises(BrokenStream, match="SSLCertVerificationError"):
            await distrusting.post("/p", b"{}")

    over_tls(certificate, answer_all, talk)
