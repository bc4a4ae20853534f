"""Bodies are read in processes of their own: what holds one up, fills its memory or breaks it hurts nobody else."""

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

from draftwise.core import InvalidSetup
from draftwise.serve import reader_process
from draftwise.serve.calls import Defaults
from draftwise.serve.reader_process import ReaderPool, ReaderSetup, ReadingProcess
from draftwise.serve.reading import PlannedCall, ReadError

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HANGS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
TEMPLATES = {
    "loops": HANGS,
    "calls itself": "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "doubles": (
        "{% set ns = namespace(x='ab') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
    ),
    "multiplies": "{{ 'a' * 10 ** 12 }}",
    "fills memory with a constant": "{{ 'a' * 5 * 10 ** 9 }}{{ 'b' | center(5 * 10 ** 9) }}",
    "powers": "{{ 9 ** 9 ** 9 }}",
    "pads": "{{ '%999999999999d' % 1 }}",
    "fails": "{{ 1 / 0 }}",
    "overflows": "{{ 'a' | center(10 ** 30) }}",
}


@contextlib.asynccontextmanager
async def reading(directory, *, max_model_len=64, cpu_s=0.5):
    started = ReadingProcess(ReaderSetup(str(directory), False, "m", Defaults(), None))
    try:
        started.wait_until_loaded()
        pool = ReaderPool(started, max_model_len=max_model_len, most_sequences=8, cpu_s=cpu_s)
        async with pool.connect():
            yield pool
            readers = list_children(started._process.pid)
    finally:
        started.stop()
    assert readers
    give_up = time.monotonic() + 60  # readers end by themselves once their pipe is closed
    while [pid for pid in readers if is_running(pid)]:
        assert time.monotonic() < give_up
        time.sleep(0.01)


def list_children(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ask(text, **fields):
    return json.dumps({"prompt": text, **fields}).encode()


@pytest.fixture
def templated(checkpoint, tmp_path):
    """Returns a checkpoint with another chat template."""

    def make(template):
        for path in checkpoint.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return make


@pytest.mark.parametrize("case", TEMPLATES)
def test_a_template_that_never_ends_or_wants_all_memory_is_refused_each_time(templated, case):
    async def run():
        async with reading(templated(TEMPLATES[case])) as pool:
            for _ in range(2):
                body = json.dumps({"messages": [{"role": "user", "content": "x"}]}).encode()
                refused = await pool.read(CHAT, body)
                assert isinstance(refused, ReadError)
                assert refused.status == 400
                assert isinstance(await pool.read(COMPLETIONS, ask("a")), PlannedCall), "the next one is read"

    asyncio.run(run())


def test_a_tokenizer_that_never_ends_is_refused(checkpoint, tmp_path):
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))

    async def run():
        async with reading(tmp_path) as pool:
            refused = await pool.read(COMPLETIONS, ask("a" * 40 + "!"))
            assert isinstance(refused, ReadError | PlannedCall)  # newer libraries give the pattern up themselves
            assert isinstance(await pool.read(COMPLETIONS, ask("b")), PlannedCall)

    asyncio.run(run())


def test_short_bodies_do_not_wait_for_long_ones(templated):
    template = "{% if messages | length > 9 %}" + HANGS + "{% endif %}{{ messages[0].content }}"

    async def run():
        async with reading(templated(template), cpu_s=3600) as pool:
            message = {"role": "user", "content": "x"}
            long = asyncio.ensure_future(pool.read(CHAT, json.dumps({"messages": [message] * 9000}).encode()))
            assert isinstance(await pool.read(CHAT, json.dumps({"messages": [message]}).encode()), PlannedCall)
            assert not long.done()
            long.cancel()

    asyncio.run(run())


@pytest.mark.parametrize("with_readers", [False, True])
def test_the_process_that_forks_readers_is_started_again(templated, with_readers):
    """A reader that lives answers the body it has; the others get an answer of a new one."""
    template = "{% if messages | length > 9 %}" + HANGS + "{% endif %}{{ messages[0].content }}"

    async def run():
        async with reading(templated(template), cpu_s=3600) as pool:
            for text in ("a", "a" * 70_000):  # readers are forked one after the other: both are there then
                await pool.read(COMPLETIONS, ask(text))
            message = {"role": "user", "content": "x"}
            long = asyncio.ensure_future(pool.read(CHAT, json.dumps({"messages": [message] * 9000}).encode()))
            for _ in range(9):
                await asyncio.sleep(0)  # until its reader is told
            parent = pool._started._process.pid
            children = sorted(list_children(parent), key=lambda pid: os.getpriority(os.PRIO_PROCESS, pid))
            assert len(children) == 2
            for pid in (parent, *(children if with_readers else ())):
                os.kill(pid, signal.SIGKILL)
            assert isinstance(await pool.read(COMPLETIONS, ask("b")), PlannedCall | ReadError)
            while pool._started._process.pid == parent or not list_children(pool._started._process.pid):
                await asyncio.sleep(0.01)
            assert isinstance(await pool.read(COMPLETIONS, ask("c")), PlannedCall)
            if not with_readers:
                assert not long.done()
                os.kill(children[1], signal.SIGKILL)
            assert (await long).status == (503 if with_readers else 400)
            assert isinstance(await pool.read(COMPLETIONS, ask("a" * 70_000)), ReadError), "the next one is read"

    asyncio.run(run())


@pytest.mark.parametrize("kills", [2, 10])
def test_the_process_that_forks_readers_may_end_again_while_it_starts(checkpoint, monkeypatch, kills):
    monkeypatch.setattr(reader_process, "_PAUSES_S", [0.01] * 20)

    async def run():
        async with reading(checkpoint) as pool:
            await pool.read(COMPLETIONS, ask("a"))
            killed = set()
            while len(killed) < kills:
                process = pool._started._process
                if process.pid not in killed:
                    killed.add(process.pid)
                    for pid in (*list_children(process.pid), process.pid):
                        os.kill(pid, signal.SIGKILL)
                    refused = await pool.read(COMPLETIONS, ask("b"))  # at once, whoever knows of it
                    assert isinstance(refused, PlannedCall) or refused.status in (400, 503)
                await asyncio.sleep(0)
            while not isinstance(await pool.read(COMPLETIONS, ask("c")), PlannedCall):
                await asyncio.sleep(0.01)
            assert pool.failure is None

    asyncio.run(run())


def test_a_server_whose_readers_cannot_be_started_any_more_ends(checkpoint, monkeypatch):
    monkeypatch.setattr(reader_process, "_PAUSES_S", [0.01] * 3)

    async def run():
        pool = ReaderPool(started, max_model_len=64, most_sequences=8)
        async with pool.connect():
            await pool.read(COMPLETIONS, ask("a"))
            ended = asyncio.Event()
            pool.on_failure = ended.set
            monkeypatch.setattr(reader_process, "make_command", lambda *_, **__: ["/bin/false"])
            for pid in (*list_children(started._process.pid), started._process.pid):
                os.kill(pid, signal.SIGKILL)
            await ended.wait()
            assert "no other starts" in pool.failure
            assert (await pool.read(COMPLETIONS, ask("b"))).status == 503

    started = ReadingProcess(ReaderSetup(str(checkpoint), False, "m", Defaults(), None))
    started.wait_until_loaded()
    asyncio.run(run())
    started.stop()


def test_a_client_that_leaves_does_not_mix_up_the_answers(checkpoint):
    async def run():
        async with reading(checkpoint) as pool:
            left = [asyncio.ensure_future(pool.read("/tokenize", ask("left"))) for _ in range(5)]
            await asyncio.sleep(0)
            for each in left:
                each.cancel()
            texts = ["a" * n for n in range(1, 9)]
            answers = await asyncio.gather(*(pool.read("/tokenize", ask(text)) for text in texts))
            assert [json.loads(answer)["count"] for answer in answers] == [len(text) for text in texts]

    asyncio.run(run())


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(checkpoint):
    async def run():
        async with reading(checkpoint) as pool:
            refused = await pool.read(COMPLETIONS, ask("a b " * 1_000_000))
            assert isinstance(refused, ReadError)
            assert "4000000 characters" in refused.message

    asyncio.run(run())


def test_a_tokenizer_that_cannot_be_loaded_is_a_finding(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    started = ReadingProcess(ReaderSetup(str(tmp_path), False, "m", Defaults(), None))
    with pytest.raises(InvalidSetup, match="cannot be read"):
        started.wait_until_loaded()
    started.stop()
