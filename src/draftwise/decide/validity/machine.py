"""What the machine did to a run: throttling, quotas, stolen time, load of others, clocks that jump."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from draftwise.core import Finding, Run, Window
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.finding import warning
from draftwise.decide.validity.gpu import SETTLE, check_gpus, find_fall
from draftwise.decide.validity.readings import LONGEST_GAP_S, pace_s, plain_answers

__all__ = ["check_machine"]

_STEP_S = 0.05
"""A clock that is only slewed drifts at most 0.5 ms a second from the monotonic one (adjtimex(2): 500 ppm)."""
_SLEW = 5e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growth:
    """What the counters of the machine grew by from the end of one turn to the end of the next."""

    seconds: float
    cpu: Mapping[str, float]


def check_machine(run: Run, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield what disturbed the machine while it was measured, as far as it says."""
    windows = sorted((each for each in run.windows), key=lambda each: each.turn)
    growths = [each for pair in pairwise(windows) if (each := _growth(*pair)) is not None]
    yield from _cpu_limits(growths, windows, thresholds)
    if all(arm.url is None for arm in run.plan.arms):
        yield from _others(growths, windows, thresholds)
    yield from check_gpus(windows, thresholds)
    yield from _falling_clock(windows, thresholds)
    yield from _clock_jumps(windows)
    yield from _noise(run, thresholds)


def _growth(before: Window, after: Window) -> _Growth | None:
    """Return the growth between two turns of one session, None where one was not read or counters began anew."""
    seconds = after.device.get("monotonic_s", 0) - before.device.get("monotonic_s", 0)
    if not (before.device and after.device and 0 < seconds < after.wall_s + LONGEST_GAP_S):
        return None
    names = ("busy_s", "steal_s", "own_s", "quota_stopped_s", "thermal_stops")
    old, new = before.device.get("cpu", {}), after.device.get("cpu", {})
    cpu = {name: new[name] - old[name] for name in names if name in old and name in new}
    if any(value < 0 for value in cpu.values()):
        return None
    return _Growth(seconds=seconds, cpu=cpu)


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


def _falling_clock(windows: Sequence[Window], thresholds: Thresholds) -> Iterator[Finding]:
    """Heat, on machines that do not say so otherwise."""
    clocks = [window.device["cpu"]["mhz"] for window in windows if "mhz" in window.device.get("cpu", {})]
    if (fall := find_fall(clocks, thresholds)) is not None:
        yield warning("clock-fell", f"the CPU clock fell {fall} over the run.", SETTLE)


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
