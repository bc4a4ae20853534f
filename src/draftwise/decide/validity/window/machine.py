"""What the machine did to a run: throttling, quotas, stolen time, load of others, clocks that jump."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from draftwise.core import Finding, TurnRecord
from draftwise.decide.machine import MachineUse, measure_use
from draftwise.decide.thresholds import Thresholds
from draftwise.decide.validity.finding import warning
from draftwise.decide.validity.window.gpu import SETTLE, check_gpus, find_fall

__all__ = ["check_machine"]

_STEP_S = 0.05
"""A clock that is only slewed drifts at most 0.5 ms a second from the monotonic one (adjtimex(2): 500 ppm)."""
_SLEW = 5e-4


def check_machine(turns: Iterable[TurnRecord], thresholds: Thresholds, *, is_ours: bool) -> Iterator[Finding]:
    """Yield what disturbed the machine while it was measured, as far as it says.

    Args:
        is_ours: whether all servers on it were started by this run.
    """
    turns = sorted(turns, key=lambda each: each.turn)
    growths = measure_use(turns)
    yield from _cpu_limits(growths, turns, thresholds)
    if is_ours:
        yield from _others(growths, turns, thresholds)
    yield from check_gpus(turns, thresholds)
    yield from _falling_clock(turns, thresholds)
    yield from _clock_jumps(turns)


def _share(growths: Sequence[MachineUse], name: str) -> float:
    """Return the growth of a counter per second."""
    known = [each for each in growths if name in each.cpu]
    return sum(each.cpu[name] for each in known) / sum(each.seconds for each in known) if known else 0.0


def _cores(turns: Sequence[TurnRecord]) -> int:
    return max((turn.device.get("cpu", {}).get("cores") or 1 for turn in turns), default=1)


def _cpu_limits(
    growths: Sequence[MachineUse], turns: Sequence[TurnRecord], thresholds: Thresholds
) -> Iterator[Finding]:
    if (held := _share(growths, "quota_stopped_s")) > thresholds.held_up:
        text = f"the container's CPU limit held processes of this run up for {held:.2f} s in every second"
        yield warning("cpu-quota", f"{text} (all cores together).", "Raise the limit, or pin whole cores.")
    stolen, cores = _share(growths, "steal_s"), _cores(turns)
    if stolen / cores > thresholds.held_up:
        text = f"the hypervisor gave {stolen / cores:.1%} of this machine's CPU time to others when it was wanted here."
        yield warning("cpu-stolen", text, "Measure on a machine of its own.")
    if heat := sum(each.cpu.get("thermal_stops", 0) for each in growths):
        yield warning("cpu-throttled", f"cores were slowed for heat {heat:.0f} times.", "Cool it, or lower the load.")


def _others(growths: Sequence[MachineUse], turns: Sequence[TurnRecord], thresholds: Thresholds) -> Iterator[Finding]:
    """CPU that neither this process nor the servers it started used."""
    known = [(each, foreign) for each in growths if (foreign := each.foreign_s) is not None]
    cores, seconds = _cores(turns), sum(each.seconds for each, _ in known)
    foreign = sum(seconds for _, seconds in known)
    if known and foreign > thresholds.other_processes * cores * seconds:
        text = f"other processes used {foreign / seconds:.2f} of this machine's {cores} cores on average."
        yield warning("machine-shared", text, "Stop what else runs there and measure again.")


def _falling_clock(turns: Sequence[TurnRecord], thresholds: Thresholds) -> Iterator[Finding]:
    """Heat, on machines that do not say so otherwise."""
    clocks = [turn.device["cpu"]["mhz"] for turn in turns if "mhz" in turn.device.get("cpu", {})]
    if (fall := find_fall(clocks, thresholds)) is not None:
        yield warning("clock-fell", f"the CPU clock fell {fall} over the run.", SETTLE)


def _clock_jumps(turns: Sequence[TurnRecord]) -> Iterator[Finding]:
    jumped = [each for each in turns if abs(each.client.clock_jump_s) > _STEP_S + _SLEW * each.wall_s]
    if jumped:
        most = max((turn.client.clock_jump_s for turn in jumped), key=abs)
        text = f"in {len(jumped)} of {len(turns)} turns the wall clock moved against the monotonic one, by up to "
        why = "it was set (NTP), or the machine slept. Latencies rest on the monotonic clock; a sleep cools caches"
        yield warning("clock-jump", f"{text}{most:+.2f} s: {why}.", "Measure again with time synchronised beforehand.")
