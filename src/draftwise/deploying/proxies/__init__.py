"""Proxies in front of both twins: they bypass the speculative pool, set a canary's share, drain, and roll back.

They do not route by load: with the same number of servers, two equal pools were better than a split at every load
(docs/reference/deploying.md has the numbers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.core.lazy import import_on_use

if TYPE_CHECKING:
    from draftwise.deploying.proxies.pool_policy import Front, ProxyKind, ProxyOptions
    from draftwise.deploying.proxies.proxy import PROXIES, put_in_front

__all__ = ["PROXIES", "Front", "ProxyKind", "ProxyOptions", "put_in_front"]

_MODULES = {"pool_policy": "Front ProxyKind ProxyOptions", "proxy": "PROXIES put_in_front"}
__getattr__ = import_on_use(__name__, _MODULES)
