"""The socket and the end of the server process."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from starlette.applications import Starlette

from draftwise.core import InvalidSetup
from draftwise.serve import connections
from draftwise.serve.calls import Defaults
from draftwise.serve.entrance import InFlight
from draftwise.serve.http_server import ServerOptions, bind

SCRIPT = """
import sys
from draftwise.engine.engine_config import EngineConfig
from draftwise.serve import http_server as server
from tests.support.builders import build_paused
config, options = EngineConfig(model=sys.argv[1]), server.ServerOptions(port=0, drain_seconds=float(sys.argv[2]))
server.serve(config, None, options, on_ready=lambda line: print(line, flush=True), build=build_paused)
"""


def test_free_port_and_port_in_use():
    with bind(ServerOptions(port=0)) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        assert port > 0
        with pytest.raises(InvalidSetup, match=f"Port {port} of 127.0.0.1 is in use"):
            bind(ServerOptions(port=port))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_machines_must_be_asked_for(host):
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with pytest.raises(InvalidSetup, match="--allow-remote"):
        bind(ServerOptions(host=host, port=0))


def test_remote_binding_when_asked_for():
    with bind(ServerOptions(host="0.0.0.0", port=0, allow_remote=True)) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_small_pieces_are_sent_at_once():
    """Else the kernel holds each back until the one before it is acknowledged, which takes up to 40 ms."""

    async def look() -> int:
        accepted: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()

        def keep(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set_result(writer.get_extra_info("socket"))

        listener = bind(ServerOptions(port=0))
        async with await asyncio.start_server(keep, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            found = (await accepted).getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()
        return found

    assert asyncio.run(look())


def test_localhost_is_local_and_nonsense_is_unknown():
    bind(ServerOptions(host="localhost", port=0)).close()
    with pytest.raises(InvalidSetup, match="not an address of this machine"):
        bind(ServerOptions(host="no.such.host.invalid", port=0))


@contextlib.contextmanager
def started(checkpoint, drain_s, script=SCRIPT):
    """Start a server in a process of its own, with an engine that pauses after three steps; yield it and its URL."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(checkpoint), str(drain_s)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # these tests may run under nohup
    )
    try:
        line = process.stdout.readline()
        yield process, line, line.partition(" at ")[2].partition(";")[0]
    finally:
        process.kill()
        process.wait()


def test_a_signal_ends_what_hangs_with_an_error_each(checkpoint):
    with started(checkpoint, 0.2) as (process, line, url), ThreadPoolExecutor() as threads:
        assert "KV cache 112 tokens (7 pages of 16)" in line
        assert "speculation off" in line
        body = {"prompt": "a", "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            assert "data: " in next(lines)
            whole = threads.submit(httpx.post, f"{url}/v1/completions", json={"prompt": "a"}, timeout=60)
            arriving = socket.create_connection(("127.0.0.1", httpx.URL(url).port), timeout=60)
            arriving.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 1000\r\n\r\n{"
            )
            while httpx.get(f"{url}/load").json()["server_load"] < 3:
                pass
            process.send_signal(signal.SIGTERM)
            *_, error, done = filter(None, lines)
            assert json.loads(error.removeprefix("data: "))["error"]["code"] == 503
            assert done == "data: [DONE]"
        assert (whole.result().status_code, whole.result().json()["error"]["code"]) == (503, 503)
        with arriving:
            assert arriving.recv(100).startswith(b"HTTP/1.1 503")
        _, complaints = process.communicate(timeout=60)
        assert process.returncode == 0, complaints
        assert "Traceback" not in complaints


def test_while_it_drains_nothing_is_accepted_and_a_second_signal_ends_that(checkpoint):
    with started(checkpoint, 3600) as (process, _, url), httpx.Client(base_url=url, timeout=60) as client:
        with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGHUP)
            while client.get("/health").status_code == 200:
                pass
            refused = client.post("/v1/completions", json={"prompt": "a"})
            assert (refused.status_code, refused.headers["connection"]) == (503, "close")
            process.send_signal(signal.SIGINT)
            assert any('"code":503' in line for line in lines)
        assert process.wait(60) == 0


def child_of(process, module):
    """Return the process id of the child that runs a module."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (found,) = (pid for pid in children if module in Path(f"/proc/{pid}/cmdline").read_text())
    return int(found)


def test_when_the_readers_are_killed_others_start_and_what_runs_goes_on(checkpoint):
    with started(checkpoint, 0.2) as (process, _, url):
        with httpx.stream("POST", f"{url}/v1/completions", json={"prompt": "a", "stream": True}, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.kill(child_of(process, "reader_process"), signal.SIGKILL)
            while "another one has started" not in process.stderr.readline():
                pass
            assert httpx.get(f"{url}/health").status_code == 200
            process.send_signal(signal.SIGTERM)
            assert any('"code":503' in line for line in lines)
        _, complaints = process.communicate(timeout=60)
        assert process.returncode == 0, complaints


def test_when_the_engine_is_killed_the_server_says_so_and_ends(checkpoint):
    with started(checkpoint, 3600) as (process, _, url):
        with httpx.stream("POST", f"{url}/v1/completions", json={"prompt": "a", "stream": True}, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            os.kill(child_of(process, "engine_process"), signal.SIGKILL)
            assert any('"code":500' in line for line in lines)
        _, complaints = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "its process was killed by SIGKILL" in complaints


def test_what_is_arriving_when_the_engine_is_killed_is_answered(checkpoint):
    patient = "from draftwise.serve import connections\nconnections._LAST_CONNECTIONS_S = 3600\n" + SCRIPT
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 900000\r\n\r\n"
    )
    with started(checkpoint, 3600, patient) as (process, _, url):
        address = ("127.0.0.1", httpx.URL(url).port)
        in_head, in_body = (socket.create_connection(address, timeout=60) for _ in range(2))
        in_head.sendall(head[:9])
        in_body.sendall(head + b"{")
        while httpx.get(f"{url}/load").json()["server_load"] < 1:
            pass
        os.kill(child_of(process, "engine_process"), signal.SIGKILL)
        with contextlib.suppress(httpx.TransportError):
            while httpx.get(f"{url}/load"):  # until the port is closed
                pass
        in_head.sendall(head[9:] + b"{")
        for client in (in_head, in_body):
            client.sendall(b" " * 899_999)  # which reads the answer only then
            pieces = list(iter(lambda: client.recv(2**16), b""))  # noqa: B023
            assert pieces[0].startswith(b"HTTP/1.1 503"), pieces
            client.close()
        assert process.wait(60) != 0


def test_what_is_connected_when_the_port_closes_is_answered(monkeypatch):
    monkeypatch.setattr(connections, "_LAST_REQUESTS_S", 0)
    listener = bind(ServerOptions(port=0))
    listener.listen(64)
    clients = []

    class LastMoment(InFlight):
        def close(self):
            super().close()
            for _ in range(40):
                clients.append(socket.create_connection(listener.getsockname(), timeout=60))
                clients[-1].sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")

    end_server(listener, LastMoment())
    for client in clients:
        with client:
            assert client.recv(100).startswith(b"HTTP/1.1 503")


def end_server(listener, in_flight):
    config = connections.make_config(in_flight.wrap(Starlette()), log_level="critical")
    server = connections.HttpServer(config, SimpleNamespace(failure=None), in_flight, drain_s=0)
    server.should_exit = True
    server.run(sockets=[listener])


def test_few_connections_and_bytes_are_looked_at_before_others_go_on(monkeypatch):
    """However many come at once: a hundred connections, and a body of which each piece is a byte."""
    made, read = [0], []

    class Counted(connections._StrictProtocol):
        def connection_made(self, transport):
            made[-1] += 1
            super().connection_made(transport)

        def data_received(self, data):
            read.append(len(data))
            super().data_received(data)

    async def run():
        config = connections.make_config(InFlight().wrap(Starlette()), log_level="critical")
        config.load()
        config.http_protocol_class = Counted
        server = connections.HttpServer(config, SimpleNamespace(failure=None), InFlight(), drain_s=0)
        server.lifespan = SimpleNamespace(startup=lambda: asyncio.sleep(0), should_exit=False, state={})
        listener = bind(ServerOptions(port=0))
        listener.listen(200)
        clients = [socket.create_connection(listener.getsockname(), timeout=60) for _ in range(100)]
        clients[0].sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        clients[0].sendall(b"1\r\nX\r\n" * 20_000)
        await server.startup(sockets=[listener])
        while sum(made) < len(clients) or sum(read) < 100_000:
            made.append(0)
            await asyncio.sleep(0)
        for each in (*server.servers, *clients):
            each.close()

    monkeypatch.setattr(connections, "_LARGEST_HEAD", 2**20)
    asyncio.run(run())
    assert max(made) <= 16
    assert max(read) <= 2**14


def test_a_server_that_has_no_descriptor_left_ends_all_the_same(monkeypatch):
    monkeypatch.setattr(connections, "_LAST_REQUESTS_S", 0)

    class Full(socket.socket):
        def accept(self):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with Full() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        end_server(listener, InFlight())
        assert listener.fileno() == -1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, Defaults()),
        (
            '{"temperature": 0.7, "top_k": 20, "max_new_tokens": 64, "do_sample": true, "min_p": null}',
            Defaults(sampling={"temperature": 0.7, "top_k": 20}, max_tokens=64),
        ),
    ],
)
def test_defaults_of_a_checkpoint(tmp_path, content, expected):
    if content is not None:
        (tmp_path / "generation_config.json").write_text(content)
    assert Defaults.from_checkpoint(tmp_path) == expected


UNUSABLE = [
    *("{", "[]", "5", '{"temperature": -3}', '{"top_p": "high"}', '{"top_k": 2.5}', '{"top_k": 1' + "0" * 30 + "}"),
    *('{"temperature": NaN}', '{"repetition_penalty": 1e400}', '{"min_p": [0]}', '{"temperature": true}'),
    *('{"max_new_tokens": "x"}', '{"max_new_tokens": -5}', '{"max_new_tokens": 1.5}', '{"max_new_tokens": [8]}'),
    "[" * 100_000,
]


@pytest.mark.parametrize("content", UNUSABLE, ids=lambda content: content[:30])
def test_defaults_that_cannot_be_used(tmp_path, content):
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(InvalidSetup, match="cannot be used"):
        Defaults.from_checkpoint(tmp_path)


def test_a_signal_at_the_moment_of_readiness_is_not_lost(checkpoint):
    raised = "lambda line: (print(line, flush=True), __import__('os').kill(__import__('os').getpid(), 2))"
    script = SCRIPT.replace("lambda line: print(line, flush=True)", raised)
    with started(checkpoint, 3600, script) as (process, _, _):
        _, complaints = process.communicate(timeout=120)
        assert process.returncode == 0, complaints
        assert "Traceback" not in complaints
