"""The HTTP endpoints, the lines that the server logs, and HTTP below: bounded bodies, disconnects, streams."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from draftwise.core import SpecStats
from draftwise.engine.engine_outputs import EngineStats
from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.serve.calls import check_model_name
from draftwise.serve.engine_worker import EngineWorker
from draftwise.serve.entrance import AccessRules, Entrance, InFlight
from draftwise.serve.errors import EXCEPTION_HANDLERS, RequestError
from draftwise.serve.generation import Call, Generation, make_answer, stream_events
from draftwise.serve.reading import Outcome, PlannedCall, Reader, ReadError
from draftwise.serve.request_fields import make_document
from draftwise.version import __version__

_LARGEST_BODY = 16 * 2**20
_OVERHEAD = 2**20
"""Maximum bytes of a body for everything except its prompt: tools, a schema, logit_bias."""
_BYTES_A_CHARACTER = 6
"""Maximum bytes per character: JSON may write one as \\u1234."""
_ALL_BODIES = 2**28
"""Maximum bytes of all bodies held at once."""
_PAUSE_S = 30.0
"""Longest wait for the next piece of a body, in seconds."""
_SLOWEST = 2**15
"""Minimum bytes of a body per second, after the first pause."""


T = TypeVar("T")


class BodyReader:
    """Reads request bodies within limits for each and for all together.

    Args:
        most_characters: maximum characters of a prompt that the model can take.
    """

    def __init__(self, most_characters: int) -> None:
        self._largest = min(_OVERHEAD + _BYTES_A_CHARACTER * most_characters, _LARGEST_BODY)
        self._held = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Yield the body, which counts toward the limit until the block ends.

        Raises:
            RequestError: 413 as soon as it is too large, 408 if its next piece is late, 503 if too many bodies are
                being read.
            ClientDisconnect: the client left.
        """
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._largest:
            raise self._too_large()
        chunks: list[bytes] = []
        size, stream, clock = 0, request.stream(), asyncio.get_running_loop().time
        began = clock()
        try:
            while True:
                try:
                    async with asyncio.timeout(min(_PAUSE_S, began + _PAUSE_S + size / _SLOWEST - clock())):
                        chunk = await anext(stream)
                except StopAsyncIteration:
                    break
                except TimeoutError:
                    raise RequestError(408, "The body did not arrive.", headers={"Connection": "close"}) from None
                size += len(chunk)
                self._held += len(chunk)
                if size > self._largest:
                    raise self._too_large()
                if self._held > _ALL_BODIES:
                    message = "Too many large bodies arrive at once. Try again later."
                    raise RequestError(503, message, headers={"Connection": "close", "Retry-After": "1"})
                chunks.append(chunk)
            yield b"".join(chunks)
        finally:
            self._held -= size

    def _too_large(self) -> RequestError:
        message = f"The body is larger than {self._largest} bytes, more than any prompt of this model takes."
        return RequestError(413, message, headers={"Connection": "close"})


async def run_until_disconnect(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """Return the result of `work`; None if the client disconnects first, which cancels it."""

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    running, gone = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
        return running.result() if running.done() else None
    finally:
        gone.cancel()
        running.cancel()


class EventStream(Response):
    """A stream of server-sent events. A disconnect aborts the generation, even between events."""

    def __init__(self, call: Call, generation: Generation) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._call = call
        self._generation = generation

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the end or until the client disconnects."""
        with self._generation:
            await run_until_disconnect(self._send_events(send), receive)

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in stream_events(self._call, self._generation):
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


logger = logging.getLogger("draftwise.serve")

_LOG_EVERY_S = 10.0
_CLIENT_GONE = 499
"""nginx's status for a client that closed the connection. It is only logged."""
_PERMISSION = {"object": "model_permission", "organization": "*", "group": None, "is_blocking": False} | {
    f"allow_{what}": what in ("sampling", "logprobs", "view")
    for what in ("create_engine", "sampling", "logprobs", "search_indices", "view", "fine_tuning")
}
"""What vLLM says of every model."""


def create_app(
    worker: EngineWorker,
    *,
    tokenizer: Tokenizer,
    model_name: str,
    reader: Reader,
    access: AccessRules | None = None,
    in_flight: InFlight | None = None,
) -> Starlette:
    """Return the ASGI application.

    Args:
        worker: worker whose engine is built.
    """
    access, in_flight = access or AccessRules(), in_flight or InFlight()
    endpoints = _Endpoints(worker, tokenizer, model_name, reader, in_flight)
    for_pages = Middleware(
        CORSMiddleware, allow_origins=access.allowed_origins, allow_methods=["*"], allow_headers=["*"]
    )
    return Starlette(
        routes=[
            Route("/v1/completions", endpoints.generate, methods=["POST"]),
            Route("/v1/chat/completions", endpoints.generate, methods=["POST"]),
            Route("/tokenize", endpoints.generate, methods=["POST"]),
            Route("/detokenize", endpoints.generate, methods=["POST"]),
            Route("/v1/models", endpoints.models),
            Route("/v1/models/{name:path}", endpoints.model),
            Route("/health", endpoints.health),
            Route("/ping", endpoints.health, methods=["GET", "POST"]),
            Route("/load", endpoints.load),
            Route("/version", endpoints.version),
            Route("/metrics", endpoints.metrics),
            Route("/openapi.json", endpoints.openapi),
        ],
        middleware=[
            *([for_pages] if access.allowed_origins else []),
            Middleware(Entrance, rules=access),
            Middleware(in_flight.wrap),
        ],
        exception_handlers=EXCEPTION_HANDLERS,
        lifespan=endpoints.lifespan,
    )


class _Endpoints:
    def __init__(
        self, worker: EngineWorker, tokenizer: Tokenizer, model_name: str, reader: Reader, in_flight: InFlight
    ) -> None:
        self._worker = worker
        self._in_flight = in_flight
        self._about = worker.about
        limit = worker.about.config.max_model_len
        assert limit is not None, "the engine resolves it"
        self._tokenizer, self._reader = tokenizer, reader
        self._name, self._max_model_len = model_name, limit
        self._bodies = BodyReader(limit * tokenizer.longest_token)
        self._created = int(time.time())

    async def generate(self, request: Request) -> Response:
        arrived = time.monotonic()
        outcome = await self._read(request)
        if not isinstance(outcome, PlannedCall):
            return _respond(outcome)
        call = outcome.plan.open(self._tokenizer)
        submitting = self._worker.submit(outcome.requests, arrived=arrived)
        generation = await run_until_disconnect(submitting, request.receive)
        if generation is None:
            return _respond(None)
        if call.stream:
            return EventStream(call, generation)
        with generation:
            return _respond(await run_until_disconnect(make_answer(call, generation), request.receive))

    async def _read(self, request: Request) -> Outcome | None:
        """Return what the body asks for; None if the client left."""
        try:
            async with self._bodies.read(request) as body:
                reading = self._reader.read(request.scope["path"], body)
                outcome = await run_until_disconnect(reading, request.receive)
        except ClientDisconnect:
            return None
        if isinstance(outcome, ReadError):
            headers = {"Retry-After": "1"} if outcome.status == 503 else None
            raise RequestError(*outcome[:2], param=outcome.param, headers=headers)
        return outcome

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._describe_model()]})

    async def model(self, request: Request) -> Response:
        check_model_name(request.path_params["name"], self._name)
        return JSONResponse(self._describe_model())

    def _describe_model(self) -> dict[str, Any]:
        about = {"id": self._name, "object": "model", "created": self._created, "owned_by": "draftwise"}
        about |= {"root": self._about.config.model, "parent": None, "max_model_len": self._max_model_len}
        permission = _PERMISSION | {"id": f"modelperm-{self._name}", "created": self._created}
        return about | {"permission": [permission]}

    async def health(self, _: Request) -> Response:
        return Response(status_code=200 if self._worker.failure is None and not self._in_flight.is_closing else 503)

    async def load(self, _: Request) -> Response:
        return JSONResponse({"server_load": self._in_flight.count})

    async def version(self, request: Request) -> Response:
        """Return the version, and what is served only to clients with access."""
        about: dict[str, Any] = {"version": __version__}
        if request.scope["draftwise.knows_key"]:
            config = self._about.config
            about |= {"engine": "draftwise", "dtype": config.dtype, "device": config.device}
            about["speculative_config"] = self._about.spec
        return JSONResponse(about)

    async def openapi(self, _: Request) -> Response:
        return Response(self._document, media_type="application/json")

    @cached_property
    def _document(self) -> bytes:
        return bytes(JSONResponse(make_document()).body)

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse(self._worker.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self._worker.connect(), self._reader.connect():
            logging_task = asyncio.create_task(self._log_stats())
            yield
            logging_task.cancel()

    async def _log_stats(self) -> None:
        worker = self._worker
        device = "CPU" if self._about.config.device == "cpu" else "GPU"
        log = StatsLog(worker.stats, k=self._about.k, device=device, now=time.monotonic())
        while True:
            await asyncio.sleep(_LOG_EVERY_S)
            for line in log.make_lines(worker.stats, time.monotonic()):
                logger.info(line)


def _respond(content: Outcome | None) -> Response:
    """Return JSON as a response; None: the client left, so nobody reads it."""
    if content is None:
        return Response(status_code=_CLIENT_GONE)
    assert isinstance(content, bytes)
    return Response(content, media_type="application/json")


class StatsLog:
    """Turns snapshots into log lines about the time since the previous one, as vLLM 0.32.0's loggers.py."""

    def __init__(self, start: EngineStats, *, k: int | None, device: str, now: float) -> None:
        self._last, self._last_time = start, now
        self._k = k
        self._device = device
        self._was_idle = True

    def make_lines(self, stats: EngineStats, now: float) -> list[str]:
        """Return the lines of the window that ends now: empty if idle, with a draft line only if there were drafts."""
        before, elapsed_s = self._last, max(now - self._last_time, 1e-9)
        self._last, self._last_time = stats, now
        prompt = (stats.prompt_tokens - before.prompt_tokens) / elapsed_s
        generation = (stats.generation_tokens - before.generation_tokens) / elapsed_s
        idle = not (prompt or generation or stats.num_running or stats.num_waiting)
        was_idle, self._was_idle = self._was_idle, idle
        if idle and was_idle:
            return []
        queries = stats.prefix_cache_queries - before.prefix_cache_queries
        hits = stats.prefix_cache_hits - before.prefix_cache_hits
        preemptions = stats.num_preemptions - before.num_preemptions
        parts = [
            f"Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s",
            f"Avg generation throughput: {generation:.1f} tokens/s",
            f"Running: {stats.num_running} reqs",
            f"Waiting: {stats.num_waiting} reqs",
            *([f"Preemptions: {preemptions}"] if preemptions else []),
            f"{self._device} KV cache usage: {stats.kv_cache_usage * 100:.1f}%",
            *([f"Prefix cache hit rate: {hits / queries * 100:.1f}%"] if queries else []),
        ]
        drafted = stats.spec - before.spec
        spec = [format_spec_line(drafted, self._k, elapsed_s)] if self._k is not None and drafted.num_drafts else []
        return [", ".join(parts), *spec]


def format_spec_line(stats: SpecStats, k: int, elapsed_s: float) -> str:
    """Return vLLM's log line about one window's drafts."""
    assert stats.acceptance_length is not None
    rates = stats.rate_per_pos + (0.0,) * (k - len(stats.rate_per_pos))
    return (
        "SpecDecoding metrics: "
        f"Mean acceptance length: {stats.acceptance_length:.2f}, "
        f"Accepted throughput: {stats.num_accepted_tokens / elapsed_s:.2f} tokens/s, "
        f"Drafted throughput: {stats.num_draft_tokens / elapsed_s:.2f} tokens/s, "
        f"Accepted: {stats.num_accepted_tokens} tokens, Drafted: {stats.num_draft_tokens} tokens, "
        f"Per-position acceptance rate: {', '.join(f'{rate:.3f}' for rate in rates)}, "
        f"Avg Draft acceptance rate: {(stats.acceptance_rate or 0) * 100:.1f}%"
    )
