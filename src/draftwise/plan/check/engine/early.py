"""What old releases refuse before they make the speculative config: asynchronous scheduling with anything else."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context

__all__ = ["EARLY", "find_early"]

EARLY = frozenset({"async-rejects-speculation"})
"""Findings that are told here, whatever becomes of the speculative config, and not again with the engine's."""


def find_early(context: Context) -> Iterator[Ruling]:
    """Yield what stops the server before the speculative config is looked at."""
    if context.given.get("async_scheduling") is not True:
        return
    stages = context.flag("pipeline_parallel_size", 1)
    pipeline = context.rule("async-rejects-stages")
    if pipeline is not None and isinstance(stages, int) and stages > 1:
        yield pipeline.ruling(
            "does not go with pipeline stages in this release.", where="async_scheduling", fix="Leave it out."
        )
    speculation = context.rule("async-rejects-speculation")
    if speculation is not None and context.spec is not None:
        yield speculation.ruling(
            "does not go with speculative decoding in this release.", where="async_scheduling", fix="Leave it out."
        )
