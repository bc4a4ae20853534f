"""What this machine did over a turn: the growth of its counters from the end of one turn to the end of the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from draftwise.core import TurnRecord

__all__ = ["LONGEST_GAP_S", "MachineUse", "measure_use"]

LONGEST_GAP_S = 60.0
"""Between the end of one turn and the begin of the next; more is another session."""
_COUNTERS = ("busy_s", "steal_s", "own_s", "quota_stopped_s", "waited_s", "thermal_stops")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineUse:
    """What the counters of the machine grew by over a turn, and since the turn before it ended."""

    turn: TurnRecord
    seconds: float
    cpu: Mapping[str, float]
    """By the names of `draftwise.measure.device_state`; without those that cannot be read."""

    @property
    def cores(self) -> int:
        """Of the machine."""
        return int(self.turn.device.get("cpu", {}).get("cores") or 1)

    @property
    def foreign_s(self) -> float | None:
        """CPU seconds that neither the measuring process nor the servers it started used; None where not known."""
        return self.cpu["busy_s"] - self.cpu["own_s"] if {"busy_s", "own_s"} <= self.cpu.keys() else None


def measure_use(turns: Iterable[TurnRecord]) -> list[MachineUse]:
    """Return the use of the machine turn by turn, in the order of the run.

    Left out are turns before which, or after which, nothing was read, and those between which the run paused, or the
    machine started anew.
    """
    ordered = sorted(turns, key=lambda each: each.turn)
    return [use for before, after in pairwise(ordered) if (use := _measure(before, after)) is not None]


def _measure(before: TurnRecord, after: TurnRecord) -> MachineUse | None:
    seconds = after.device.get("monotonic_s", 0) - before.device.get("monotonic_s", 0)
    if not (before.device and after.device and 0 < seconds < after.wall_s + LONGEST_GAP_S):
        return None
    old, new = before.device.get("cpu", {}), after.device.get("cpu", {})
    cpu = {name: new[name] - old[name] for name in _COUNTERS if name in old and name in new}
    return None if any(value < 0 for value in cpu.values()) else MachineUse(turn=after, seconds=seconds, cpu=cpu)
