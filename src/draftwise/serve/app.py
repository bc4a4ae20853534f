"""The HTTP endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from draftwise.engine.text.tokenizer import Tokenizer
from draftwise.serve.answers import make_answer
from draftwise.serve.asgi import ApiKey, EventStream, read_body, run_until_disconnect
from draftwise.serve.calls import Model, read_chat, read_completion
from draftwise.serve.defaults import Defaults
from draftwise.serve.errors import EXCEPTION_HANDLERS
from draftwise.serve.fields import parse_body
from draftwise.serve.stats_log import StatsLog
from draftwise.serve.worker import EngineWorker
from draftwise.version import __version__

__all__ = ["create_app"]

logger = logging.getLogger("draftwise.serve")

_LOG_EVERY_S = 10.0
_CLIENT_GONE = 499
"""nginx's status for a client that closed the connection; nobody reads it."""


def create_app(
    worker: EngineWorker,
    *,
    tokenizer: Tokenizer,
    model_name: str,
    defaults: Defaults,
    api_key: str | None = None,
    tool_call_parser: str | None = None,
) -> Starlette:
    """Return the application over a worker whose engine is built."""
    endpoints = _Endpoints(worker, tokenizer, model_name, defaults, tool_call_parser)
    return Starlette(
        routes=[
            Route("/v1/completions", endpoints.completions, methods=["POST"]),
            Route("/v1/chat/completions", endpoints.chat, methods=["POST"]),
            Route("/v1/models", endpoints.models),
            Route("/health", endpoints.health),
            Route("/version", endpoints.version),
            Route("/metrics", endpoints.metrics),
        ],
        middleware=[Middleware(ApiKey, key=api_key)] if api_key else [],
        exception_handlers=EXCEPTION_HANDLERS,
        lifespan=endpoints.lifespan,
    )


class _Endpoints:
    def __init__(
        self,
        worker: EngineWorker,
        tokenizer: Tokenizer,
        model_name: str,
        defaults: Defaults,
        tool_call_parser: str | None,
    ) -> None:
        self._worker = worker
        self._about = worker.about
        limit = worker.about.config.max_model_len
        assert limit is not None, "the engine resolves it"
        self._model = Model(
            name=model_name,
            tokenizer=tokenizer,
            max_model_len=limit,
            defaults=defaults,
            tool_call_parser=tool_call_parser,
        )
        self._created = int(time.time())

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, read_completion)

    async def chat(self, request: Request) -> Response:
        return await self._answer(request, read_chat)

    async def _answer(self, request: Request, read: Callable[..., Awaitable[tuple]]) -> Response:
        arrived = time.monotonic()
        call, requests = await read(parse_body(await read_body(request)), self._model)
        generation = await self._worker.submit(requests, arrived=arrived)
        if call.stream:
            return EventStream(call, generation)
        with generation:
            answering = asyncio.ensure_future(make_answer(call, generation))
            await run_until_disconnect(answering, request.receive)
            return JSONResponse(answering.result()) if answering.done() else Response(status_code=_CLIENT_GONE)

    async def models(self, _: Request) -> Response:
        model = {
            "id": self._model.name,
            "object": "model",
            "created": self._created,
            "owned_by": "draftwise",
            "root": self._about.config.model,
            "parent": None,
            "max_model_len": self._model.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, _: Request) -> Response:
        return Response(status_code=200 if self._worker.failure is None else 503)

    async def version(self, _: Request) -> Response:
        config = self._about.config
        about = {"version": __version__, "engine": "draftwise", "dtype": config.dtype, "device": config.device}
        return JSONResponse(about | {"speculative_config": self._about.spec})

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse(self._worker.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self._worker.connect():
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
