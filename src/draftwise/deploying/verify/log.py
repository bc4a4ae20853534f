"""Whether a vLLM started as it was ordered, by its start-up log."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.backends.vllm_log import StartupLog, find_root_cause
from draftwise.core import Finding, Setup
from draftwise.deploying.verify.resolved import compare_release, compare_resolved
from draftwise.setups.read import SourceText

__all__ = ["verify_log"]


def verify_log(source: SourceText, setup: Setup) -> Iterator[Finding]:
    """Yield each difference that a log tells, why the start failed, and what the log does not tell."""
    lines, log = source.text.splitlines(), StartupLog(0.0)
    log.take(lines, 0.0)
    yield from compare_release(setup, log.values.get("engine_version"), source.name)
    told = log.values.get("speculative_config")
    yield from compare_resolved(setup, told, source.name, fix="Give the log from its first line on.")
    if (cause := find_root_cause(lines)) is not None:
        text = f"The server did not start: {cause}"
        yield Finding.error("start-failed", text, where=source.name)
    elif not log.is_ready:
        text = "Whether the server became ready is not told: the log ends before."
        yield Finding.warning("not-told", text, where=source.name)
