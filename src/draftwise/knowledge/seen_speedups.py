"""Speed-ups that somebody measured of a target and a method, by load; the rows are in `data/seen_speedups.json`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import exp, log

from draftwise.knowledge.stored import read_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSpeedup:
    """One series of readings."""

    targets: tuple[str, ...]
    method: str
    points: tuple[tuple[int, float], ...]
    """Sequences that decode together, and the speed-up over plain decoding; loads rise."""
    conditions: str
    source: str
    k: int | None = None
    gpu: str | None = None
    """None where the source does not name it, or it is another kind of machine."""
    gpus: int | None = None
    """GPUs of the server; None where that is not part of the reading."""
    traffic: str | None = None
    """Kind of requests that it is about; None for any."""
    ours: bool = False
    """Whether it was measured here, and can be made again."""
    tokens_per_step: float | None = None
    context: int = 1024
    """Context length in tokens that it was taken at."""

    def at(self, sequences: int) -> float:
        """Return the speed-up at a load: between readings by their logarithms, beyond them the nearest."""
        below = [point for point in self.points if point[0] <= sequences] or [self.points[0]]
        above = [point for point in self.points if point[0] >= sequences] or [self.points[-1]]
        (low, before), (high, after) = below[-1], above[0]
        if low == high:
            return before
        share = log(sequences / low) / log(high / low)
        return exp((1 - share) * log(before) + share * log(after))


def find_seen_speedups(names: Iterable[str], method: str) -> tuple[SeenSpeedup, ...]:
    """Return the readings of a method on a target that is known under any of these names, in upper or lower case."""
    wanted = {name.lower() for name in names}
    found = (row for row in read_seen_speedups() if row.method == method)
    return tuple(row for row in found if not wanted.isdisjoint(map(str.lower, row.targets)))


@cache
def read_seen_speedups() -> tuple[SeenSpeedup, ...]:
    """Return every series."""
    return tuple(
        SeenSpeedup(**{**row, "points": tuple((count, gain) for count, gain in row["points"])})
        for row in read_rows("seen_speedups")
    )
