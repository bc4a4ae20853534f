"""Sends one prompt to an OpenAI-compatible server and writes down when which tokens came back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from draftwise.backends import Backend
from draftwise.core import Answer, BackendError, Prompt, Timing
from draftwise.measure.schedule import Turn

__all__ = ["Client"]

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
"""Optional request fields, fullest first: what vLLM takes, down to what any server takes."""


@dataclass(slots=True)
class _Stream:
    """One answer as it arrives."""

    chunks: list[tuple[float, int]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: tuple[int, ...] = ()
    usage: dict[str, Any] = field(default_factory=dict)
    counted: int = 0
    counts_exact: bool = True
    finish_reason: str | None = None
    error: str | None = None

    def add(self, time: float, event: dict[str, Any]) -> None:
        """Take in one server-sent event that arrived at `time`."""
        if "error" in event:
            self.error = _message(event)
            return
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", ()):
            text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            self.text.append(text)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.token_ids += choice.get("token_ids") or ()
            self.prompt_token_ids = self.prompt_token_ids or tuple(choice.get("prompt_token_ids") or ())
            if count := self._count(event, choice, text):
                self.chunks.append((time, count))
                self.counted += count
        self.prompt_token_ids = self.prompt_token_ids or tuple(event.get("prompt_token_ids") or ())

    def _count(self, event: dict[str, Any], choice: dict[str, Any], text: str) -> int:
        """Return how many tokens a chunk brought."""
        if choice.get("token_ids") is not None:
            return len(choice["token_ids"])
        if event.get("usage"):
            return int(event["usage"].get("completion_tokens", 0)) - self.counted
        if not text:
            return 0
        self.counts_exact = False
        return 1

    def settle(self) -> None:
        """Give the tokens that the chunks did not account for to the last chunk: their total is exact at least."""
        missing = int(self.usage.get("completion_tokens", 0)) - self.counted
        if missing > 0 and self.chunks:
            time, count = self.chunks[-1]
            self.chunks[-1] = (time, count + missing)


@dataclass(slots=True, kw_only=True)
class Client:
    """Asks one backend.

    Args:
        backend: a started one.
        model: name to send.
        temperature: of every request; 0 is greedy.
        salt: makes the prompts of this session new to the server's prefix cache.
        optional: request fields that this server takes, found by `Client.greet`.
    """

    backend: Backend
    model: str
    temperature: float = 0.0
    salt: str = ""
    optional: dict[str, Any] = field(default_factory=dict)

    @classmethod
    async def greet(cls, backend: Backend, hello: Prompt, *, temperature: float, salt: str) -> Client:
        """Return a client that sends the most telling request that the server accepts.

        Raises:
            BackendError: it accepts none.
        """
        client = cls(backend=backend, model=(await backend.describe()).model, temperature=temperature, salt=salt)
        turn = Turn(number=-1, arm=backend.name, workload="", repeat=0, prompts=(hello,))
        for client.optional in _DIALECTS:
            answer = await client.ask(turn, hello, seed=0)
            if answer.error is None:
                return client
        raise BackendError(f"{backend.name}: {backend.url} refuses a plain request: {answer.error}")

    async def ask(self, turn: Turn, prompt: Prompt, *, seed: int) -> Answer:
        """Return the answer to a prompt; a refusal by the server becomes its `error`.

        Raises:
            BackendError: the connection broke.
        """
        request = self._request(turn, prompt, seed)
        stream, now = _Stream(), self.backend.now
        sent = now()
        try:
            await self._receive(request, stream)
        except httpx.HTTPError as error:
            raise BackendError(
                f"{turn.arm}: the connection to {self.backend.url} broke ({type(error).__name__}) "
                f"at prompt {prompt.id!r}. {self.backend.complaint()}"
            ) from None
        finished = now()
        stream.settle()
        return Answer(
            turn=turn.number,
            arm=turn.arm,
            workload=turn.workload,
            prompt_id=prompt.id,
            repeat=turn.repeat,
            timing=Timing(sent=sent, chunks=tuple(stream.chunks), finished=finished),
            text="".join(stream.text),
            token_ids=tuple(stream.token_ids),
            prompt_token_ids=stream.prompt_token_ids,
            num_prompt_tokens=stream.usage.get("prompt_tokens"),
            finish_reason=stream.finish_reason,
            counts_exact=stream.counts_exact,
            error=stream.error or (None if stream.chunks else "the answer holds no token"),
        )

    def _request(self, turn: Turn, prompt: Prompt, seed: int) -> httpx.Request:
        path = "/v1/chat/completions" if prompt.messages else "/v1/completions"
        content: dict[str, Any] = {"messages": prompt.messages} if prompt.messages else {"prompt": prompt.text}
        settings = {"max_tokens": prompt.max_tokens, "temperature": self.temperature, "seed": seed, "stream": True}
        body = {"model": self.model, **content, **settings, **self.optional}
        if "cache_salt" in body:
            body["cache_salt"] = f"{self.salt}-{turn.repeat}"
        return self.backend.client.build_request("POST", path, json=body)

    async def _receive(self, request: httpx.Request, stream: _Stream) -> None:
        response = await self.backend.client.send(request, stream=True)
        try:
            if response.is_success:
                async for time, event in _events(response, self.backend.now):
                    stream.add(time, event)
            else:
                stream.error = _message(_parse(await response.aread()))
        finally:
            await response.aclose()

    async def next_two(self, token_ids: list[int]) -> dict[str, float] | None:
        """Return the two most likely next tokens with their log-probabilities, None where the server cannot say."""
        body = {"model": self.model, "prompt": token_ids, "max_tokens": 1, "temperature": 0, "logprobs": 2}
        for extra in ({"return_tokens_as_token_ids": True}, {}):
            response = await self.backend.client.post("/v1/completions", json=body | extra)
            if response.is_success:
                logprobs = response.json()["choices"][0].get("logprobs") or {}
                first: dict[str, float] | None = (logprobs.get("top_logprobs") or [None])[0]
                return first
        return None


async def _events(response: httpx.Response, now: Callable[[], float]) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """Yield server-sent events with their arrival. (httpx's own line splitter cuts at U+2028 inside JSON text.)"""
    rest = b""
    async for data in response.aiter_bytes():
        time = now()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (payload := line[5:].strip()) != b"[DONE]":
                yield time, _parse(payload)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"error": {"message": data.decode(errors="replace")[:200]}}


def _message(answer: dict[str, Any]) -> str:
    error = answer.get("error", answer)
    return str(error.get("message", error) if isinstance(error, dict) else error)
