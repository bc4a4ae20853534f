"""Runs the application: the socket, the start-up line, signals and the orderly end."""

from __future__ import annotations

import errno
import ipaddress
import json
import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from draftwise import __version__
from draftwise.core import InvalidSetup, SpecConfig
from draftwise.engine.config import EngineConfig
from draftwise.engine.text.tokenizer import load_tokenizer
from draftwise.serve.app import create_app
from draftwise.serve.defaults import Defaults
from draftwise.serve.launch import build_engine, start_process
from draftwise.serve.messages import Phase, Ready
from draftwise.serve.worker import EngineWorker

if TYPE_CHECKING:
    from draftwise.engine.core import Engine
    from draftwise.engine.startup import Startup

__all__ = ["ServerOptions", "bind", "serve"]

logger = logging.getLogger("draftwise.serve")

Builder = Callable[[EngineConfig, str | None, "Startup"], "Engine"]
"""From a config, a speculative config as JSON and what to tell the phases to."""

_SHUTDOWN_S = 10
"""Seconds that running requests have to finish after SIGTERM or SIGINT; then they are aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How the server is reached and by whom."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free port."""
    served_model_name: str | None = None
    """None: the model as given on the command line."""
    api_key: str | None = None
    allow_remote: bool = False
    max_waiting: int = 1024
    """Sequences that may wait while all places of the engine are taken."""


def serve(
    config: EngineConfig,
    spec: SpecConfig | None,
    options: ServerOptions,
    *,
    tell: Callable[[str], None],
    tell_phase: Callable[[Phase], None] = lambda _: None,
    build: Builder = build_engine,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        config: of the engine.
        spec: speculative config, None for plain decoding.
        options: of the server.
        tell: gets the one line that says where and what, once requests are taken.
        tell_phase: gets the phases of the engine's start-up.
        build: makes the engine, in its own process (a function of a module).

    Raises:
        InvalidSetup: the address, the model or the speculative config cannot work.
        BackendError: the engine cannot be built for another reason.
    """
    if options.api_key == "":
        raise InvalidSetup.because("empty-api-key", "is empty.", where="--api-key", fix="Leave it out, or give a key.")
    listener = bind(options)  # first of all: an address that is taken shows before the model is loaded
    defaults = Defaults.from_checkpoint(config.model) if Path(config.model).is_dir() else Defaults()
    name = options.served_model_name or config.model
    spec_json = None if spec is None else spec.to_json()
    worker = EngineWorker(start_process(partial(build, config, spec_json)), max_waiting=options.max_waiting)
    try:
        tokenizer = load_tokenizer(config.model, skip=config.skip_tokenizer_init)  # while the engine loads its weights
        worker.wait_until_built(name, tell=tell_phase)
        app = create_app(worker, tokenizer=tokenizer, model_name=name, defaults=defaults, api_key=options.api_key)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=_SHUTDOWN_S)
        )
        # uvicorn raises the signal that ended it once more; the end it asked for has come then.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        for finding in worker.about.findings:
            logger.warning("%s", finding)
        _listen(listener, options)
        tell(_describe(worker.about, name, listener, defaults))
        server.run(sockets=[listener])
    finally:
        worker.stop()


def bind(options: ServerOptions) -> socket.socket:
    """Return a socket bound to the wanted address, not listening yet.

    Raises:
        InvalidSetup: the host is unknown or not local without `allow_remote`, or the port is taken or not allowed.
    """
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidSetup.because(
            "unknown-host", f"{options.host} is no address of this machine ({error.strerror}).", where="--host"
        ) from None
    for family, _, _, _, address in found:
        if not options.allow_remote and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
            raise InvalidSetup.because(
                "not-loopback",
                f"{options.host} can be reached from other machines.",
                where="--host",
                fix="Add --allow-remote if that is wanted (and --api-key), or use 127.0.0.1.",
            )
        try:
            return _bind(family, address)
        except OSError as error:
            failure = error
            if error.errno == errno.EADDRINUSE:
                break  # a name's other address is not what was asked for
    raise _bind_error(failure, options)


def _bind(family: int, address: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _listen(listener: socket.socket, options: ServerOptions) -> None:
    try:
        listener.listen(2048)
    except OSError as error:  # somebody else began to listen while the model was loading
        raise _bind_error(error, options) from None


def _bind_error(error: OSError, options: ServerOptions) -> InvalidSetup:
    if error.errno == errno.EADDRINUSE:
        return InvalidSetup.because(
            "port-in-use",
            f"port {options.port} of {options.host} is in use.",
            where="--port",
            fix="Stop what uses it, choose another port, or give --port 0 to get a free one.",
        )
    return InvalidSetup.because(
        "cannot-bind", f"cannot listen on {options.host}:{options.port} ({error.strerror}).", where="--host"
    )


def _describe(about: Ready, name: str, listener: socket.socket, defaults: Defaults) -> str:
    """Return the start-up line."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    config, pages = about.config, about.num_pages
    parts = [
        f"draftwise {__version__} serves {name} at http://{host}:{port}",
        f"{config.dtype} on {config.device}",
        f"context {config.max_model_len:,} tokens",
        f"KV cache {pages * config.block_size:,} tokens ({pages:,} pages of {config.block_size})",
        f"up to {config.max_num_seqs} sequences at once",
        f"speculation {json.dumps(about.spec) if about.spec else 'off'}",
        *([f"sampling defaults from generation_config.json {defaults.sampling}"] if defaults.sampling else []),
    ]
    return "; ".join(parts)
