"""Proxies in front of both twins: what the speculative pool must not get, a canary's share, draining, a way out.

Routing by load is none of it: with the same servers, two equal pools were better than a split at every load
(docs/deploying.md has the numbers).
"""

from draftwise.deploy.proxies.proxy import PROXIES, Front, Wanted, put_in_front

__all__ = ["PROXIES", "Front", "Wanted", "put_in_front"]
