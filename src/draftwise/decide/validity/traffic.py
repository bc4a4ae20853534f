"""Whether anybody else used the servers, and whether two arms are one server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from draftwise.core import Arm, Finding, Run
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.finding import error, join_names

__all__ = ["check_traffic", "find_same_servers"]

_AFTERWARDS = 16
"""Tokens that a server may still write for a request that was withdrawn, until it notices."""


def check_traffic(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield servers that others use, and arms that are one and the same server."""
    yield from find_same_servers(run.plan.arms)
    yield from _foreign_tokens(run, thresholds)


def find_same_servers(arms: Sequence[Arm]) -> Iterator[Finding]:
    """Yield arms that have one address."""
    by_url: dict[tuple[str | None, int | None, str], list[str]] = {}
    for arm in arms:
        if arm.url is not None:
            parts = urlsplit(arm.url)
            host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
            by_url.setdefault((host, parts.port, parts.path.rstrip("/").removesuffix("/v1")), []).append(arm.name)
    for names in by_url.values():
        if len(names) > 1:
            text = (
                f"{join_names(names)} are one server: nothing differs between them, and each warms the other's caches."
            )
            yield error("same-server", text, "Give every arm the URL of a server of its own.")


def _foreign_tokens(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """Servers that generated much more than this run received, where that is known: no failures, exact counts."""
    for arm in run.plan.arms:
        answers = [answer for answer in run.answers if answer.arm == arm.name]
        if any((each.error is not None and each.measured) or not each.counts_exact for each in answers):
            continue
        received = sum(answer.timing.num_tokens for answer in answers)
        withdrawn = sum(not answer.measured and answer.finish_reason is None for answer in answers)
        generated = sum(turn.counters.generation_tokens or 0 for turn in run.turns if turn.arm == arm.name)
        if generated > received * (1 + thresholds.foreign_tokens) + withdrawn * _AFTERWARDS:
            text = f"{arm.name} generated {generated} tokens and this run received {received}: others use the server."
            yield error("other-traffic", text, "Measure on servers that nothing else talks to.")
