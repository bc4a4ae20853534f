"""Servers on free ports of 127.0.0.1, in threads of the test process."""

import asyncio
import contextlib
import socket
import threading
import time
from types import SimpleNamespace

import httpx
import openai
import uvicorn

from draftwise.serve.app import create_app
from draftwise.serve.calls import Defaults, ServedModel
from draftwise.serve.channel import Channel
from draftwise.serve.connections import MOST_WAITING, make_config
from draftwise.serve.engine_loop import run_engine
from draftwise.serve.engine_worker import EngineWorker
from draftwise.serve.entrance import AccessRules
from draftwise.serve.http_server import ServerOptions, bind
from draftwise.serve.reading import read_body


class DirectReader:
    """Reads bodies in this process, while everything else waits."""

    def __init__(self, model):
        self._model = model

    def connect(self):
        return contextlib.nullcontext()

    async def read(self, kind, body):
        await asyncio.sleep(0)
        return read_body(kind, body, self._model)


def start_thread(build):
    """Start an engine in a thread of this process; return what stands for its process."""
    ours, theirs = socket.socketpair()

    def run():
        with theirs:
            run_engine(build, Channel(theirs))

    thread = threading.Thread(target=run, name="draftwise-engine", daemon=True)
    thread.start()

    def join(*, patient=True):
        thread.join()
        return "its thread ended"

    return SimpleNamespace(channel=Channel(ours), join=join, describe_end=lambda: "its thread ended")


@contextlib.contextmanager
def serving(engine, **options):
    """Serve an engine that runs in a thread; yields its URL, clients, worker and the engine itself."""
    with serving_launched(start_thread(lambda _: engine), engine.tokenizer, **options) as server:
        server.engine = engine
        yield server


@contextlib.contextmanager
def serving_launched(launched, tokenizer, *, max_waiting=8, defaults=None, tool_call_parser=None, **access):
    """Serve an engine that was started anywhere."""
    worker = EngineWorker(launched, max_waiting=max_waiting)
    worker.wait_until_built("m")
    config = worker.about.config
    model = ServedModel(
        name="m",
        tokenizer=tokenizer,
        max_model_len=config.max_model_len or 1,
        defaults=defaults or Defaults(),
        most_sequences=config.num_slots + max_waiting,
        tool_call_parser=tool_call_parser,
    )
    app = create_app(
        worker, tokenizer=tokenizer, model_name="m", reader=DirectReader(model), access=AccessRules(**access)
    )
    listener = bind(ServerOptions(port=0))
    listener.listen()  # what comes before the server's thread has begun waits, and is not refused
    server = uvicorn.Server(make_config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    listener.listen(MOST_WAITING)  # as `HttpServer` does: what a full queue drops may end with a reset
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with (
            httpx.Client(base_url=url, timeout=60) as http,
            openai.OpenAI(
                base_url=f"{url}/v1", api_key=access.get("api_key") or "-", max_retries=0, timeout=60
            ) as client,
        ):
            yield SimpleNamespace(url=url, http=http, client=client, worker=worker)
    finally:
        server.should_exit = True
        thread.join()
        worker.stop()
