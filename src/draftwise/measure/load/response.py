"""Parses a completed response: server-sent events into tokens, text and arrival times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from draftwise.backends import Exchange, Piece

_DECODER = json.JSONDecoder()
_EVENTS_PER_STEP = 16
"""Events parsed at a time, about 0.1 ms."""
_LAST_PIECES = 8
"""Pieces searched for the last event: the bytes of "[DONE]" may arrive one by one."""
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning")
"""Text fields of a chat delta; vLLM has used both names for reasoning."""


class ParsedResponse:
    """The content of a response.

    Args:
        exchange: the response as it came off the wire.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.chunks: list[tuple[float, int]] = []
        self.token_ids: list[int] = []
        self.prompt_token_ids: tuple[int, ...] = ()
        self.usage: dict[str, Any] = {}
        self.acceptance: tuple[int, ...] = ()
        self.counts_exact = True
        self.finish_reason: str | None = None
        self.error: str | None = None
        self._text: list[str] = []
        self._counted = 0

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(self._text)

    @property
    def is_cut(self) -> bool:
        """Whether the stream ended early: neither a finish reason nor the last event arrived."""
        if self.finish_reason is not None or self.error is not None:
            return False
        return b"[DONE]" not in b"".join(piece for _, piece in self._exchange.received[-_LAST_PIECES:])

    @property
    def total_exact(self) -> bool:
        """Whether its token count is exact: from usage or token ids."""
        return self.counts_exact or bool(self.usage.get("completion_tokens"))

    def steps(self) -> Iterator[None]:
        """Parse the response. Yields after every few events, to let other tasks run."""
        received = self._exchange.received
        if self._exchange.status != 200:
            body = b"".join(piece for _, piece in received)
            self.error = _message(_parse(body)) if body.strip() else f"HTTP status {self._exchange.status}"
            return
        for number, (time, payload) in enumerate(_events(received), start=1):
            try:
                self._add(time, _parse(payload))
            except (AttributeError, TypeError, ValueError, KeyError):
                self.error = f"an event that is not part of the API: {payload.decode(errors='replace')[:200]}"
            if number % _EVENTS_PER_STEP == 0:
                yield
        self._settle()
        if not self.chunks and self.error is None:
            self.error = self._say_empty()

    def _say_empty(self) -> str:
        body = b"".join(piece for _, piece in self._exchange.received).strip()
        if not body or any(line.startswith(b"data:") for line in body.split(b"\n")):
            return "the answer contains no token"
        return (
            "the server answered without an event stream, although the request asked for one: "
            f"{body[:200].decode(errors='replace')}"
        )

    def _add(self, time: float, event: dict[str, Any]) -> None:
        """Take in one event that arrived at `time`."""
        if "error" in event:
            self.error = _message(event)
            return
        if usage := event.get("usage"):
            self.usage = usage
        for choice in event.get("choices") or ():
            self._add_choice(time, choice, usage)
        if "prompt_token_ids" in event:
            self._keep_prompt(event)
        if metrics := event.get("metrics"):
            speculation = metrics.get("speculative_decoding") or {}
            self.acceptance = tuple(speculation.get("acceptance_histogram") or ())

    def _add_choice(self, time: float, choice: dict[str, Any], usage: dict[str, Any] | None) -> None:
        delta = choice.get("delta") or {}
        text = choice.get("text") or "".join([delta.get(name) or "" for name in _TEXT_FIELDS if name in delta])
        self._text += [text, *_read_calls(delta)]
        if reason := choice.get("finish_reason"):
            self.finish_reason = reason
        if "prompt_token_ids" in choice:
            self._keep_prompt(choice)
        ids = choice.get("token_ids")
        if ids is not None:
            self.token_ids += ids
            count = len(ids)
        else:
            count = self._count(usage, bool(text or delta.get("tool_calls")))
        if count > 0:
            self.chunks.append((time, count))
            self._counted += count

    def _count(self, usage: dict[str, Any] | None, says_something: bool) -> int:
        """Return how many tokens a chunk without their ids brought."""
        if usage:
            return int(usage.get("completion_tokens") or 0) - self._counted
        if not says_something:
            return 0
        self.counts_exact = False
        return 1

    def _keep_prompt(self, event: dict[str, Any]) -> None:
        self.prompt_token_ids = self.prompt_token_ids or tuple(event["prompt_token_ids"] or ())

    def _settle(self) -> None:
        """Give the tokens that the chunks did not account for to the last chunk: their total is exact at least."""
        missing = int(self.usage.get("completion_tokens") or 0) - self._counted
        if missing > 0 and self.chunks:
            time, count = self.chunks[-1]
            self.chunks[-1] = (time, count + missing)


def _read_calls(delta: dict[str, Any]) -> Iterator[str]:
    """Yield what a chunk says of calls to tools."""
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        yield from filter(None, (function.get("name"), function.get("arguments")))


def _events(received: Iterable[Piece]) -> Iterator[tuple[float, bytes]]:
    """Yield what server-sent events carry, with the arrival of their last byte.

    One piece may hold several events, or a part of one; lines end with LF or CRLF, comments begin with a colon.
    """
    # (The first event of a long prompt, with its token ids, has megabytes in pieces of a few KiB: join them once.)
    parts, time = list[bytes](), 0.0
    for time, piece in received:
        parts.append(piece)
        if b"\n" in piece:
            *lines, rest = b"".join(parts).split(b"\n")
            parts = [rest]
            for line in lines:
                if line.startswith(b"data:") and (payload := line[5:].strip()) != b"[DONE]":
                    yield time, payload
    rest = b"".join(parts)
    if rest.startswith(b"data:") and (payload := rest[5:].strip()) not in (b"", b"[DONE]"):
        yield time, payload


def _parse(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
        parsed, end = _DECODER.raw_decode(text)  # (json.loads takes twice as long to see what it was given)
    except ValueError:
        parsed = None
    else:
        parsed = parsed if end == len(text) else None
    return parsed if isinstance(parsed, dict) else {"error": {"message": data.decode(errors="replace")[:200]}}


def _message(answer: dict[str, Any]) -> str:
    error = answer.get("error", answer)
    return str(error.get("message", error) if isinstance(error, dict) else error)
