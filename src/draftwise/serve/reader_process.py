"""Reads request bodies in separate processes, with limits on time and memory.

A first process loads the tokenizer and forks one reader for short bodies and one for long ones. A reader that exceeds
its time or memory, or crashes in a library, is killed. Its request is rejected with the cause, and another reader is
forked. Short requests never wait behind long ones.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from draftwise.core import BackendError, InvalidSetup, cause_of
from draftwise.engine.text.chat_template import MEMORY, limit_memory
from draftwise.engine.text.tokenizer import load_tokenizer
from draftwise.knowledge.messages import refusal
from draftwise.machine.processes import make_command
from draftwise.serve.calls import Defaults, ServedModel
from draftwise.serve.channel import Channel, ChannelProtocol
from draftwise.serve.reading import TOO_MUCH, BodyKind, Outcome, ReadError, read_body

logger = logging.getLogger("draftwise.serve")

_LANES = 2
"""One reader for short bodies, one for the others."""
_SHORT = 2**16
"""Maximum bytes of a short body."""
_NICE = 5
"""Nice value added to the reader of long bodies: a step's threads wait whenever one of them lacks a core."""
_CPU_S, _CPU_S_A_MB = 3.0, 2.0
"""CPU seconds allowed for a body: for any, and per megabyte."""
_LOAD_S = 120
"""CPU seconds allowed for loading the tokenizer and the chat template."""
_PAUSES_S = (0.1, 0.2, 0.5, 1, 2, *[5] * 10)
"""Seconds after each vain attempt to start the process again; the server ends after the last."""
_TRY_AGAIN = ReadError(503, "The part of the server that reads requests is restarting. Try again in a moment.")
_FIRST = 255
"""Marks a lane's first reader, in place of a signal number."""


class ReaderSetup(NamedTuple):
    """What readers need to know about the served model."""

    directory: str
    skip_tokenizer: bool
    name: str
    defaults: Defaults
    tool_call_parser: str | None


class _Limits(NamedTuple):
    """What only the engine decides."""

    max_model_len: int
    most_sequences: int
    cpu_s: float
    """CPU seconds allowed for a short body."""


class _Job(NamedTuple):
    kind: BodyKind
    body: bytes


class ReadingProcess:
    """The process that forks readers. It starts while the engine is being built."""

    def __init__(self, setup: ReaderSetup) -> None:
        self._setup, self._is_stopped, self._lock = setup, False, threading.Lock()
        self._start()

    def _start(self) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            command = make_command("draftwise.serve.reader_process", theirs.fileno(), ends_with_parent=True)
            variables = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
            self._process = subprocess.Popen(  # its group are the readers that it forks
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=variables, process_group=0
            )
        with suppress(ConnectionError):
            Channel(self.control).send(self._setup)

    def restart(self) -> int:
        """Replace the ended process by a new one that has loaded the tokenizer. Return the old exit status.

        Raises:
            InvalidSetup, BackendError: the new process cannot load it.
        """
        with self._lock:
            if self._is_stopped:
                raise BackendError("The server has ended.")
            self.control.close()
            self._process.kill()
            status = self._process.wait()
            self._start()
        self.wait_until_loaded()
        return status

    def wait_until_loaded(self) -> None:
        """Wait until the tokenizer is loaded.

        Raises:
            InvalidSetup: the tokenizer cannot be loaded, or takes too long.
            BackendError: the process ended for another reason.
        """
        told = Channel(self.control)
        try:
            findings = told.receive()
        except EOFError:
            status = self._process.wait()
            if -status in (signal.SIGPROF, signal.SIGABRT):
                raise refusal("bad-tokenizer", case="slow", load_s=_LOAD_S, memory=MEMORY >> 30) from None
            raise BackendError(f"The process that reads requests ended with status {status}.") from None
        if findings is not None:
            raise InvalidSetup(findings)

    def stop(self) -> None:
        """End the process and its readers."""
        with self._lock:
            self._is_stopped = True
            self.control.close()
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class ReaderPool:
    """The server's view of its readers, on its event loop."""

    def __init__(
        self, started: ReadingProcess, *, max_model_len: int, most_sequences: int, cpu_s: float = _CPU_S
    ) -> None:
        self._started = started
        self._limits = _Limits(max_model_len, most_sequences, cpu_s)
        self._lanes: list[_Lane] = []
        self._restarting: asyncio.Task[None] | None = None
        """Starts the process that forks readers again."""
        self.failure: str | None = None
        self.on_failure: Callable[[], None] = lambda: None
        """Called when there will be no readers any more."""

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[None]:
        """Accept readers as they are forked, on the running event loop."""
        self._lanes = [_Lane(self._refuse) for _ in range(_LANES)]
        self._listen()
        try:
            yield
        finally:
            if self._restarting is not None:
                self._restarting.cancel()
            asyncio.get_running_loop().remove_reader(self._started.control)
            self._started.control.close()  # first, so that no readers are forked any more
            for lane in self._lanes:
                lane.close()
            await asyncio.sleep(0)  # in which the loop closes the connections

    def _listen(self) -> None:
        control = self._started.control
        with suppress(ConnectionError):  # it has ended already, which is seen at once
            Channel(control).send(self._limits)
        control.setblocking(False)
        asyncio.get_running_loop().add_reader(control, self._take_reader)

    async def read(self, kind: BodyKind, body: bytes) -> Outcome:
        """Read a body."""
        lane = self._lanes[len(body) > _SHORT]
        if self._restarting is not None and not lane.has_reader:
            return _TRY_AGAIN
        return await lane.read(_Job(kind, body))

    def _take_reader(self) -> None:
        """Connect a reader: a message has its lane and how the last one there ended, and comes with the connection."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self._started.control, 2, 1)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        if not message:
            asyncio.get_running_loop().remove_reader(self._started.control)
            self._restarting = asyncio.ensure_future(self._restart())
            return
        lane, end = self._lanes[message[0]], socket.socket(fileno=descriptors[0])
        self._connecting = asyncio.ensure_future(lane.connect(end, message[1]))

    async def _restart(self) -> None:
        """Start the process that forks readers again; those that it forked go on until new ones are there.

        Another that ends before it is ready is followed by the next one, after longer and longer pauses.
        """
        self._refuse()
        for pause_s in _PAUSES_S:
            try:
                status = await asyncio.to_thread(self._started.restart)
            except (BackendError, OSError) as error:
                failure: Exception = error
                logger.error("No process that reads requests starts: %s", cause_of(error))
                await asyncio.sleep(pause_s)
            except InvalidSetup as error:
                failure = error
                break
            else:
                logger.error("The process that reads requests ended with status %s; another one has started.", status)
                self._restarting = None
                self._listen()
                return
        self.failure = f"the process that reads requests has ended, and no other starts: {cause_of(failure)}"
        logger.error("The server fails (%s) and ends.", self.failure)
        self.on_failure()

    def _refuse(self) -> None:
        """Answer what waits for a reader that only another process could fork."""
        if self._restarting is not None:
            for lane in self._lanes:
                if not lane.has_reader:
                    lane.refuse()


class _Lane:
    """One reader, which has one body at a time; the others wait here. `on_end` is called when a reader has ended."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._unanswered = set[asyncio.Future[Outcome]]()
        self._waiting: asyncio.Queue[tuple[_Job, asyncio.Future[Outcome]]] = asyncio.Queue()
        self._protocols: asyncio.Queue[ChannelProtocol] = asyncio.Queue()
        self._current: ChannelProtocol | None = None
        self._told: asyncio.Future[Outcome] = asyncio.Future()
        """What the reader says of the body that it has."""
        self._task = asyncio.ensure_future(self._work())

    async def connect(self, end: socket.socket, signal_number: int) -> None:
        """Use a new reader. If its predecessor ended with a body, that body is rejected."""
        create = asyncio.get_running_loop().create_unix_connection
        _, protocol = await create(lambda: ChannelProtocol(self._take, self._note_end), sock=end)
        self._protocols.put_nowait(protocol)
        if signal_number != _FIRST:
            self._take(_describe_end(signal_number))
        else:
            self._note_end()

    def _note_end(self) -> None:
        """Refuse the body of a reader that has ended if another one waits: what forked the first cannot say why."""
        if self._current is not None and self._current.is_closed and not self._protocols.empty():
            self._take(_describe_end(signal.SIGKILL))
        self._on_end()

    async def read(self, job: _Job) -> Outcome:
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((job, answer))
        self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        return await answer

    @property
    def has_reader(self) -> bool:
        """Whether a reader lives."""
        return (self._current is not None and not self._current.is_closed) or not self._protocols.empty()

    def refuse(self) -> None:
        """Answer all bodies, as there is no reader."""
        self._take(_TRY_AGAIN)
        for answer in self._unanswered:
            if not answer.done():
                answer.set_result(_TRY_AGAIN)

    async def _work(self) -> None:
        self._current = await self._protocols.get()
        while True:
            job, answer = await self._waiting.get()
            while self._current.is_closed or not self._protocols.empty():
                self._current.close()
                self._current = await self._protocols.get()
            if answer.done():
                continue  # its client left before its turn, or was refused
            self._told = asyncio.get_running_loop().create_future()
            self._current.send(job)
            outcome = await self._told  # also where the client leaves: the reader goes on
            if not answer.done():
                answer.set_result(outcome)

    def close(self) -> None:
        self._task.cancel()
        if self._current is not None:
            self._current.close()
        while not self._protocols.empty():
            self._protocols.get_nowait().close()

    def _take(self, outcome: Outcome) -> None:
        if not self._told.done():
            self._told.set_result(outcome)


def _describe_end(number: int) -> ReadError:
    """Return the refusal of a request whose reader was ended by a signal; 0: it ended itself."""
    causes = {
        signal.SIGPROF: "takes too long in the prompt, its chat template or the tokenizer",
        signal.SIGABRT: "takes too much memory, or the tokenizer fails on it",
        signal.SIGKILL: "was stopped by the system, usually for lack of memory",
    }
    cause = causes.get(signal.Signals(number)) if number else None
    return ReadError(400, f"Reading the request {cause or 'failed in a library'}. Shorten or change it.")


def main(descriptor: int) -> None:
    """Load the tokenizer, then fork readers until the server ends. `descriptor` is this end of a socket pair."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of the whole group; the server ends this process
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s [%(name)s] %(message)s")
    control = Channel(socket.socket(fileno=descriptor))
    with suppress(EOFError, ConnectionError):
        setup: ReaderSetup = control.receive()
        signal.setitimer(signal.ITIMER_PROF, _LOAD_S)
        limit_memory()
        try:
            tokenizer = load_tokenizer(setup.directory, skip=setup.skip_tokenizer)
            if tokenizer.chat_template is not None:
                tokenizer.chat_template.is_bounded_here = True
                tokenizer.chat_template.compiled  # noqa: B018  (refused here, or shared by the readers)
        except InvalidSetup as error:
            control.send(list(error.findings))
            return
        signal.setitimer(signal.ITIMER_PROF, 0)
        control.send(None)
        limits: _Limits = control.receive()
        model = ServedModel(
            name=setup.name,
            tokenizer=tokenizer,
            defaults=setup.defaults,
            tool_call_parser=setup.tool_call_parser,
            max_model_len=limits.max_model_len,
            most_sequences=limits.most_sequences,
        )
        gc.collect()
        gc.freeze()  # readers share what is here
        _fork_readers(control.socket, model, limits.cpu_s)


def _fork_readers(control: socket.socket, model: ServedModel, cpu_s: float) -> None:
    lanes: dict[int, int] = {}
    for lane in range(_LANES):
        lanes[_fork(lane, _FIRST, control, model, cpu_s)] = lane
    while lanes:
        pid, status = os.wait()
        lane = lanes.pop(pid)
        if Channel(control).has_message():  # the server, which sends nothing more, is gone
            for other in lanes:  # one that reads a long body would only notice afterwards
                os.kill(other, signal.SIGKILL)
            return
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        lanes[_fork(lane, number, control, model, cpu_s)] = lane


def _fork(lane: int, signal_number: int, control: socket.socket, model: ServedModel, cpu_s: float) -> int:
    """Fork a reader and send the server its connection; return the process id."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        control.close()
        ours.close()
        status = 1
        try:
            os.nice(_NICE * lane)
            _run(Channel(theirs), model, cpu_s)
            status = 0
        finally:
            os._exit(status)
    theirs.close()
    with ours, suppress(ConnectionError):
        socket.send_fds(control, [bytes([lane, signal_number])], [ours.fileno()])
    return pid


def _run(channel: Channel, model: ServedModel, cpu_s: float) -> None:
    """Read bodies until the server is gone."""
    limit_memory()
    with suppress(EOFError, ConnectionError):
        while True:
            job: _Job = channel.receive()
            signal.setitimer(signal.ITIMER_PROF, cpu_s + _CPU_S_A_MB * len(job.body) / 2**20)
            outcome = read_body(job.kind, job.body, model)
            signal.setitimer(signal.ITIMER_PROF, 0)
            try:
                channel.send(outcome)
            except (MemoryError, RecursionError):
                channel.send(TOO_MUCH)
