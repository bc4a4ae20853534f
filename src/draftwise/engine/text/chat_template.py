"""Renders a checkpoint's chat template in a separate process, because it may need any time and memory."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property, partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Lock
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from draftwise.checkpoints.text_files import read_bytes
from draftwise.core import Finding, InvalidSetup
from draftwise.machine.processes import make_command, require_posix

_LONGEST_REASON = 300
"""Maximum characters of another library's message: more would be the text itself."""
_CPU_S = 3.0
"""CPU seconds allowed for a conversation, and per megabyte of it."""
MEMORY, _OF_TEMPLATE = 2**31, 2**29
"""Maximum bytes of memory for reading a request, and for rendering its messages."""


class _GenerationBlock(jinja2.ext.Extension):
    """Lets `{% generation %}` pass: it marks the assistant's text for training and prints its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A chat template, compiled on first use, because Jinja evaluates constants of any size then.

    Attributes:
        is_bounded_here: whether this process may be killed by a template. Otherwise, a separate process renders: it
            starts with the first conversation and ends with this object.
    """

    def __init__(self, source: str) -> None:
        self._source, self._lock = source, Lock()
        self._connection: Connection | None = None
        self.is_bounded_here = False

    @cached_property
    def compiled(self) -> jinja2.Template:
        """The template; raises InvalidSetup if it is not valid Jinja."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        with failing_as("bad-chat-template", "The chat template is not valid Jinja", "chat_template"), _little_memory():
            return environment.from_string(self._source)

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Return the prompt text of a conversation. The template also sees `variables`.

        Raises:
            InvalidSetup: the template is not valid Jinja, rejects these messages (roles out of order ...), or exceeds
                its time or memory.
        """
        if self.is_bounded_here:
            words = "The model's chat template refuses these messages"
            with failing_as("chat-template-refused", words, "messages"), _little_memory():
                return self.compiled.render({**variables, "messages": messages})
        with self._lock:
            connection, self._connection = self._connection or self._start(), None
            try:
                connection.send((messages, variables))
                outcome = connection.recv()
                self._connection = connection  # which nothing is left in
            except (EOFError, OSError):
                causes: dict[int, str] = {
                    signal.SIGPROF: "takes too long on",
                    signal.SIGABRT: "takes too much memory for",
                }
                cause = causes.get(-self._process.wait(), "fails on")
                raise _refusal(f"The model's chat template {cause} these messages.") from None
            except (TypeError, AttributeError, RecursionError, pickle.PicklingError) as error:
                raise _refusal(f"The messages are not plain values: {error}.") from None
            finally:
                if self._connection is None:
                    self._end()
        if isinstance(outcome, str):
            return outcome
        raise InvalidSetup(outcome)

    def _start(self) -> Connection:
        require_posix("Chat templates are rendered")
        connection, theirs = Pipe()
        with theirs:
            command = make_command("draftwise.engine.text.chat_template", theirs.fileno())
            self._process = subprocess.Popen(  # in a session that Ctrl-C does not reach
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )
        self._end = weakref.finalize(self, _end, connection, self._process)
        with suppress(ConnectionError):  # it has ended already, which the next message meets
            connection.send((self._source, _CPU_S))
        return connection


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.kill()
    process.wait()


def _refusal(message: str) -> InvalidSetup:
    return InvalidSetup.because("chat-template-refused", message, where="messages")


@contextmanager
def failing_as(code: str, message: str, where: str, fix: str = "") -> Iterator[None]:
    """Turn any exception of a library or a template into a finding.

    Templates may raise anything; `tokenizers` raises bare Exception, and BaseException if Rust panics.
    """
    try:
        yield
    except InvalidSetup:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        told = (str(error) or type(error).__name__).rstrip(".")[:_LONGEST_REASON]
        raise InvalidSetup.because(code, f"{message}: {told}.", where=where, fix=fix) from None


def find_chat_template(directory: Path, tokenizer_config: Mapping[str, Any]) -> ChatTemplate | None:
    """Return a checkpoint's template from chat_template.jinja, else from tokenizer_config.json; None without one."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return ChatTemplate(read_bytes(path).decode("utf-8", "replace"))
    given = tokenizer_config.get("chat_template")
    if isinstance(given, list) and all(isinstance(each, dict) for each in given):  # several templates by name
        given = next((each.get("template") for each in given if each.get("name") == "default"), None)
    if not isinstance(given, str | None):
        message = "chat_template in tokenizer_config.json must be a text, or a list of templates with names."
        raise InvalidSetup.because("bad-chat-template", message, where="chat_template")
    return ChatTemplate(given) if given else None


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without jinja's HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def limit_memory(more: int = MEMORY) -> Callable[[], None]:
    """Limit this process to `more` bytes than it uses now, if the system supports that. Return what undoes it."""
    if sys.platform != "linux":
        return lambda: None
    import resource

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = used + more
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    return partial(resource.setrlimit, resource.RLIMIT_AS, (before, hard))


@contextmanager
def _little_memory() -> Iterator[None]:
    """Limit a template to `_OF_TEMPLATE`, in a process that may take more for other work."""
    undo = limit_memory(_OF_TEMPLATE)
    try:
        yield
    finally:
        undo()


def main(descriptor: int) -> None:
    """Render conversations until the other end closes. `descriptor` is this end of a socket pair."""
    with suppress(EOFError, ConnectionError), Connection(descriptor) as connection:
        source, cpu_s = connection.recv()
        template = ChatTemplate(source)
        template.is_bounded_here = True
        limit_memory()
        while True:
            given = connection.recv_bytes()
            signal.setitimer(signal.ITIMER_PROF, cpu_s * (1 + len(given) / 2**20))
            try:
                outcome: str | list[Finding] = template.render(*pickle.loads(given))
            except InvalidSetup as error:
                outcome = list(error.findings)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send(outcome)
