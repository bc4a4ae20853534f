"""The socket and the end of the server process."""

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from draftwise.core import InvalidSetup
from draftwise.serve.calls import Defaults
from draftwise.serve.http_server import ServerOptions, bind

SCRIPT = """
import sys
from draftwise.engine.engine_config import EngineConfig
from draftwise.serve import http_server as server
from tests.support.builders import build_paused
server._SHUTDOWN_S = 1
config, options = EngineConfig(model=sys.argv[1]), server.ServerOptions(port=0)
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


def test_a_signal_ends_the_server_in_order_even_with_a_stream_that_hangs(checkpoint):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(checkpoint)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        line = process.stdout.readline()
        assert "KV cache 112 tokens (7 pages of 16)" in line
        assert "speculation off" in line
        url = line.partition(" at ")[2].partition(";")[0]
        body = {"prompt": "a", "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            assert "data: " in next(lines)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)
        _, complaints = process.communicate(timeout=60)
        assert process.returncode == 0, complaints
        assert "Traceback" not in complaints
    finally:
        process.kill()
        process.wait()


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


@pytest.mark.parametrize("content", ["{", "[]", '{"temperature": -3}', '{"top_p": "high"}'])
def test_defaults_that_cannot_be_used(tmp_path, content):
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(InvalidSetup, match="cannot be used"):
        Defaults.from_checkpoint(tmp_path)


def test_a_signal_at_the_moment_of_readiness_is_not_lost(checkpoint):
    raised = "lambda line: (print(line, flush=True), __import__('os').kill(__import__('os').getpid(), 2))"
    script = SCRIPT.replace("lambda line: print(line, flush=True)", raised)
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(checkpoint)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        _, complaints = process.communicate(timeout=120)
        assert process.returncode == 0, complaints
        assert "Traceback" not in complaints
    finally:
        process.kill()
