"""The engine in a process of its own: what it tells, and what happens when either side goes away."""

import asyncio
import contextlib
import fcntl
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.support import builders
from tests.support.serving import serving_launched, start_thread

from draftwise.core import BackendError, InvalidSetup
from draftwise.engine.engine_outputs import Delta, Logprob
from draftwise.engine.text.tokenizer import Tokenizer, load_tokenizer
from draftwise.machine.processes import raise_file_limit
from draftwise.serve.channel import Channel, ChannelProtocol, EngineFailure, StepResult
from draftwise.serve.engine_process import start_process
from draftwise.serve.engine_worker import EngineWorker

MESSAGES = [{"role": "user", "content": "Hi"}]


class Recorder:
    """A socket or transport that keeps what is written."""

    def __init__(self):
        self.written = b""

    def sendall(self, data):
        self.written += data


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_messages_arrive_whole_however_the_bytes_are_cut(size):
    wire, got = Recorder(), []
    for message in ("a", {"b": [1] * 5000}, b""):
        Channel(wire).send(message)
    protocol = ChannelProtocol(got.append, lambda: None)
    for start in range(0, len(wire.written), size):
        protocol.data_received(wire.written[start : start + size])
    assert got == ["a", {"b": [1] * 5000}, b""]


@pytest.mark.parametrize("unread", [False, True])
def test_an_end_that_was_closed_is_the_end(unread):
    ours, theirs = socket.socketpair()
    if unread:
        Channel(ours).send("never read")
    theirs.close()
    assert Channel(ours).has_message()
    with pytest.raises(EOFError):
        Channel(ours).receive()
    ours.close()


def test_a_descriptor_may_have_any_number():
    """A server with a thousand connections gives the next process that it starts a descriptor behind theirs."""
    raise_file_limit()
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(theirs, fcntl.F_DUPFD, 1500)) as far:
        assert not Channel(far).has_message()
        Channel(ours).send("a")
        assert Channel(far).has_message(60)
        assert Channel(far).receive() == "a"


def test_a_step_survives_the_way():
    candidates = {5: Logprob(-0.5, 1, "x")}
    deltas = [
        Delta(request_id="a", index=1, token_ids=[5], text="é", logprobs=[candidates], scheduled_s=1.5),
        Delta(request_id="b", index=0, token_ids=[], text="", finish_reason="stop", stop_reason="###"),
    ]
    step = pickle.loads(pickle.dumps(StepResult.pack(deltas, None, began=1.0, ended=2.0)))
    assert (step.began, step.ended, step.unpack()) == (1.0, 2.0, deltas)


@pytest.mark.parametrize("start", [start_process, start_thread])
def test_phases_and_facts_reach_the_server(start, checkpoint):
    told = []
    worker = EngineWorker(start(partial(builders.build_in_phases, str(checkpoint))), max_waiting=1)
    worker.wait_until_built("m", on_phase=told.append)
    worker.stop()
    (_, seconds) = told.pop()
    assert told == [("load weights", None)]
    assert seconds > 0
    assert (worker.about.k, worker.about.spec, worker.about.num_pages) == (2, {"method": "ngram"}, 7)
    assert [finding.message for finding in worker.about.findings] == ["slow."]
    assert worker.stats.num_running == 0


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (builders.build_wrongly, InvalidSetup, "max_model_len: too small. Lower it."),
        (builders.build_brokenly, BackendError, "no kernel image"),
        (builders.build_and_die, BackendError, "ended with status 7"),
    ],
)
def test_an_engine_that_cannot_be_built(build, error, words):
    worker = EngineWorker(start_process(build), max_waiting=1)
    with pytest.raises(error) as caught:
        worker.wait_until_built("m")
    worker.stop()
    assert words in str(caught.value)


def test_when_the_process_dies_streams_end_with_the_error_and_health_says_so(checkpoint):
    launched = start_process(partial(builders.build_in_phases, str(checkpoint)))
    with serving_launched(launched, Tokenizer.from_pretrained(checkpoint)) as server:
        assert server.http.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        os.kill(launched.process.pid, signal.SIGKILL)
        launched.process.wait()
        deadline = time.monotonic() + 60
        while server.http.get("/health").status_code != 503:
            assert time.monotonic() < deadline
        answer = server.http.post("/v1/completions", json={"prompt": "a"})
    assert answer.status_code == 500
    assert "its process was killed by SIGKILL" in answer.json()["error"]["message"]


def test_many_streams_at_once_each_get_their_own_text(checkpoint):
    """More streams than places, so that some wait; each chunk must reach the stream it belongs to."""
    launched = start_process(partial(builders.build_in_phases, str(checkpoint)))
    with serving_launched(launched, Tokenizer.from_pretrained(checkpoint), max_waiting=64) as server:

        async def read(client, length):
            body = {"prompt": "a", "stream": True, "max_tokens": length, "return_token_ids": True}
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
            assert lines.pop() == "[DONE]"
            choices = [json.loads(line)["choices"][0] for line in lines]
            assert sum(len(choice["token_ids"]) for choice in choices) == length
            return "".join(choice["text"] for choice in choices)

        async def read_all():
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                return await asyncio.gather(*(read(client, 1 + i % 12) for i in range(48)))

        assert asyncio.run(read_all()) == ["Hello, world"[: 1 + i % 12] for i in range(48)]


def test_without_a_tokenizer_the_server_takes_token_ids(checkpoint):
    launched = start_thread(partial(builders.build_in_phases, str(checkpoint)))
    with serving_launched(launched, load_tokenizer(checkpoint, skip=True)) as server:
        for path, body in {"completions": {"prompt": "a"}, "chat/completions": {"messages": MESSAGES}}.items():
            answer = server.http.post(f"/v1/{path}", json=body)
            assert (answer.status_code, "skip_tokenizer_init" in answer.text) == (400, True)
        body = {"prompt": [65, 66], "logprobs": 1, "return_token_ids": True}
        choice = server.http.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["logprobs"]["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]


def test_an_engine_that_is_still_being_built_can_be_given_up_at_once():
    launched = start_process(builders.build_for_ever)
    worker = EngineWorker(launched, max_waiting=1)

    def interrupt(message):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker.wait_until_built("m", on_phase=interrupt)
    worker.stop()
    assert launched.process.returncode == -signal.SIGKILL, "it would have gone on for ever"


def test_the_process_ends_when_the_server_is_gone_and_not_for_a_signal_to_its_group(checkpoint):
    launched = start_process(partial(builders.build_in_phases, str(checkpoint)))
    EngineWorker(launched, max_waiting=1).wait_until_built("m")
    for number in (signal.SIGINT, signal.SIGTERM):
        launched.process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        launched.process.wait(0.3)
    launched.channel.socket.close()
    assert launched.process.wait(120) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such signal")
def test_an_engine_that_is_being_built_ends_with_its_server():
    code = """
from tests.support import builders
from draftwise.serve.engine_process import start_process
from draftwise.serve.engine_worker import EngineWorker
worker = EngineWorker(start_process(builders.build_for_ever), max_waiting=1)
worker.wait_until_built("m", on_phase=lambda _: print(worker._launched.process.pid, flush=True))
"""
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=root) as server:
        engine = int(server.stdout.readline())
        server.kill()
    give_up = time.monotonic() + 60
    with contextlib.suppress(OSError):
        while Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < give_up
            time.sleep(0.01)


def test_what_broke_is_the_last_word(caplog):
    launched = start_thread(builders.build_brokenly)
    assert launched.channel.receive() == EngineFailure("RuntimeError('no kernel image')")
    assert "no kernel image" in caplog.text
    with pytest.raises(EOFError):
        launched.channel.receive()
