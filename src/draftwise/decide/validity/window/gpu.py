"""What held the clocks of the GPUs down while a run was on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from draftwise.core import Finding, TurnRecord
from draftwise.decide.machine import LONGEST_GAP_S
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.finding import info, join_names, warning

__all__ = ["SETTLE", "check_gpus", "find_fall"]

SETTLE = "Let it settle under load before measuring: more warm-up does that."
_COOL = "Look at cooling and power supply, then measure again."
_FOR_HEAT = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_slowdown", "hw_power_brake_slowdown")
"""Reasons for a lower clock that no load of a healthy machine brings about."""
_POWER_CAP = "sw_power_cap"
_OF_ONE_TURN = 1.5
"""What a reading covers is put down to one arm when it is this many times its turn at most."""
Gpu = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The GPUs at the end of a turn; after short turns they are not asked again each time."""

    arm: str
    turn_s: float
    read_s: float
    gpus: Sequence[Gpu]

    @property
    def reasons(self) -> set[str]:
        """What limited any clock at that moment."""
        return {reason for gpu in self.gpus for reason in gpu.get("reasons", ())}

    @property
    def mhz(self) -> float | None:
        """The lowest clock of the GPUs that were working."""
        busy = (gpu for gpu in self.gpus if "gpu_idle" not in gpu.get("reasons", ()))
        return min((gpu["sm_mhz"] for gpu in busy if "sm_mhz" in gpu), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growth:
    """From one reading to the next."""

    arm: str | None
    """None where more than one turn lies between."""
    seconds: float
    limited_s: Mapping[str, float]
    """Of the GPU that was limited longest, by reason."""


def check_gpus(turns: Sequence[TurnRecord], thresholds: Thresholds) -> Iterator[Finding]:
    """Yield heat, power and falling clocks, going by turns in the order of the run."""
    readings = _readings(turns)
    growths = [_growth(*pair) for pair in pairwise(readings) if _belong_together(*pair)]
    yield from _heat(readings, growths, thresholds)
    yield from _power(growths, thresholds)
    if (fall := find_fall([each.mhz for each in readings], thresholds)) is not None:
        yield warning("clock-fell", f"the GPU clock fell {fall} over the run.", SETTLE)


def _readings(turns: Sequence[TurnRecord]) -> list[_Reading]:
    found: dict[float, _Reading] = {}
    for turn in turns:
        if gpus := turn.device.get("gpus", ()):
            read_s = float(gpus[0].get("read_s", 0.0))
            found.setdefault(read_s, _Reading(arm=turn.arm, turn_s=turn.wall_s, read_s=read_s, gpus=gpus))
    return list(found.values())


def _belong_together(before: _Reading, after: _Reading) -> bool:
    """Return whether no other session, and no reboot, lies between two readings."""
    return 0 < after.read_s - before.read_s < after.turn_s + LONGEST_GAP_S


def _growth(before: _Reading, after: _Reading) -> _Growth:
    old = {gpu.get("index"): gpu.get("limited_s", {}) for gpu in before.gpus}
    most: dict[str, float] = {}
    for gpu in after.gpus:
        for reason, seconds in gpu.get("limited_s", {}).items():
            since = old.get(gpu.get("index"), {}).get(reason, seconds)
            # (A driver that was loaded anew counts from zero.)
            most[reason] = max(most.get(reason, 0.0), seconds - since)
    seconds = after.read_s - before.read_s
    return _Growth(arm=after.arm if seconds < _OF_ONE_TURN * after.turn_s else None, seconds=seconds, limited_s=most)


def _share(growths: Sequence[_Growth], reason: str) -> float:
    """Return the share of the time for which a reason limited the clock."""
    seconds = sum(each.seconds for each in growths)
    return sum(each.limited_s.get(reason, 0.0) for each in growths) / seconds if seconds else 0.0


def _heat(readings: Sequence[_Reading], growths: Sequence[_Growth], thresholds: Thresholds) -> Iterator[Finding]:
    worst = max(_FOR_HEAT, key=lambda reason: _share(growths, reason))
    hot = [each for each in readings if each.reasons & set(_FOR_HEAT)]
    if (share := _share(growths, worst)) > thresholds.held_up:
        yield warning("gpu-throttled", f"a GPU ran below its clock for {share:.1%} of the time ({worst}).", _COOL)
    elif hot:
        names = join_names(sorted(set().union(*(each.reasons for each in hot)) & set(_FOR_HEAT)))
        text = f"a GPU ran below its clock at {len(hot)} of {len(readings)} readings ({names})."
        yield warning("gpu-throttled", text, _COOL)


def _power(growths: Sequence[_Growth], thresholds: Thresholds) -> Iterator[Finding]:
    """Part of the truth: what draws more power runs slower, in production as here."""
    arms = sorted({each.arm for each in growths if each.arm is not None})
    shares = {arm: _share([each for each in growths if each.arm == arm], _POWER_CAP) for arm in arms}
    whole = _share(growths, _POWER_CAP)
    if max(whole, *shares.values(), 0.0) > thresholds.power_capped:
        parts = ", ".join(f"{arm} {share:.0%}" for arm, share in shares.items())
        text = (
            f"a GPU ran at its power limit for {whole:.0%} of the time{f' (in long turns: {parts})' if parts else ''}"
        )
        yield info("gpu-power-capped", f"{text}: its clock falls with it, in production as here.")


def find_fall(clocks: Sequence[float | None], thresholds: Thresholds) -> str | None:
    """Return in words by how much clocks are lower in the last third of a run than in the first; None if hardly."""
    known = [clock for clock in clocks if clock is not None]
    third = len(known) // 3
    if third < 3:
        return None
    first, last = median(known[:third]), median(known[-third:])
    return f"from {first:.0f} to {last:.0f} MHz" if last < first * (1 - thresholds.clock_fall) else None
