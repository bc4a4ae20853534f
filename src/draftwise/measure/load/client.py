"""Talks to OpenAI-compatible servers: finds their dialect, builds requests, parses replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from draftwise.backends import Backend, BrokenStream, Exchange, Piece
from draftwise.backends.patience import BUSY, Patience
from draftwise.core import Answer, BackendError, Prompt, Timing
from draftwise.measure.load.response import ParsedResponse
from draftwise.runs.turn_order import Turn

_USAGE = {"stream_options": {"include_usage": True}}
_RUNNING_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
_TOKEN_IDS = {"return_token_ids": True}
_SALT = {"cache_salt": ""}
_DIALECTS: tuple[dict[str, Any], ...] = (
    _RUNNING_USAGE | _TOKEN_IDS | _SALT,
    _RUNNING_USAGE | _TOKEN_IDS,
    _RUNNING_USAGE,
    _USAGE,
    {},
)
"""Sets of optional request fields, from vLLM's down to what any server accepts."""
_FULL_LENGTH = ("ignore_eos", "min_tokens")
"""Fields that force an answer's length, best first: `min_tokens` also changes what may be sampled."""
_LONG = 20
"""Multiple of the shortest request, which is about one block of 16 tokens."""
_OK = 200
_CUT = "the stream ended before the answer did"
_SEEDS = 2**31
"""Seeds lie below this: every server accepts such integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """One request of a turn."""

    turn: Turn
    prompt: Prompt
    copy: int = 0
    """Number of earlier requests with this prompt in the turn, including background requests."""
    measured: bool = True
    """False for a background request, which only maintains the load."""
    intended: float | None = None
    """Intended send time in an open loop, on the backend's clock."""


@dataclass(slots=True, kw_only=True)
class Client:
    """Sends requests to one backend.

    Args:
        backend: started server.
        model: model name to send.
        salt: makes this session's prompts miss earlier prefix-cache entries.
        optional: request fields that this server accepts, found by `Client.greet`.
        full_length: field that forces an answer's length. None: the server accepts no such field.
        patience_s: seconds for which to retry a request outside turns if the connection breaks.
        keeps_apart: whether the server was seen to miss its prefix cache under another salt.
    """

    backend: Backend
    model: str
    salt: str = ""
    optional: Mapping[str, Any] = field(default_factory=dict)
    full_length: str | None = None
    keeps_apart: bool = False
    patience_s: float = 1.0
    max_model_len: int | None = None
    """Tokens of its context, as it tells."""

    @classmethod
    async def greet(cls, backend: Backend, hello: Prompt, *, salt: str) -> Client:
        """Return a client that sends as many optional fields as the server accepts.

        Raises:
            BackendError: the server accepts no form of the request.
        """
        about = await backend.describe()
        client = cls(backend=backend, model=about.model, salt=salt, max_model_len=about.max_model_len)
        for client.optional in _DIALECTS:
            if (refusal := await client._try(hello)) is None:
                break
        else:
            raise BackendError(f"{backend.name}: {backend.url} rejects a plain request: {refusal}. Check its log.")
        for client.full_length in _FULL_LENGTH:
            if await client._try(replace(hello, ignore_eos=True)) is None:
                break
        else:
            client.full_length = None
        client.keeps_apart = await client._sees_no_hit(_lengthen(hello))
        return client

    async def _try(self, hello: Prompt, *, repeat: int = 0) -> str | None:
        """Return why the server refuses a request, None when it does not."""
        turn = Turn(number=-1, arm=self.backend.name, workload="", repeat=repeat, prompts=(hello,))
        return (await self.ask(turn, hello, seed=0)).error

    async def _sees_no_hit(self, prompt: Prompt) -> bool:
        """Return whether a prompt that comes back in another repetition finds nothing in the server's prefix cache.

        A server may take a salt and not go by it, so its counters tell; where it has none, nothing is known.
        """
        await self._try(prompt, repeat=1)
        before = (await self.backend.counters()).prefix_hits
        await self._try(prompt, repeat=2)
        return before is not None and (await self.backend.counters()).prefix_hits == before

    async def ask(self, turn: Turn, prompt: Prompt, *, seed: int, extra: Mapping[str, Any] | None = None) -> Answer:
        """Return the answer to a prompt outside any turn. If the server refuses, the reason is in `error`.

        Nothing is measured, so the client retries if the connection breaks.

        Args:
            turn: turn whose settings to use.
            prompt: prompt to answer.
            seed: the run's seed.
            extra: further fields of the request body, such as tools.

        Raises:
            BackendError: the connection broke on every attempt.
        """
        request, patience = LoadRequest(turn=turn, prompt=prompt), Patience(self.patience_s)
        while True:
            try:
                exchange = await self.send(request, self.encode(request, seed=seed, extra=extra))
                break
            except BackendError:
                if (pause_s := patience.pause_s()) is None:
                    raise
                await asyncio.sleep(pause_s)
        response = ParsedResponse(exchange)
        for _ in response.steps():
            await asyncio.sleep(0)
        return to_answer(request, exchange, response)

    def encode(self, request: LoadRequest, *, seed: int, extra: Mapping[str, Any] | None = None) -> bytes:
        """Return the body of a request. Its seed follows from the run's seed, prompt, repetition and copy."""
        turn, prompt = request.turn, request.prompt
        content: dict[str, Any] = {"messages": prompt.messages} if prompt.messages else {"prompt": prompt.text}
        settings = {
            "max_tokens": prompt.max_tokens,
            "temperature": turn.condition.temperature,
            "seed": _mix(seed, prompt.id, turn.repeat, request.copy),
            "stream": True,
        }
        body = {"model": self.model, **content, **settings, **self.optional, **(extra or {})}
        if "cache_salt" in body:
            body["cache_salt"] = self._salt(request)
        if prompt.ignore_eos and self.full_length:
            body[self.full_length] = True if self.full_length == "ignore_eos" else prompt.max_tokens
        return json.dumps(body, separators=(",", ":")).encode()

    def _salt(self, request: LoadRequest) -> str:
        """Return what keeps this request from the cached prefix of the same text in another attempt, load, copy or
        workload: short and long prompts may begin alike.

        Prompts that are sent in the same one share theirs, as the prompts of real users do.
        """
        kind = "" if request.measured else "unmeasured-"
        turn = request.turn
        name = f"{self.salt}-{turn.workload}-{turn.condition.label}-{turn.repeat}-{turn.attempt}-{kind}{request.copy}"
        return sha256(name.encode()).hexdigest()  # vLLM 0.33 takes 128 characters, and not all

    async def send(self, request: LoadRequest, body: bytes, received: list[Piece] | None = None) -> Exchange:
        """Send a request and return the raw answer. If the server is busy, retry when it says.

        Args:
            request: request that the body encodes.
            body: from `encode`.
            received: list that collects pieces as they arrive, also if the call is canceled.

        Raises:
            BackendError: the connection broke.
        """
        path = "/v1/chat/completions" if request.prompt.messages else "/v1/completions"
        patience, refusals = Patience(), 0
        while True:
            try:
                exchange = await self.backend.stream(path, body, received)
            except BrokenStream as error:
                raise BackendError(f"On prompt {request.prompt.id!r}: {error}") from None
            # Open loops wait for no answer, so that a server that has no time for them is a result.
            waits = request.intended is None and exchange.status in BUSY
            if not waits or (pause_s := patience.pause_s(exchange.retry_after)) is None:
                return replace(exchange, refusals=refusals) if refusals else exchange
            if received is not None:
                received.clear()
            refusals += 1
            await asyncio.sleep(pause_s)

    async def next_best(self, token_ids: list[int], count: int) -> dict[str, float] | None:
        """Return the most likely next tokens with their log-probabilities; None if the server does not return any."""
        body = {"model": self.model, "prompt": token_ids, "max_tokens": 1, "temperature": 0, "logprobs": count}
        for extra in ({"return_tokens_as_token_ids": True}, {}):
            exchange = await self.backend.stream("/v1/completions", json.dumps(body | extra).encode())
            if exchange.status == _OK:
                return _read_best(b"".join(piece for _, piece in exchange.received))
        return None


def _lengthen(prompt: Prompt) -> Prompt:
    """Return a prompt of several blocks of a prefix cache, which keeps whole blocks only."""
    if prompt.text is not None:
        return replace(prompt, text=_LONG * prompt.text)
    (only,) = prompt.messages
    return replace(prompt, messages=({**only, "content": _LONG * only["content"]},))


def _read_best(answer: bytes) -> dict[str, float] | None:
    try:
        best: dict[str, float] = json.loads(answer)["choices"][0]["logprobs"]["top_logprobs"][0]
    except (ValueError, LookupError, TypeError):  # a server that took the fields but does not know them
        return None
    return best


def to_answer(request: LoadRequest, exchange: Exchange, response: ParsedResponse) -> Answer:
    """Return the answer from a fully parsed response."""
    turn = request.turn
    return Answer(
        turn=turn.number,
        arm=turn.arm,
        workload=turn.workload,
        prompt_id=request.prompt.id,
        repeat=turn.repeat,
        condition=turn.condition.label,
        copy=request.copy,
        measured=request.measured,
        timing=Timing(
            sent=exchange.sent, chunks=tuple(response.chunks), finished=exchange.finished, intended=request.intended
        ),
        text=response.text,
        token_ids=tuple(response.token_ids),
        prompt_token_ids=response.prompt_token_ids,
        num_prompt_tokens=response.usage.get("prompt_tokens"),
        finish_reason=response.finish_reason,
        counts_exact=response.counts_exact,
        total_exact=response.total_exact,
        acceptance=response.acceptance,
        refusals=exchange.refusals,
        error=_CUT if request.measured and response.is_cut else response.error,
    )


def _mix(*parts: object) -> int:
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:8], "big") % _SEEDS
