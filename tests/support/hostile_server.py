"""A fake server that refuses, answers nothing, or is away for a while, at requests of given numbers."""

from __future__ import annotations

from collections.abc import Container

from draftwise.backends import BrokenStream, Exchange, Piece
from tests.support.fake_server import FakeBackend, FakeScript

__all__ = ["Hostile"]


class Hostile(FakeBackend):
    """A fake that spoils generation requests by their numbers.

    Args:
        busy: numbers of requests that get a 429.
        empty: numbers of requests whose answer holds no token.
        away: (first, seconds): from this request on the server is away for so long.
        retry_after: the header of its refusals.
    """

    def __init__(
        self,
        name: str,
        script: FakeScript,
        *,
        busy: Container[int] = (),
        empty: Container[int] = (),
        away: tuple[int, float] | None = None,
        retry_after: str = "2",
        real_time: bool = False,
    ) -> None:
        super().__init__(name, script, real_time=real_time)
        self.busy, self.empty, self.away, self.retry_after = busy, empty, away, retry_after
        self.count = 0
        self.back_at = 0.0
        self.refused_at: list[float] = []
        self.asked_at: list[float] = []

    async def stream(self, path: str, body: bytes, received: list[Piece] | None = None) -> Exchange:
        if self.now() < self.back_at:
            raise BrokenStream(f"{self.name}: the connection broke (ConnectionRefusedError).")
        if not body:
            return await super().stream(path, body, received)
        self.count += 1
        self.asked_at.append(self.now())
        if self.away is not None and self.count >= self.away[0]:
            self.back_at, self.away = self.now() + self.away[1], None
            raise BrokenStream(f"{self.name}: the connection broke (closed by the server).")
        status = 429 if self.count in self.busy else 200
        if status == 200 and self.count not in self.empty:
            return await super().stream(path, body, received)
        text = b'{"error": {"message": "rate limit"}}' if status == 429 else b"data: [DONE]\n\n"
        self.refused_at.append(self.now())
        piece = (self.now(), text)
        return Exchange(
            status=status, sent=self.now(), received=(piece,), finished=self.now(), retry_after=self.retry_after
        )
