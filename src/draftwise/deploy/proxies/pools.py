"""The two pools that a proxy stands in front of."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Pools"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Where they are, and how requests that may go to both are shared."""

    name: str
    """Of the service."""
    spec: str
    """Host and port of the servers that speculate."""
    plain: str
    """And of those that do not."""
    share: int
    """Percent of the requests for the pool that speculates."""
