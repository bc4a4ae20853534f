"""Checks the machine during a run: throttling, quotas, stolen time, other processes, clocks that fall or jump."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from draftwise.core import Finding, TurnRecord
from draftwise.core.finding import join_names
from draftwise.deciding.disturbance import LONGEST_GAP_S, MachineUse
from draftwise.deciding.thresholds import Thresholds
from draftwise.knowledge.messages import warning

_STEP_S = 0.05
"""A slewed clock drifts at most 0.5 ms per second from the monotonic one (adjtimex(2): 500 ppm)."""
_SLEW = 5e-4
_SETTLE = "Let it settle under load before the measurement: warm up for longer."
_COOL = "Check cooling and power supply, then measure again."
_FOR_HEAT = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_slowdown", "hw_power_brake_slowdown")
"""Reasons for a lower clock that never occur on a healthy machine."""
_POWER_CAP = "sw_power_cap"
_OF_ONE_TURN = 1.5
"""A reading is attributed to one arm if it covers at most this multiple of the turn."""
Gpu = Mapping[str, Any]


def check_machine(
    turns: Iterable[TurnRecord], uses: Sequence[MachineUse], thresholds: Thresholds, *, is_ours: bool
) -> list[Finding]:
    """Return findings on what disturbed the machine during the run, as far as it reports.

    Args:
        turns: all turns of a run.
        uses: use of the machine in these turns.
        thresholds: the run's thresholds.
        is_ours: whether this run started all servers on the machine.
    """
    turns = sorted(turns, key=lambda each: each.turn)
    return [
        *_cpu_limits(uses, turns, thresholds),
        *(_others(uses, turns, thresholds) if is_ours else ()),
        *_gpus(turns, thresholds),
        *_falling_clock(turns, thresholds),
        *_clock_jumps(turns),
    ]


def _share(uses: Sequence[MachineUse], name: str) -> float:
    """Return the growth of a counter per second."""
    known = [each for each in uses if name in each.cpu]
    return sum(each.cpu[name] for each in known) / sum(each.seconds for each in known) if known else 0.0


def _cores(turns: Sequence[TurnRecord]) -> int:
    return max((turn.device.get("cpu", {}).get("cores") or 1 for turn in turns), default=1)


def _cpu_limits(uses: Sequence[MachineUse], turns: Sequence[TurnRecord], thresholds: Thresholds) -> Iterator[Finding]:
    if (held := _share(uses, "quota_stopped_s")) > thresholds.held_up:
        yield warning("cpu-quota", held=held)
    stolen, cores = _share(uses, "steal_s"), _cores(turns)
    if stolen / cores > thresholds.held_up:
        text = f"the hypervisor gave {stolen / cores:.1%} of this machine's CPU time to others when this run needed it."
        yield Finding.warning("cpu-stolen", text, fix="Measure on a dedicated machine.")
    if heat := sum(each.cpu.get("thermal_stops", 0) for each in uses):
        yield Finding.warning(
            "cpu-throttled", f"heat slowed cores {heat:.0f} time{'s' * (heat > 1)}.", fix="Cool it, or lower the load."
        )


def _others(uses: Sequence[MachineUse], turns: Sequence[TurnRecord], thresholds: Thresholds) -> Iterator[Finding]:
    """CPU that neither this process nor the servers it started used."""
    known = [(each, foreign) for each in uses if (foreign := each.foreign_s) is not None]
    cores, seconds = _cores(turns), sum(each.seconds for each, _ in known)
    foreign = sum(seconds for _, seconds in known)
    if known and foreign > thresholds.other_processes * cores * seconds:
        text = f"other processes used {foreign / seconds:.2f} of this machine's {cores} cores on average."
        yield Finding.warning("machine-shared", text, fix="Stop the other processes, and measure again.")


def _falling_clock(turns: Sequence[TurnRecord], thresholds: Thresholds) -> Iterator[Finding]:
    """Heat, on machines that do not say so otherwise."""
    clocks = [turn.device["cpu"]["mhz"] for turn in turns if "mhz" in turn.device.get("cpu", {})]
    if (fall := _find_fall(clocks, thresholds)) is not None:
        yield Finding.warning("clock-fell", f"the CPU clock fell {fall} over the run.", fix=_SETTLE)


def _clock_jumps(turns: Sequence[TurnRecord]) -> Iterator[Finding]:
    jumped = [each for each in turns if abs(each.client.clock_jump_s) > _STEP_S + _SLEW * each.wall_s]
    if jumped:
        most = max((turn.client.clock_jump_s for turn in jumped), key=abs)
        yield warning("clock-jump", count=len(jumped), turns=len(turns), most=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GpuReading:
    """The GPUs at the end of a turn; after short turns they are not asked again each time."""

    arm: str
    turn_s: float
    read_s: float
    gpus: Sequence[Gpu]

    @property
    def reasons(self) -> set[str]:
        """Reasons that limited any clock at the time of the reading."""
        return {reason for gpu in self.gpus for reason in gpu.get("reasons", ())}

    @property
    def mhz(self) -> float | None:
        """Lowest clock of the busy GPUs."""
        busy = (gpu for gpu in self.gpus if "gpu_idle" not in gpu.get("reasons", ()))
        return min((gpu["sm_mhz"] for gpu in busy if "sm_mhz" in gpu), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _GpuGrowth:
    """Growth from one reading to the next."""

    arm: str | None
    """The arm; None if several turns lie between the readings."""
    seconds: float
    limited_s: Mapping[str, float]
    """Seconds by reason, for the GPU limited longest."""


def _gpus(turns: Sequence[TurnRecord], thresholds: Thresholds) -> Iterator[Finding]:
    """Yield heat, power and falling clocks, going by turns in the order of the run."""
    readings = _readings(turns)
    growths = [_gpu_growth(*pair) for pair in pairwise(readings) if _belong_together(*pair)]
    yield from _heat(readings, growths, thresholds)
    yield from _power(growths, thresholds)
    if (fall := _find_fall([each.mhz for each in readings], thresholds)) is not None:
        yield Finding.warning("clock-fell", f"the GPU clock fell {fall} over the run.", fix=_SETTLE)


def _readings(turns: Sequence[TurnRecord]) -> list[_GpuReading]:
    found: dict[float, _GpuReading] = {}
    for turn in turns:
        if gpus := turn.device.get("gpus", ()):
            read_s = float(gpus[0].get("read_s", 0.0))
            found.setdefault(read_s, _GpuReading(arm=turn.arm, turn_s=turn.wall_s, read_s=read_s, gpus=gpus))
    return list(found.values())


def _belong_together(before: _GpuReading, after: _GpuReading) -> bool:
    """Return whether no other session, and no reboot, lies between two readings."""
    return 0 < after.read_s - before.read_s < after.turn_s + LONGEST_GAP_S


def _gpu_growth(before: _GpuReading, after: _GpuReading) -> _GpuGrowth:
    old = {gpu.get("index"): gpu.get("limited_s", {}) for gpu in before.gpus}
    most: dict[str, float] = {}
    for gpu in after.gpus:
        for reason, seconds in gpu.get("limited_s", {}).items():
            since = old.get(gpu.get("index"), {}).get(reason, seconds)
            # (A driver that was loaded anew counts from zero.)
            most[reason] = max(most.get(reason, 0.0), seconds - since)
    seconds = after.read_s - before.read_s
    return _GpuGrowth(arm=after.arm if seconds < _OF_ONE_TURN * after.turn_s else None, seconds=seconds, limited_s=most)


def _limited_share(growths: Sequence[_GpuGrowth], reason: str) -> float:
    """Return the share of the time for which a reason limited the clock."""
    seconds = sum(each.seconds for each in growths)
    return sum(each.limited_s.get(reason, 0.0) for each in growths) / seconds if seconds else 0.0


def _heat(readings: Sequence[_GpuReading], growths: Sequence[_GpuGrowth], thresholds: Thresholds) -> Iterator[Finding]:
    worst = max(_FOR_HEAT, key=lambda reason: _limited_share(growths, reason))
    hot = [each for each in readings if each.reasons & set(_FOR_HEAT)]
    if (share := _limited_share(growths, worst)) > thresholds.held_up:
        yield warning("gpu-throttled", case="time", share=share, worst=worst, cool=_COOL)
    elif hot:
        names = join_names(sorted(set().union(*(each.reasons for each in hot)) & set(_FOR_HEAT)), most=4)
        yield warning("gpu-throttled", case="readings", count=len(hot), readings=len(readings), names=names, cool=_COOL)


def _power(growths: Sequence[_GpuGrowth], thresholds: Thresholds) -> Iterator[Finding]:
    """Part of the truth: what draws more power runs slower, in production as here."""
    arms = sorted({each.arm for each in growths if each.arm is not None})
    shares = {arm: _limited_share([each for each in growths if each.arm == arm], _POWER_CAP) for arm in arms}
    whole = _limited_share(growths, _POWER_CAP)
    if max(whole, *shares.values(), 0.0) > thresholds.power_capped:
        parts = ", ".join(f"{arm} {share:.0%}" for arm, share in shares.items())
        text = (
            f"a GPU ran at its power limit for {whole:.0%} of the time{f' (in long turns: {parts})' if parts else ''}"
        )
        yield Finding.info("gpu-power-capped", f"{text}. Its clock falls with it, in production as here.")


def _find_fall(clocks: Sequence[float | None], thresholds: Thresholds) -> str | None:
    """Return in words by how much clocks are lower in the last third of a run than in the first; None if hardly."""
    known = [clock for clock in clocks if clock is not None]
    third = len(known) // 3
    if third < 3:
        return None
    first, last = median(known[:third]), median(known[-third:])
    return f"from {first:.0f} to {last:.0f} MHz" if last < first * (1 - thresholds.clock_fall) else None
