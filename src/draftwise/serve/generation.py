"""Turns the increments of one HTTP call into a JSON answer or server-sent events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from types import TracebackType
from typing import Any

from draftwise.engine.engine_outputs import Delta
from draftwise.serve.channel import PackedRequest
from draftwise.serve.errors import RequestError, make_error_body
from draftwise.serve.formats import AnswerFormat, JsonItems, Logprobs, encode


class Generation:
    """Increments of one HTTP call's requests. Leaving its `with` block aborts unfinished requests."""

    def __init__(self, requests: Sequence[PackedRequest], abort: Callable[[Generation], None]) -> None:
        self.requests = requests
        self._abort = abort
        self._num_unfinished = sum(request.n for request in requests)
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending: list[tuple[int, Delta]] = []
        self._error: Exception | None = None
        self._arrived = asyncio.Event()

    async def wait_until_accepted(self) -> None:
        """Wait until the engine has queued the requests. Raises if it rejects them."""
        await self._accepted

    async def iterate_batches(self) -> AsyncIterator[list[tuple[int, Delta]]]:
        """Yield the increments since the last batch, each with its prompt's index. Raises if the generation fails."""
        while self._num_unfinished:
            await self._arrived.wait()
            self._arrived.clear()
            batch, self._pending = self._pending, []
            if batch:
                self._num_unfinished -= sum(delta.finish_reason is not None for _, delta in batch)
                yield batch
            if self._error is not None and self._num_unfinished:
                raise self._error

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._num_unfinished:
            self._abort(self)

    def accept(self) -> None:
        """Record that the requests are queued."""
        if not self._accepted.done():
            self._accepted.set_result(None)

    def push(self, prompt_index: int, delta: Delta) -> None:
        """Add an increment of one of the prompts."""
        self._pending.append((prompt_index, delta))
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """Record that generation failed, and why."""
        if not self._accepted.done():
            self._accepted.set_exception(error)
            return
        self._error = error
        self._arrived.set()


logger = logging.getLogger("draftwise.serve")

_SLICE = 2**11
"""Numbers that are rendered before other requests go on: a few milliseconds."""
_INCREMENT, _ENTRY = 16, 16
"""Numbers that take as long to render as what is around those of an increment, and characters as long to join as one.
"""
_PIECE = 64
"""Items of a list that are encoded at once."""


@dataclass(slots=True, kw_only=True)
class Call:
    """One accepted HTTP call, and the format of its answer."""

    call_id: str
    model: str
    format: AnswerFormat
    prompt_lengths: list[int]
    n: int
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    num_completion_tokens: dict[int, int] = field(default_factory=dict)
    """Tokens generated so far, by choice index."""
    num_cached_tokens: dict[int, int] = field(default_factory=dict)
    """Prompt tokens found in the prefix cache, by prompt index."""

    def count(self, prompt_index: int, delta: Delta) -> int:
        """Count an increment's tokens; return the index of its choice."""
        index = prompt_index * self.n + delta.index
        self.num_completion_tokens[index] = self.num_completion_tokens.get(index, 0) + len(delta.token_ids)
        self.num_cached_tokens[prompt_index] = delta.num_cached_tokens
        return index

    def make_usage(self) -> dict[str, Any]:
        """Return OpenAI's usage object for the whole call."""
        completion, cached = sum(self.num_completion_tokens.values()), sum(self.num_cached_tokens.values())
        return _usage(sum(self.prompt_lengths), completion, cached)

    def make_choice_usage(self, index: int) -> dict[str, Any]:
        """Return the usage object of one choice so far (vLLM's continuous_usage_stats)."""
        prompt = index // self.n
        num_tokens, num_cached = self.num_completion_tokens.get(index, 0), self.num_cached_tokens.get(prompt, 0)
        return _usage(self.prompt_lengths[prompt], num_tokens, num_cached)

    def wrap(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Wrap choices as an answer or a chunk."""
        return {"id": self.call_id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def _usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


async def make_answer(call: Call, generation: Generation) -> bytes:
    """Return the complete answer as JSON once everything is generated.

    Log-probabilities are encoded as they arrive: encoding all at the end would delay other answers.
    """
    parts: dict[int, tuple[int, list[Delta]]] = {}
    logprobs: dict[int, Logprobs | None] = {}
    pause = _Pause()
    async for batch in generation.iterate_batches():
        for prompt_index, delta in batch:
            await pause.after(_count_entries(delta))
            if _is_only_about_prompt(call, prompt_index, delta):
                continue
            index = call.count(prompt_index, delta)
            more = call.format.make_logprobs(prompt_index, delta)
            if (told := logprobs.setdefault(index, more)) is not None and told is not more:
                for name, items in (more or {}).items():
                    told[name] += items
            parts.setdefault(index, (prompt_index, []))[1].append(replace(delta, logprobs=None))
    choices = []
    for index, (prompt_index, deltas) in sorted(parts.items()):
        choice = call.format.make_choice(prompt_index, _join(deltas), logprobs[index])
        choices.append({"index": index} | choice)
        await pause.after(len(deltas))
    usage = call.make_usage() | {"completion_tokens_details": None}
    answer = call.wrap(call.format.whole_object, choices) | {"usage": usage} | call.format.describe_answer()
    pieces = []
    for piece in _encode_in_pieces(answer):
        pieces.append(piece)
        await pause.after(len(piece) // _ENTRY)
    return "".join(pieces).encode()


class _Pause:
    """Lets other requests go on whenever so much was rendered that they would notice."""

    def __init__(self) -> None:
        self._entries = 0

    async def after(self, entries: int) -> None:
        """Pause if these entries fill a slice."""
        self._entries += entries
        if self._entries >= _SLICE:
            self._entries = 0
            await asyncio.sleep(0)


def _count_entries(delta: Delta) -> int:
    """Return how much work an increment is, in numbers."""
    ranked = (*(delta.logprobs or ()), *(delta.prompt_logprobs or ()))
    return _INCREMENT + len(delta.token_ids) + sum(len(each or ()) for each in ranked)


def _is_only_about_prompt(call: Call, prompt_index: int, delta: Delta) -> bool:
    """Return whether an increment is no part of a choice; take note of what it says about the prompt."""
    if delta.prompt_logprobs is None:
        return False
    call.format.note_prompt(prompt_index, delta.prompt_logprobs)
    return not delta.token_ids and delta.finish_reason is None


def _encode_in_pieces(value: Any) -> Iterator[str]:
    """Yield JSON in short pieces."""
    if isinstance(value, JsonItems):
        for start, inner in zip(chain("[", repeat(",")), value, strict=False):
            yield start + inner
        yield "]" if value else "[]"
    elif isinstance(value, dict) and value:
        for start, (key, inner) in zip(chain("{", repeat(",")), value.items(), strict=False):
            yield f"{start}{encode(str(key))}:"
            yield from _encode_in_pieces(inner)
        yield "}"
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for start, inner in zip(chain("[", repeat(",")), value, strict=False):
            yield start
            yield from _encode_in_pieces(inner)
        yield "]"
    elif isinstance(value, list) and len(value) > _PIECE:
        for first in range(0, len(value), _PIECE):
            yield ("," if first else "[") + encode(value[first : first + _PIECE])[1:-1]
        yield "]"
    else:
        yield encode(value)


def _join(deltas: list[Delta]) -> Delta:
    """Return the increments of one completion as one, without their log-probabilities."""
    return replace(
        deltas[-1],
        text="".join(delta.text for delta in deltas),
        token_ids=[token for delta in deltas for token in delta.token_ids],
        logprobs=None,
        prompt_logprobs=None,
    )


async def stream_events(call: Call, generation: Generation) -> AsyncIterator[bytes]:
    """Yield server-sent events: the chunks, then usage if requested, then `[DONE]`. An error ends the stream early."""
    num_choices = call.n * len(generation.requests)
    head = _chunk_head(call)
    for opening in call.format.make_openings():
        for index in range(num_choices):
            chunk = call.wrap(call.format.chunk_object, [{"index": index} | opening])
            usage = {"usage": call.make_choice_usage(index)} if call.continuous_usage else {}
            yield _event(chunk | call.format.describe_prompt() | usage)
    pause = _Pause()
    try:
        async for batch in generation.iterate_batches():
            chunks: list[str] = []
            for prompt_index, delta in batch:
                if not _is_only_about_prompt(call, prompt_index, delta):
                    chunks.append(_chunk(call, head, prompt_index, delta))
                await pause.after(_count_entries(delta))
            if chunks:
                yield "".join(chunks).encode()
    except RequestError as error:
        yield _event(make_error_body(error))
    except Exception:
        logger.exception("A stream failed.")
        yield _event(make_error_body(RequestError(500, "The server failed; see its log.")))
    else:
        if call.include_usage:
            yield _event(call.wrap(call.format.chunk_object, []) | {"usage": call.make_usage()})
    yield b"data: [DONE]\n\n"


def _chunk_head(call: Call) -> str:
    """Return the start of every chunk of the call, up to its choice; rendered once, as chunks come by the thousand."""
    empty = encode(call.wrap(call.format.chunk_object, []))
    return f"data: {empty.removesuffix(']}')}"


def _chunk(call: Call, head: str, prompt_index: int, delta: Delta) -> str:
    index, logprobs = call.count(prompt_index, delta), call.format.make_logprobs(prompt_index, delta)
    choice = {"index": index} | call.format.make_choice(prompt_index, delta, logprobs)
    rendered = encode(choice) if logprobs is None else "".join(_encode_in_pieces(choice))
    usage = f',"usage":{encode(call.make_choice_usage(index))}' if call.continuous_usage else ""
    return f"{head}{rendered}]{usage}}}\n\n"


def _event(content: dict[str, Any]) -> bytes:
    return f"data: {encode(content)}\n\n".encode()
