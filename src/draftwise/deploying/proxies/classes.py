"""Whether it pays to send classes of traffic to different pools: an upper bound from what a run measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from draftwise.core import Finding
from draftwise.deploying.proxies.policy import POOL_HEADER

__all__ = ["bound_gain", "judge_split"]

_WORTH = 0.05
"""Of a bound that no split reaches: simulated ones gained 5 to 6.5 % where the classes' shares were those of the pools'
servers, lost 11 to 19 % where they were not, and made the slowest requests 17 to 28 % slower."""


def bound_gain(speed_ups: Mapping[str, float]) -> float:
    """Return by which share a split gives at most more tokens per second than the better of two equal pools.

    Every class has the same share of the work, and every server is always busy: what a split loses to an idle pool is
    left out.

    Args:
        speed_ups: tokens per second with speculation over those without it, by class.
    """
    spec = len(speed_ups) / sum(1 / ratio for ratio in speed_ups.values())
    split = len(speed_ups) / sum(1 / max(1.0, ratio) for ratio in speed_ups.values())
    return split / max(1.0, spec) - 1


def judge_split(speed_ups: Mapping[str, float]) -> Iterator[Finding]:
    """Yield what a split by class would bring; nothing for a run of a single class."""
    if len(speed_ups) < 2:
        return
    gain, slower = bound_gain(speed_ups), sorted(name for name, ratio in speed_ups.items() if ratio < 1)
    bound = f"A pool for each class gives at most {gain:.1%} more tokens per second than the better of two equal pools"
    if not slower or gain < _WORTH:
        yield Finding.info("split-by-class", f"{bound}: it is not worth it.", fix="Send every class to both pools.")
        return
    yield Finding.info(
        "split-by-class",
        f"{bound}, for classes with equal shares of the work and servers that are always busy: simulated "
        "splits gave less, and lost where the shares were not those of the servers.",
        fix=f"Measure it with four servers or more; requests of {' and '.join(slower)} go to the plain pool with the "
        f"header {POOL_HEADER}: plain.",
    )
