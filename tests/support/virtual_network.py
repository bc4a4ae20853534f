"""Servers at URLs without sockets: whole commands measure them on virtual time, however busy the machine is."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx
import pytest

from draftwise.backends import UrlBackend
from tests.support.fake_server import FakeBackend
from tests.support.fake_server.engine import FakeEngine, Page
from tests.support.fake_server.stream import Outlet, Stream
from tests.support.gateway import Gateway
from tests.support.virtual_time import VirtualTimeLoop

__all__ = ["Network", "virtual_network"]


class Network:
    """Knows which fake or gateway is at a URL."""

    def __init__(self) -> None:
        self._parts: dict[str, FakeBackend | Gateway] = {}
        self._loops: dict[FakeEngine, asyncio.AbstractEventLoop] = {}

    def join(self, *parts: FakeBackend | Gateway) -> None:
        """Give each a URL."""
        for part in parts:
            part.url = f"http://127.0.0.1:{10_001 + len(self._parts)}"
            self._parts[part.url] = part

    def find(self, url: str, path: str, headers: Mapping[str, str]) -> FakeEngine | Page:
        """Return what a request reaches, or how a gateway refuses it.

        Raises:
            ConnectionError: nothing listens there.
        """
        fields = {"host": urlsplit(url).netloc} | {name.lower(): value for name, value in headers.items()}
        part = self._parts.get(url)
        while isinstance(part, Gateway):
            if refusal := part.refuse(path, fields):
                return Page(status=refusal, body=b"")
            part = self._parts.get(part.find_route(fields))
        if part is None:
            raise ConnectionError("ConnectionRefusedError")
        loop = asyncio.get_running_loop()
        if self._loops.get(part.engine) is not loop:  # each command has a loop of its own
            self._loops[part.engine] = loop
            part.engine.start()
        return part.engine


class _Remote(FakeBackend):
    """What a command makes of a URL: it knows no fake, only the network."""

    network: ClassVar[Network]

    def __init__(self, name: str, url: str, **settings: Any) -> None:
        UrlBackend.__init__(self, name, url, **settings)
        self._real_time, self._server = False, None

    async def start(self) -> None:
        self._open(httpx.MockTransport(self._answer))
        await self.describe()

    def _handle(self, path: str, body: bytes, outlet: Outlet) -> Page | Stream:
        try:
            found = self.network.find(self.url, path, self.headers)
        except ConnectionError as error:
            raise self._broken(str(error)) from None
        if isinstance(found, Page):
            return found
        self.engine = found
        return super()._handle(path, body, outlet)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        """Answer from the server that the request names, which may be another one's page of counters."""
        there = type(self)(self.name, f"http://{request.url.netloc.decode()}", headers=request.headers)
        return await FakeBackend._answer(there, request)

    async def _get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        return await UrlBackend._get(self, path, headers)


@contextmanager
def virtual_network(*parts: FakeBackend | Gateway) -> Iterator[Network]:
    """Give fakes and gateways URLs, at which commands that measure find them, and nothing else."""
    network = Network()
    network.join(*parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftwise.verbs.measuring.precise_loop", lambda: VirtualTimeLoop(limit_s=1e6))
        patch.setattr("draftwise.measure.measurement.UrlBackend", type("Remote", (_Remote,), {"network": network}))
        yield network
