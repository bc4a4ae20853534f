"""What old releases refuse before they make the speculative config: asynchronous scheduling with anything else."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context

__all__ = ["find_early"]


def find_early(context: Context) -> Iterator[Ruling]:
    """Yield what stops the server before the speculative config is looked at."""
    if context.given.get("async_scheduling") is not True:
        return
    stages = context.flags.get("pipeline_parallel_size", 1)
    without = "async_scheduling does not go with"
    if isinstance(stages, int) and stages > 1:
        message = f"{without} pipeline stages in this release."
        yield from context.rules.ruling("async-rejects-stages", message, where="async_scheduling", fix="Leave it out.")
    if context.spec is not None:
        message = f"{without} speculative decoding in this release."
        yield from context.rules.ruling(
            "async-rejects-speculation", message, where="async_scheduling", fix="Leave it out."
        )
