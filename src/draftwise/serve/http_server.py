"""Runs the application: socket, start-up line, signals and graceful shutdown."""

from __future__ import annotations

import errno
import gc
import ipaddress
import json
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwise.core import BackendError, InvalidSetup, SpecConfig, cause_of
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.kernel_cache import make_environment
from draftwise.engine.text.tokenizer import load_tokenizer
from draftwise.knowledge.messages import refusal
from draftwise.machine.processes import raise_file_limit
from draftwise.serve.app import create_app
from draftwise.serve.calls import Defaults
from draftwise.serve.channel import Ready, StartupPhase
from draftwise.serve.connections import MOST_WAITING, HttpServer, make_config
from draftwise.serve.engine_process import build_engine, start_process, unpack
from draftwise.serve.engine_worker import EngineWorker
from draftwise.serve.entrance import AccessRules, InFlight, check_names, name_of
from draftwise.serve.reader_process import ReaderPool, ReaderSetup, ReadingProcess
from draftwise.version import __version__

if TYPE_CHECKING:
    from draftwise.engine.core import Engine
    from draftwise.engine.startup_phases import Startup

logger = logging.getLogger("draftwise.serve")

Builder = Callable[[EngineConfig, str | None, "Startup"], "Engine"]
"""Builds an engine from a config, a speculative config as JSON, and an observer of start-up phases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The server's address, model name and access rules, as `verbs.serve.ServeRequest` explains them."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    api_key: str | None = None
    tool_call_parser: str | None = None
    """Parser for optional tool calls, a key of `tools.TOOL_CALL_PARSERS`. None: such requests are rejected."""
    allow_remote: bool = False
    allowed_hosts: Sequence[str] = ()
    allowed_origins: Sequence[str] = ()
    drain_seconds: float = 10
    max_waiting: int = 1024
    kernel_cache: str | None = None


def serve(
    config: EngineConfig,
    spec: SpecConfig | None,
    options: ServerOptions,
    *,
    on_ready: Callable[[str], None],
    on_phase: Callable[[StartupPhase], None] = lambda _: None,
    build: Builder = build_engine,
) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then until running requests have ended.

    Args:
        spec: speculative config. None: no speculation.
        on_ready: called with the start-up line once the server accepts requests.
        build: builds the engine, in its own process (a module-level function).

    Raises:
        InvalidSetup: the address, the model or the speculative config is invalid.
        BackendError: the engine cannot be built for another reason, or failed later.
    """
    if options.api_key == "":
        raise refusal("empty-api-key")
    raise_file_limit()
    check_names(options.allowed_hosts, options.allowed_origins)
    listener = bind(options)  # first, so that an address in use is reported before the model is loaded
    name = options.served_model_name or config.model
    config, spec = unpack(config, spec)
    defaults = Defaults.from_checkpoint(config.model) if Path(config.model).is_dir() else Defaults()
    spec_json = None if spec is None else spec.to_json()
    environment = make_environment(options.kernel_cache) if options.kernel_cache else None
    readers = ReadingProcess(
        ReaderSetup(config.model, config.skip_tokenizer_init, name, defaults, options.tool_call_parser)
    )
    process = start_process(partial(build, config, spec_json), environment=environment)
    worker, in_flight = EngineWorker(process, max_waiting=options.max_waiting), InFlight()
    try:
        readers.wait_until_loaded()  # first: there a tokenizer that loads for ever ends
        tokenizer = load_tokenizer(config.model, skip=config.skip_tokenizer_init)  # while the engine loads its weights
        worker.wait_until_built(name, on_phase=on_phase)
        about = worker.about.config
        assert about.max_model_len is not None, "the engine resolves it"
        most = about.num_slots + options.max_waiting
        pool = ReaderPool(readers, max_model_len=about.max_model_len, most_sequences=most)
        app = create_app(
            worker, tokenizer=tokenizer, model_name=name, reader=pool, access=make_rules(options), in_flight=in_flight
        )
        config_of_http = make_config(app, log_level="critical")
        server = HttpServer(config_of_http, worker, in_flight, drain_s=options.drain_seconds)
        pool.on_failure = server.end
        # Before uvicorn takes the signals over, and when it raises the one that ended it again, after its shutdown.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.end())
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it
            signal.signal(signal.SIGHUP, lambda *_: server.end())
        for finding in worker.about.findings:
            logger.warning("%s", finding)
        _listen(listener, options)
        gc.collect()
        gc.freeze()  # what lives as long as the server: looking through it again would hold up streams
        on_ready(_describe(worker.about, name, listener, defaults))
        server.run(sockets=[listener])
        if (failure := worker.failure or pool.failure) is not None:
            raise BackendError(f"The server failed: {failure}.")
    finally:
        worker.stop()
        readers.stop()


def make_rules(options: ServerOptions) -> AccessRules:
    """Return the access rules for the options."""
    hosts: frozenset[str] | None = frozenset(map(name_of, options.allowed_hosts))
    if "*" in options.allowed_hosts or (options.allow_remote and not hosts):
        hosts = None
    return AccessRules(api_key=options.api_key, allowed_hosts=hosts, allowed_origins=tuple(options.allowed_origins))


def bind(options: ServerOptions) -> socket.socket:
    """Return a socket bound to the given address, not listening yet.

    Raises:
        InvalidSetup: the host is unknown, or not local without `allow_remote`; or the port is taken or forbidden.
    """
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise refusal("unknown-host", host=options.host, cause=cause_of(error)) from None
    for family, _, _, _, address in found:
        if not options.allow_remote and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
            raise refusal("not-loopback", host=options.host)
        try:
            return _bind(family, address)
        except OSError as error:
            failure = error
            if error.errno == errno.EADDRINUSE:
                break  # do not fall back to another address of the same name
    raise _bind_error(failure, options)


def _bind(family: int, address: Any) -> socket.socket:
    # The protocol is named, as asyncio sends small pieces at once (TCP_NODELAY) only where it is.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _listen(listener: socket.socket, options: ServerOptions) -> None:
    try:
        listener.listen(MOST_WAITING)
    except OSError as error:  # another process began to listen while the model was loading
        raise _bind_error(error, options) from None


def _bind_error(error: OSError, options: ServerOptions) -> InvalidSetup:
    if error.errno == errno.EADDRINUSE:
        return refusal("port-in-use", port=options.port, host=options.host)
    return refusal("cannot-bind", host=options.host, port=options.port, cause=cause_of(error))


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
