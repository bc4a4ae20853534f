"""What the machine did to a run: throttling, quotas, stolen time, load of others, clocks that jump."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from draftwise.core import Finding, Run, Window
from draftwise.measure.guards.finding import info, listed, warning
from draftwise.measure.guards.readings import pace_s, plain_answers
from draftwise.measure.thresholds import Thresholds

__all__ = ["check_machine"]

_FOR_HEAT = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_slowdown", "hw_power_brake_slowdown")
"""Reasons for a lower GPU clock that no load of a healthy machine brings about."""
_POWER_CAP = "sw_power_cap"
_STEP_S = 0.05
"""A clock that is only slewed drifts at most 0.5 ms a second from the monotonic one (adjtimex(2): 500 ppm)."""
_SLEW = 5e-4
Device = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growth:
    """What the counters of the machine grew by from the end of one turn to the end of the next."""

    arm: str
    seconds: float
    cpu: Mapping[str, float]
    gpu: Mapping[str, float]
    """Seconds for which each reason limited the clock: the most limited GPU."""


def check_machine(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield what disturbed the machine while it was measured, as far as it says."""
    windows = sorted((each for each in run.windows), key=lambda each: each.turn)
    growths = [each for pair in pairwise(windows) if (each := _growth(*pair)) is not None]
    yield from _cpu_limits(growths, windows, thresholds)
    if all(arm.url is None for arm in run.plan.arms):
        yield from _others(growths, windows, thresholds)
    yield from _gpu_limits(growths, windows, thresholds)
    yield from _falling_clocks(windows, thresholds)
    yield from _clock_jumps(windows)
    yield from _noise(run, thresholds)


def _growth(before: Window, after: Window) -> _Growth | None:
    """Return the growth between two turns of one session, None where one was not read or counters began anew."""
    seconds = after.device.get("monotonic_s", 0) - before.device.get("monotonic_s", 0)
    if not (before.device and after.device and seconds > 0):
        return None
    names = ("busy_s", "steal_s", "own_s", "quota_stopped_s", "thermal_stops")
    old, new = before.device.get("cpu", {}), after.device.get("cpu", {})
    cpu = {name: new[name] - old[name] for name in names if name in old and name in new}
    if any(value < 0 for value in cpu.values()):
        return None
    return _Growth(arm=after.arm, seconds=seconds, cpu=cpu, gpu=_limited(before.device, after.device))


def _limited(before: Device, after: Device) -> dict[str, float]:
    old = {gpu.get("index"): gpu.get("limited_s", {}) for gpu in before.get("gpus", ())}
    most: dict[str, float] = {}
    for gpu in after.get("gpus", ()):
        for reason, seconds in gpu.get("limited_s", {}).items():
            since = old.get(gpu.get("index"), {}).get(reason)
            if since is not None:
                most[reason] = max(most.get(reason, 0.0), seconds - since)
    return most


def _share(growths: Sequence[_Growth], name: str) -> float:
    """Return the growth of a counter per second."""
    known = [each for each in growths if name in each.cpu]
    return sum(each.cpu[name] for each in known) / sum(each.seconds for each in known) if known else 0.0


def _cores(windows: Sequence[Window]) -> int:
    return max((window.device.get("cpu", {}).get("cores") or 1 for window in windows), default=1)


def _cpu_limits(growths: Sequence[_Growth], windows: Sequence[Window], thresholds: Thresholds) -> Iterator[Finding]:
    if (held := _share(growths, "quota_stopped_s")) > thresholds.held_up:
        text = f"the container's CPU limit held processes of this run up for {held:.2f} s in every second"
        yield warning("cpu-quota", f"{text} (all cores together).", "Raise the limit, or pin whole cores.")
    stolen, cores = _share(growths, "steal_s"), _cores(windows)
    if stolen / cores > thresholds.held_up:
        text = f"the hypervisor gave {stolen / cores:.1%} of this machine's CPU time to others when it was wanted here."
        yield warning("cpu-stolen", text, "Measure on a machine of its own.")
    if heat := sum(each.cpu.get("thermal_stops", 0) for each in growths):
        yield warning("cpu-throttled", f"cores were slowed for heat {heat:.0f} times.", "Cool it, or lower the load.")


def _others(growths: Sequence[_Growth], windows: Sequence[Window], thresholds: Thresholds) -> Iterator[Finding]:
    """CPU that neither this process nor the servers it started used."""
    known = [each for each in growths if {"busy_s", "own_s"} <= each.cpu.keys()]
    cores, seconds = _cores(windows), sum(each.seconds for each in known)
    foreign = sum(each.cpu["busy_s"] - each.cpu["own_s"] for each in known)
    if known and foreign > thresholds.other_processes * cores * seconds:
        text = f"other processes used {foreign / seconds:.2f} of this machine's {cores} cores on average."
        yield warning("machine-shared", text, "Stop what else runs there and measure again.")


def _gpu_limits(growths: Sequence[_Growth], windows: Sequence[Window], thresholds: Thresholds) -> Iterator[Finding]:
    seconds = sum(each.seconds for each in growths)
    limited = {reason: sum(each.gpu.get(reason, 0.0) for each in growths) for reason in _FOR_HEAT}
    worst = max(limited, key=lambda reason: limited[reason])
    seen = [window for window in windows if set(_FOR_HEAT) & _reasons(window)]
    if seconds and limited[worst] > thresholds.held_up * seconds:
        text = f"a GPU ran below its clock for {limited[worst] / seconds:.1%} of the time ({worst})."
        yield warning("gpu-throttled", text, "Look at cooling and power supply, then measure again.")
    elif seen:
        names = listed(sorted(set(_FOR_HEAT) & set().union(*map(_reasons, seen))))
        text = f"a GPU ran below its clock after {len(seen)} of {len(windows)} turns ({names})."
        yield warning("gpu-throttled", text, "Look at cooling and power supply, then measure again.")
    capped = {arm: _capped(growths, arm) for arm in {each.arm for each in growths}}
    if max(capped.values(), default=0.0) > thresholds.power_capped:
        text = ", ".join(f"{arm} {share:.0%}" for arm, share in sorted(capped.items()))
        why = "its clock falls with it, in production as here"
        yield info("gpu-power-capped", f"a GPU ran at its power limit for a share of the time ({text}): {why}.")


def _capped(growths: Sequence[_Growth], arm: str) -> float:
    mine = [each for each in growths if each.arm == arm]
    return sum(each.gpu.get(_POWER_CAP, 0.0) for each in mine) / sum(each.seconds for each in mine)


def _reasons(window: Window) -> set[str]:
    return {reason for gpu in window.device.get("gpus", ()) for reason in gpu.get("reasons", ())}


def _falling_clocks(windows: Sequence[Window], thresholds: Thresholds) -> Iterator[Finding]:
    """A clock that is lower at the end than at the beginning: heat, on machines that do not say so otherwise."""
    for name, read in {"CPU": _cpu_mhz, "GPU": _gpu_mhz}.items():
        clocks = [clock for window in windows if (clock := read(window)) is not None]
        third = len(clocks) // 3
        if third >= 3:
            first, last = median(clocks[:third]), median(clocks[-third:])
            if last < first * (1 - thresholds.clock_fall):
                text = f"the {name} clock fell from {first:.0f} to {last:.0f} MHz over the run."
                yield warning("clock-fell", text, "Let it settle under load before measuring; more warm-up does that.")


def _cpu_mhz(window: Window) -> float | None:
    clock: float | None = window.device.get("cpu", {}).get("mhz")
    return clock


def _gpu_mhz(window: Window) -> float | None:
    """Return the lowest clock of the GPUs that were working."""
    busy = (gpu for gpu in window.device.get("gpus", ()) if "gpu_idle" not in gpu.get("reasons", ()))
    return min((gpu["sm_mhz"] for gpu in busy if "sm_mhz" in gpu), default=None)


def _clock_jumps(windows: Sequence[Window]) -> Iterator[Finding]:
    jumped = [w for w in windows if abs(w.client.clock_jump_s) > _STEP_S + _SLEW * w.wall_s]
    if jumped:
        most = max((window.client.clock_jump_s for window in jumped), key=abs)
        text = f"in {len(jumped)} of {len(windows)} turns the wall clock moved against the monotonic one, by up to "
        why = "it was set (NTP), or the machine slept. Latencies rest on the monotonic clock; a sleep cools caches"
        yield warning("clock-jump", f"{text}{most:+.2f} s: {why}.", "Measure again with time synchronised beforehand.")


def _noise(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """The plain server's times for one and the same request, from pass to pass; closed loops only.

    In an open loop other requests arrive beside it each time.
    """
    closed = {each.label for each in run.conditions if each.concurrency is not None}
    seconds: dict[tuple[str, str, str], list[float]] = {}
    for answer in plain_answers(run):
        if answer.condition in closed and (pace := pace_s(answer)) is not None:
            seconds.setdefault((answer.workload, answer.condition, answer.prompt_id), []).append(pace)
    spread = median([(max(each) - min(each)) / median(each) for each in seconds.values()] or [0.0])
    if spread > thresholds.noise:
        text = f"the plain server's time for one and the same prompt varies by {spread:.0%}: the machine is busy."
        yield warning("noisy-machine", text, "Stop what else runs there and measure again.")
