"""Whether a server resolved its release and speculative config as they were ordered, as far as it tells them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from draftwise.core import Finding, Setup
from draftwise.plan.check import check

__all__ = ["compare_release", "compare_resolved"]


def compare_release(setup: Setup, told: str | None, where: str) -> Iterator[Finding]:
    """Yield that another release runs than was ordered; a build's own suffix (`+cu129`) is none."""
    if told is None:
        text = "Which release runs is not told."
        yield Finding.warning("not-told", text, where=where)
    elif told.partition("+")[0] != setup.engine_version:
        text = f"Release {told} runs, and vLLM {setup.engine_version} was ordered."
        yield Finding.error("runs-otherwise", text, where=where)


def compare_resolved(setup: Setup, told: Mapping[str, Any] | None, where: str, *, fix: str) -> Iterator[Finding]:
    """Yield each key of the speculative config that a server resolved to something else.

    Args:
        setup: that was ordered.
        told: the keys that the server tells, none of a plain one; None where it tells nothing.
        where: they were told.
        fix: what to do where nothing is told.
    """
    if told is None:
        text = "How the speculative config resolved is not told."
        yield Finding.info("not-told", text, where=where, fix=fix)
        return
    resolved = check(setup).resolved
    if bool(told) != (resolved is not None):
        if told:
            text = "The server was started to speculate, and a plain one was ordered."
        else:
            text = "The server was started without speculation, and one that speculates was ordered."
        yield Finding.error("runs-otherwise", text, where=where)
    elif resolved is not None and setup.spec is not None:
        wanted = {
            "method": resolved.method,
            "num_speculative_tokens": resolved.num_speculative_tokens,
            "model": setup.spec.model,
        }
        for key, value in wanted.items():
            if value is not None and key in told and told[key] != value:
                text = f"The server resolved {key} to {told[key]!r}, and {value!r} was ordered."
                yield Finding.error("runs-otherwise", text, where=where)
