"""How SGLang's messages become steps, with an engine that plays its part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from clock import run, steady_row
from sglang_side import SglangFrontend


class Manager:
    """Hands each message on to the requests' streams, as SGLang's tokenizer manager does."""

    def __init__(self) -> None:
        self.streams: dict[str, asyncio.Queue[dict[str, Any]]] = {}

    async def _handle_batch_output(self, message: Any) -> None:
        for rid, reason in zip(message.rids, message.finished_reasons, strict=True):
            self.streams[rid].put_nowait({"meta_info": {"finish_reason": reason}})


class Engine:
    """Gives every request two tokens a message once all `batch` of them are there."""

    def __init__(self, batch: int, *, end: str = "length") -> None:
        self.loop, self.tokenizer_manager = asyncio.new_event_loop(), Manager()
        self.batch, self.end = batch, end
        self.lengths: dict[str, int] = {}

    async def async_generate(self, *, input_ids: list[int], sampling_params: Any, stream: bool, rid: str) -> Any:
        assert (stream, sampling_params["temperature"], sampling_params["ignore_eos"]) == (True, 0.0, True)
        assert input_ids
        self.lengths[rid] = sampling_params["max_new_tokens"]
        self.tokenizer_manager.streams[rid] = asyncio.Queue()
        if len(self.lengths) == self.batch:
            self.playing = self.loop.create_task(self._play())
        return self._stream(rid)

    async def _stream(self, rid: str) -> AsyncIterator[dict[str, Any]]:
        while True:
            answer = await self.tokenizer_manager.streams[rid].get()
            yield answer
            if answer["meta_info"]["finish_reason"]:
                return

    async def _play(self) -> None:
        for count in range(2, max(self.lengths.values()) + 1, 2):
            reasons = [{"type": self.end} if count == length else None for length in self.lengths.values()]
            message = SimpleNamespace(rids=[*self.lengths], finished_reasons=reasons)
            message.completion_tokens = [count] * self.batch
            await self.tokenizer_manager._handle_batch_output(message)
            await asyncio.sleep(0)


def close(engine: Engine) -> None:
    """Let the streams end, then the loop."""
    engine.loop.run_until_complete(asyncio.sleep(0.01))
    engine.loop.close()


def test_a_message_is_a_step() -> None:
    engine = Engine(batch=3)
    start, steps = run(SglangFrontend(engine), [[1, 2]] * 3, 20)
    close(engine)
    assert [(step.tokens, step.started, step.ended) for step in steps] == [(6, 3, 0)] * 9 + [(6, 3, 3)]
    assert steady_row(start, steps, 3)["acceptance_length"] == 2.0


def test_an_aborted_request_is_an_error() -> None:
    engine = Engine(batch=1, end="abort")
    frontend = SglangFrontend(engine)
    with pytest.raises(RuntimeError, match="aborted"):
        run(frontend, [[1]], 4)
    close(engine)
