"""Decides who may ask the server, before any endpoint, and holds the requests that are being answered.

A browser sends requests from any open page to any reachable address. The rules distinguish those from a client's: by
the page's Origin, by a Host that is not the server's (a name that an attacker points at this machine), and by the media
type, because a page cannot send application/json without a preflight request.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftwise.knowledge.messages import refusal, text_of
from draftwise.serve.errors import RequestError, handle_request_error

OPEN_PATHS = frozenset({"/health", "/ping", "/load", "/metrics", "/version", "/openapi.json"})
"""Paths readable without a key, for probes and scrapers, as in vLLM. Any other path needs the key."""
_LARGEST_HEAD = 2**16
"""Maximum bytes of all headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Which requests the server answers. Default: those of clients on this machine, except foreign web pages."""

    api_key: str | None = None
    allowed_hosts: frozenset[str] | None = frozenset()
    """Names of this server, in addition to localhost and loopback addresses. None: any name."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may use the server, such as `https://example.com`; `*`: all."""

    def admits_host(self, host: str) -> bool:
        """Return whether a Host header names this server."""
        if self.allowed_hosts is None:
            return True
        name = name_of(host)
        return name in self.allowed_hosts or is_loopback(name)

    def admits_origin(self, origin: str) -> bool:
        """Return whether a web page may use the server."""
        return "*" in self.allowed_origins or origin in self.allowed_origins


def name_of(host: str) -> str:
    """Return the name or address in a Host header, in lower case, without port, brackets and final dot."""
    found = re.fullmatch(r"(?:\[([^]]*)\]|([^][:]*))(?::[0-9]*)?", host)
    return (found[1] or found[2] or "" if found else host).removesuffix(".").lower()


def is_loopback(name: str) -> bool:
    """Return whether a host name without port can only be this machine."""
    if name == "localhost" or name.endswith(".localhost"):  # which browsers resolve to the loopback themselves
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


_ORIGIN = re.compile(
    r"(?!http://[^/]*:80$|https://[^/]*:443$)[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]+)?"
)


def check_names(hosts: Iterable[str], origins: Iterable[str]) -> None:
    """Raise InvalidSetup for hosts that no client sends as Host, or origins that no browser sends as Origin."""
    for host in hosts:
        if host != "*" and not re.fullmatch(r"[\w.:%-]+", name_of(host), re.ASCII):
            raise refusal("bad-host-name", host=host)
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise refusal("bad-origin", origin=origin)


class Entrance:
    """Rejects requests that the rules do not admit, in OpenAI's error format."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules
        key = rules.api_key
        self._digest = None if key is None else _digest(key.encode("utf-8", "surrogateescape"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with the reason."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
            if has_body and headers.get("expect", "").lower() != "100-continue":  # which waits for the answer
                receive, send = _announce_close(receive, send)
            if (error := self._judge(scope, headers)) is not None:
                await handle_request_error(Request(scope), error)(scope, receive, send)
                return
            scope["draftwise.knows_key"] = self._digest is None or self._knows_key(headers)
        elif scope["type"] == "websocket":
            return  # there is nothing to talk to
        await self._app(scope, receive, send)

    def _judge(self, scope: Scope, headers: Headers) -> RequestError | None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _LARGEST_HEAD:
            message = f"The headers are larger than {_LARGEST_HEAD} bytes."
            return RequestError(431, message, headers={"Connection": "close"})
        hosts = headers.getlist("host")
        if len(hosts) > 1 or not all(map(self._rules.admits_host, hosts)):
            message = (
                f"This server does not answer to {_shown(hosts)}. To allow that name, start it with --allowed-hosts."
            )
            return RequestError(403, message)
        origins = headers.getlist("origin")
        if not all(map(self._rules.admits_origin, origins)):
            message = text_of("origin-refused", shown=_shown(origins))
            return RequestError(403, message)
        if scope["method"] == "OPTIONS":
            return None  # which browsers send without a key, before a request
        if self._digest is not None and scope["path"] not in OPEN_PATHS and not self._knows_key(headers):
            return RequestError(401, "The API key is missing or wrong.", headers={"WWW-Authenticate": "Bearer"})
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        takes_body = scope["path"] not in OPEN_PATHS and not scope["path"].startswith("/v1/models")
        if scope["method"] == "POST" and takes_body and media_type != "application/json":
            message = f"The content type must be application/json, got {_shown([media_type])}."
            return RequestError(400, message, param="Content-Type")
        coding = headers.get("content-encoding", "").lower()
        if takes_body and coding not in ("", "identity"):
            message = f"The body must not be compressed, got {_shown([coding])}."
            return RequestError(415, message, param="Content-Encoding")
        return None

    def _knows_key(self, headers: Headers) -> bool:
        assert self._digest is not None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(_digest(given.encode("latin-1")), self._digest)


def _announce_close(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Return both such that an answer before the end of a body says that the connection closes."""
    has_ended = False

    async def note_end() -> Message:
        nonlocal has_ended
        message = await receive()
        has_ended = has_ended or not message.get("more_body", False)
        return message

    async def announce(message: Message) -> None:
        if message["type"] == "http.response.start" and not has_ended:
            rest = [each for each in message["headers"] if each[0].lower() != b"connection"]
            message = {**message, "headers": [*rest, (b"connection", b"close")]}
        await send(message)

    return note_end, announce


def _shown(values: Iterable[str]) -> str:
    return " and ".join(repr(value[:100]) for value in values)


def _digest(key: bytes) -> bytes:
    """Return values of equal length for the constant-time comparison, to hide even the key's length."""
    return hashlib.sha256(key).digest()


def make_goodbye() -> RequestError:
    """Return the error for requests that an ending server has no time for."""
    message = "The server is shutting down. Use another server, or try again later."
    return RequestError(503, message, headers={"Connection": "close", "Retry-After": "1"})


class InFlight:
    """Counts requests with a body. Once the server ends, answers new ones with 503 and waits for the last."""

    def __init__(self) -> None:
        self.is_closing = False
        self._unanswered: set[asyncio.Task[None]] = set()
        """Requests whose answer has not begun."""
        self.count = 0

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Wrap an application to count its requests."""

        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["method"] != "POST":
                await app(scope, receive, send)
            elif self.is_closing:
                await _refuse(scope, receive, send)
            else:
                self.count += 1
                try:
                    await self._answer(app, scope, receive, send)
                finally:
                    self.count -= 1

        return call

    async def _answer(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            self._unanswered.discard(task)
            await send(message)

        task = asyncio.ensure_future(app(scope, receive, send_on))
        self._unanswered.add(task)
        try:
            await asyncio.wait({task})
            is_cut = task.cancelled()
        finally:
            self._unanswered.discard(task)
            task.cancel()
        if is_cut:
            await _refuse(scope, receive, send)
        else:
            task.result()

    def close(self) -> None:
        """Reject requests from now on."""
        self.is_closing = True

    def cut(self) -> None:
        """Answer pending requests with 503, such as those whose body has not arrived."""
        for task in list(self._unanswered):
            task.cancel()

    async def wait_until_idle(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether every answer has ended."""
        end = asyncio.get_running_loop().time() + seconds
        while self.count and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.02)
        return not self.count


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await handle_request_error(Request(scope), make_goodbye())(scope, receive, send)
