"""Whether anybody else used the servers, and whether two arms are one server."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Finding, Run
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.finding import error, join_names

__all__ = ["check_traffic"]

_AFTERWARDS = 16
"""Tokens that a server may still write for a request that was withdrawn, until it notices."""


def check_traffic(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield servers that others use, and arms that are one and the same server."""
    yield from _same_address(run)
    yield from _foreign_tokens(run, thresholds)


def _same_address(run: Run) -> Iterator[Finding]:
    by_address: dict[tuple[str, int | None, str], list[str]] = {}
    for arm in run.plan.arms:
        # That headers differ was made sure of before the run: their values are not written down.
        if arm.address is not None and not arm.routing_headers:
            by_address.setdefault(arm.address, []).append(arm.name)
    for names in by_address.values():
        if len(names) > 1:
            text = (
                f"{join_names(names)} are one server: nothing differs between them, and each warms the other's caches."
            )
            yield error("same-server", text, "Give every arm the URL of a server of its own.")


def _foreign_tokens(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """Counters that grew by much more, or less, than this run received, where that is known: exact, no failures."""
    for arm in run.plan.arms:
        answers = [answer for answer in run.answers if answer.arm == arm.name]
        if any((each.error is not None and each.measured) or not each.counts_exact for each in answers):
            continue
        received = sum(answer.timing.num_tokens for answer in answers)
        withdrawn = sum(not answer.measured and answer.finish_reason is None for answer in answers)
        counts = [turn.counters.generation_tokens for turn in run.turns if turn.arm == arm.name]
        generated = sum(count or 0 for count in counts)
        if None not in counts and generated < received * (1 - thresholds.foreign_tokens):
            text = (
                f"{arm.name} answered with {received} tokens and its counters grew by {generated}: they are not, or "
                "not all, those of the server that answered."
            )
            yield error("counters-of-another-server", text, "Name the page of the counters of just that server.")
        if generated > received * (1 + thresholds.foreign_tokens) + withdrawn * _AFTERWARDS:
            text = f"{arm.name} generated {generated} tokens and this run received {received}: others use the server."
            yield error("other-traffic", text, "Measure on servers that nothing else talks to.")
