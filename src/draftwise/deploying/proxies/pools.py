"""The two pools that a proxy stands in front of, the proxy that is asked for, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from draftwise.core import Finding
from draftwise.deploying.files import StepFile

__all__ = ["Front", "Pools", "ProxyKind", "Wanted"]

ProxyKind = Literal["haproxy", "envoy", "httproute", "epp"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A proxy, as it is asked for."""

    kind: ProxyKind
    share: int = 10
    """Percent of the requests for the pool that speculates."""
    spec: str = ""
    """Where that pool is, as the proxy reaches it: host and port; empty for what the platform calls it."""
    plain: str = ""
    """And its twin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What stands in front of both twins."""

    steps: Mapping[str, StepFile] = field(default_factory=dict)
    """Its files by name."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """What changes it while it runs, by what that does."""
    limits: tuple[Finding, ...] = ()
    """What it does not do."""
