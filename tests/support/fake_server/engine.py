"""The pretend engine behind the API of a real one: what each path answers."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from zlib import crc32

from draftwise.core import Counters
from tests.support.fake_server.answer import FakeAnswer, read_prompt
from tests.support.fake_server.batch import Batch
from tests.support.fake_server.metrics import FakeMetrics
from tests.support.fake_server.script import FakeScript
from tests.support.fake_server.stream import Outlet, Served, Stream, make_acceptance

__all__ = ["FakeEngine", "Incoming", "Page"]

_BLOCK = 16
"""Tokens of a block of the prefix cache, as in vLLM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A request as it came."""

    path: str
    body: bytes
    arrived: float
    """When its last byte reached this machine, on the clock of the event loop."""
    request_id: str = ""
    """Its X-Request-Id."""

    @property
    def is_chat(self) -> bool:
        """Whether it asks for a chat completion."""
        return "chat" in self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An answer that needs no time."""

    status: int = 200
    body: bytes = b"{}"
    kind: str = "application/json"


class FakeEngine:
    """Answers requests as its script says, on the clock of the event loop that it is started in.

    `served` is the truth: when each chunk of each request was really sent.
    """

    def __init__(self, script: FakeScript) -> None:
        self.script = script
        self.metrics = FakeMetrics(model=script.model, max_model_len=script.max_model_len, k=script.k)
        self.served: list[Served] = []
        self._dead = False
        self._num_requests = 0
        self._seen: dict[str, int] = {}
        self._blocks: set[tuple[str, int]] = set()

    def start(self) -> None:
        """Begin to live in the running event loop."""
        self.batch = Batch(self.script, self.metrics)
        if self.script.dies_at_s is not None:
            asyncio.get_running_loop().call_later(self.script.dies_at_s, self.die)

    def die(self) -> None:
        """Break everything in flight, and answer nothing any more."""
        self._dead = True
        self.batch.cancel_all()

    @property
    def counters(self) -> Counters:
        """Readings of the counters, with the tokens of others."""
        return self.metrics.counters(self.batch.foreign_tokens)

    def handle(self, request: Incoming, outlet: Outlet) -> Page | Stream:
        """Answer at once, or begin a stream that goes to `outlet`.

        Raises:
            ConnectionError: the server is dead.
        """
        if self._dead:
            raise ConnectionError("the fake is dead")
        path = request.path
        if path in ("/v1/completions", "/v1/chat/completions"):
            return self._generate(request, outlet)
        if path == "/metrics":
            text = self.metrics.exposition(self.batch.foreign_tokens, self.batch.load)
            return Page(body=text.encode(), kind="text/plain; version=0.0.4; charset=utf-8")
        if path == "/served":
            return _json([asdict(each) for each in self.served])
        pages: dict[str, Any] = {"/v1/models": self._models(), "/version": dict(self.script.version), "/health": {}}
        return _json(pages[path]) if path in pages else Page(status=404)

    def _models(self) -> dict[str, Any]:
        about = {"id": self.script.model, "object": "model", "created": 0, "owned_by": "fake"}
        return {"object": "list", "data": [about | {"max_model_len": self.script.max_model_len}]}

    def _generate(self, request: Incoming, outlet: Outlet) -> Page | Stream:
        script = self.script
        try:
            body = json.loads(request.body)
            prompt = read_prompt(body, chat=request.is_chat)
        except (ValueError, AttributeError) as error:
            return _refuse(400, str(error))
        if refused := [name for name in script.refuses if name in body]:
            return _refuse(400, f"unknown field {refused[0]}")
        if self.batch.refuses:
            return _refuse(503, "the queue is full")
        self._num_requests += 1
        if script.dies_after is not None and self._num_requests > script.dies_after:
            self.die()
            raise ConnectionError("the fake is dead")
        if body.get("logprobs") and not request.is_chat:
            top = {"a": -0.5, "b": -0.5 - script.gap}
            return _json({"choices": [{"index": 0, "text": "a", "logprobs": {"top_logprobs": [top]}}]})
        stream = self._make_stream(request, body, prompt, outlet)
        self.batch.add(stream)
        return stream

    def _make_stream(self, request: Incoming, body: Mapping[str, Any], prompt: str, outlet: Outlet) -> Stream:
        """Write a request down, with everything that chance decides about it."""
        script, number, asked = self.script, self._num_requests, self._seen.get(prompt, 0)
        self._seen[prompt] = asked + 1
        answer = FakeAnswer(script, body, prompt.encode(), chat=request.is_chat, number=number)
        chance = random.Random(hash((script.seed, answer.checksum, asked)))
        temperature = 1.0 if body.get("temperature") is None else body["temperature"]
        served = Served(number=number, request_id=request.request_id, prompt=answer.checksum, arrived=request.arrived)
        self.served.append(served)
        return Stream(
            answer=answer,
            outlet=outlet,
            served=served,
            hits=self._look_up(str(body.get("cache_salt", "")), answer.prompt),
            accept=make_acceptance(script, temperature, chance, known=asked > 0 and script.keeps(answer.checksum)),
            chance=chance,
            slowness=math.exp(chance.gauss(0, script.jitter)) * self._find_slowness(answer, chance),
            steps=[0] * (script.k + 1),
            fails_at=answer.num_tokens // 2 if number in script.fails else None,
        )

    def _find_slowness(self, answer: FakeAnswer, chance: random.Random) -> float:
        """Return how slow a request is because of its prompt, its number, and a draw from a heavy tail."""
        script = self.script
        slowness = script.find_cold(self._num_requests)
        if script.prompt_spread:
            slowness *= math.exp(random.Random(hash((script.seed, answer.checksum))).gauss(0, script.prompt_spread))
        share, index = script.slow_requests
        if share and chance.random() < share:
            slowness *= chance.paretovariate(index)
        return slowness

    def _look_up(self, salt: str, prompt: bytes) -> int:
        """Return how many tokens of a prompt the prefix cache holds, and keep its blocks.

        The last token is always computed, as in vLLM: its logits are needed.
        """
        if not self.script.prefix_caching:
            return 0
        hits, known, checksum = 0, True, 0
        for start in range(0, len(prompt) - _BLOCK, _BLOCK):
            checksum = crc32(prompt[start : start + _BLOCK], checksum)
            known = known and (salt, checksum) in self._blocks
            hits += _BLOCK if known else 0
            self._blocks.add((salt, checksum))
        return hits


def _json(value: Any, status: int = 200) -> Page:
    return Page(status=status, body=json.dumps(value).encode())


def _refuse(status: int, message: str) -> Page:
    return _json({"error": {"message": message, "type": "BadRequestError", "code": status}}, status)
