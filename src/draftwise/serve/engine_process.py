"""Runs the engine's loop in a separate process, so it does not share the interpreter lock with the server."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftwise.checkpoints.gguf_files import is_gguf
from draftwise.core import InvalidSetup, SpecConfig
from draftwise.engine.compilers import Compilers
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.kernel_cache import (
    KERNEL_CACHE,
    KernelCache,
    describe_platform,
    known_setups,
    may_have_gpu,
    name_setup,
)
from draftwise.engine.startup_phases import Startup
from draftwise.knowledge.messages import refusal
from draftwise.machine.processes import count_cores, make_command
from draftwise.serve.channel import Channel
from draftwise.serve.engine_loop import Build, run_engine
from draftwise.version import tell_install

if TYPE_CHECKING:
    from draftwise.engine.core import Engine

logger = logging.getLogger("draftwise.serve")

_NOTICE_S = 0.8
"""Seconds until the exit status of a process that closed its channel is known."""
_END_S = 1
"""Seconds within which an engine ends after its channel closes, or is killed: nobody waits for its step any more."""
_SWITCH_S = 0.001
"""Interpreter switch interval in seconds: a thread that compiles a grammar yields to the loop this often."""


@dataclass(slots=True)
class EngineProcess:
    """A handle to an engine in another process."""

    channel: Channel
    process: subprocess.Popen[bytes]

    def join(self, *, patient: bool = True) -> str:
        """Wait until the process has ended, which closing the channel causes. Return how it ended, as text.

        Without `patient`, kill it instead.
        """
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S if patient else 0)
        self.process.kill()
        self.process.wait()
        return self.describe_end()

    def describe_end(self) -> str:
        """Return how the process ended, as text, shortly after its channel closed."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_NOTICE_S)
        status = self.process.returncode
        if status is None:
            return "its process closed the connection"
        if status >= 0:
            return f"its process ended with status {status}"
        hint = ", the signal that Linux sends when memory runs out" if status == -signal.SIGKILL else ""
        return f"its process was killed by {signal.Signals(-status).name}{hint}"


def build_engine(config: EngineConfig, spec_json: str | None, startup: Startup) -> Engine:
    """Build the engine. This imports torch, which the server's own process does not need.

    The engine is ready for any request: kernels are compiled, into a kernel folder if the environment names one, and
    steps are captured.
    """
    setup, folder = name_setup(config, spec_json), os.environ.get(KERNEL_CACHE)
    may_use_gpu, compilers = may_have_gpu(config.device), None
    with ExitStack() as ends:
        if may_use_gpu:
            if setup not in known_setups(folder):  # first: they import what is imported here, too
                compilers = ends.enter_context(Compilers(count_cores()))
            threading.Thread(target=_open_gpu, daemon=True).start()
        try:
            with startup.phase("import torch"):
                from draftwise.engine.core import Engine
                from draftwise.engine.rehearsal import warm_up
        except ModuleNotFoundError as error:
            raise make_missing_error(error) from None
        if may_use_gpu:
            threading.Thread(target=_prepare_kernels, daemon=True).start()
        kernels = _open_kernels(config)
        engine = Engine(config, None if spec_json is None else SpecConfig.parse(spec_json), startup=startup)
        loading = threading.Thread(target=engine.grammars.prepare, daemon=True)
        loading.start()  # while kernels are compiled
        is_warm = warm_up(engine, compilers, startup)
        loading.join()
    if kernels is not None and is_warm:
        kernels.add(setup)
    return engine


def _open_gpu() -> None:
    """Make the first GPU's context, which torch would make and wait for once it is imported; whatever is wrong with the
    GPU, torch reports."""
    with suppress(OSError, AttributeError):
        driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        if driver.cuInit(0) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)


def _prepare_kernels() -> None:
    """Begin what the first launch of a kernel would wait for; what cannot be done now, that one reports."""
    with suppress(Exception):
        from draftwise.engine.kernels.cuda.compile_ahead import prepare

        prepare()


def _open_kernels(config: EngineConfig) -> KernelCache | None:
    """Return the folder of compiled kernels, if the environment names one."""
    folder = os.environ.get(KERNEL_CACHE)
    if not folder:
        return None
    from draftwise.engine.models.weight_loading import find_device

    return KernelCache.open(folder, describe_platform(find_device(config.device).type))


def unpack(config: EngineConfig, spec: SpecConfig | None) -> tuple[EngineConfig, SpecConfig | None]:
    """Return the config and spec with checkpoint folders in place of GGUF files. Imports torch only if there are any.

    Raises:
        InvalidSetup: a file cannot be used.
        StorageError: the cache has no room for it.
    """
    if not any(model and is_gguf(model) for model in (config.model, spec.model if spec else None)):
        return config, spec
    from draftwise.engine.models.gguf_unpacking import unpack_models

    return unpack_models(config, spec, logger.info)


def make_missing_error(error: ModuleNotFoundError) -> InvalidSetup:
    """Return the error for an installation without the engine."""
    return refusal("engine-not-installed", case="engine", name=error.name, install=tell_install("engine"))


def start_process(build: Build, *, environment: Mapping[str, str] | None = None) -> EngineProcess:
    """Start an engine in a new process.

    Args:
        build: picklable function of a module, or a partial of one.
        environment: environment variables to add to this process's.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        command = make_command("draftwise.serve.engine_process", theirs.fileno(), ends_with_parent=True)
        variables = {**os.environ, **(environment or {})}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=variables)
    channel = Channel(ours)
    with suppress(ConnectionError):  # waiting for the engine reports that it ended
        channel.send(build)
    return EngineProcess(channel, process)


def main(descriptor: int) -> None:
    """Build the engine described by the first message, and run it. `descriptor` is this end of a socket pair."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of the whole group; the server ends this process
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    sys.setswitchinterval(_SWITCH_S)
    channel = Channel(socket.socket(fileno=descriptor))
    build: Build = channel.receive()

    def build_frozen(startup: Startup) -> Engine:
        engine = build(startup)
        # Objects of the start-up live as long as the process: collecting them again would pause steps for milliseconds.
        gc.collect()
        gc.freeze()
        return engine

    run_engine(build_frozen, channel)
