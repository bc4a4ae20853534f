"""Reads the machine's state during a turn: clocks, temperatures, throttling, quotas, stolen time, CPU of others."""

from __future__ import annotations

import asyncio
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from draftwise.machine.processes import find_control_groups, read_system_file

DeviceReader = Callable[[], Awaitable[Mapping[str, Any]]]

_ROOT = Path("/")
_TIMEOUT_S = 5.0
_GPUS_EVERY_S = 5.0

REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h)."""
_COUNTED = ("sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
_READINGS = ("index", "clocks.sm", "clocks.max.sm", "temperature.gpu", "power.draw", "power.limit")
_DIALECTS: tuple[tuple[str, ...], ...] = (
    (*_READINGS, "clocks_event_reasons.active", *(f"clocks_event_reasons_counters.{reason}" for reason in _COUNTED)),
    (*_READINGS, "clocks_event_reasons.active"),
    (*_READINGS, "clocks_throttle_reasons.active"),
)
"""Query fields, newest first. A driver refuses the whole query if it does not know one field."""


def read_device_state(*, gpus: bool = True) -> dict[str, Any]:
    """Return the state of this machine as JSON values. Readings that fail are absent.

    Reading `cpu` takes a few milliseconds. `gpus` starts nvidia-smi, which takes about 50 ms and most of a core. Turn
    it off if no server runs here, and send no request before it ends.

    Counters (`busy_s`, `steal_s`, ...) have no common start; use the difference between two readings.
    """
    state: dict[str, Any] = {"monotonic_s": time.monotonic(), "cpu": read_cpu_state()}
    if gpus and (found := read_gpu_states()):
        state["gpus"] = found
    return state


class DeviceWatch:
    """Reads this machine's state after each turn, and its GPUs' at most every few seconds.

    A driver query costs more than a short turn, and its counters can wait.

    Args:
        gpus: whether servers run on this machine.
    """

    def __init__(self, *, gpus: bool) -> None:
        self._due_s = 0.0 if gpus else math.inf
        self._gpus: dict[str, Any] = {}

    async def read(self) -> dict[str, Any]:
        """Return the same as `read_device_state`, with the latest GPU reading."""
        is_due = time.monotonic() >= self._due_s
        state = await asyncio.to_thread(read_device_state, gpus=is_due)
        if is_due:
            self._due_s = time.monotonic() + _GPUS_EVERY_S
            self._gpus = {name: value for name, value in state.items() if name == "gpus"}
        return self._gpus | state


def read_cpu_state(root: Path = _ROOT) -> dict[str, Any]:
    """Return the processor's counters and clocks, as reported by the Linux system under `root`.

    `busy_s`, `steal_s`: CPU seconds in use on all cores, and taken by the hypervisor. `own_s`: CPU seconds of this
    process and its descendants, including servers that it started. `quota_stopped_s`: seconds in which the container's
    CPU limit stopped its processes. `waited_s`: seconds in which at least one process waited for a core (pressure stall
    information). `thermal_stops`: how often heat slowed a core. `mhz`: current clock of the fastest core.
    """
    state = {
        "cores": os.cpu_count(),
        **_times(root / "proc/stat"),
        "own_s": _own_seconds(root / "proc", os.getpid()),
        **_quota(root),
        "waited_s": _waited_seconds(root / "proc/pressure/cpu"),
        "thermal_stops": _sum(root, "sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count"),
        "mhz": _fastest_mhz(root),
    }
    return {name: value for name, value in state.items() if value is not None}


def _times(stat: Path) -> dict[str, float]:
    """Return busy and stolen seconds (proc(5): user nice system idle iowait irq softirq steal guest guest_nice)."""
    ticks = [int(each) for each in read_system_file(stat).partition("\n")[0].split()[1:]]
    if len(ticks) < 8:
        return {}
    user, nice, system, _, _, irq, softirq, steal = ticks[:8]
    hertz = os.sysconf("SC_CLK_TCK")
    return {"busy_s": (user + nice + system + irq + softirq) / hertz, "steal_s": steal / hertz}


def _waited_seconds(pressure: Path) -> float | None:
    """Return for how long some process has waited (`some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS`)."""
    found = re.search(r"^some .*total=(\d+)", read_system_file(pressure), re.MULTILINE)
    return int(found[1]) / 1e6 if found else None


def _own_seconds(proc: Path, pid: int) -> float | None:
    """Return CPU seconds of a process, its living descendants and the children it has waited for."""
    rows = dict(_processes(proc))
    if pid not in rows:
        return None
    children: dict[int, list[int]] = {}
    for each, (parent, _) in rows.items():
        children.setdefault(parent, []).append(each)
    ticks, left = 0, [pid]
    while left:
        each = left.pop()
        ticks += rows[each][1]
        left += children.get(each, ())
    return ticks / os.sysconf("SC_CLK_TCK")


def _processes(proc: Path) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield pid, parent and clock ticks (utime + stime + cutime + cstime) of each process."""
    with suppress(OSError), os.scandir(proc) as entries:
        for entry in entries:
            if entry.name.isdigit():
                # The name in brackets may hold spaces and brackets itself.
                fields = read_system_file(proc / entry.name / "stat").rpartition(")")[2].split()
                if len(fields) > 14:
                    yield int(entry.name), (int(fields[1]), sum(map(int, fields[11:15])))


def _quota(root: Path) -> dict[str, float]:
    """Return how long CPU limits held this process's control groups, all levels together (cgroup v2 or v1)."""
    stopped = None
    for folder in find_control_groups(root):
        fields = dict(
            line.split() for line in read_system_file(folder / "cpu.stat").splitlines() if len(line.split()) == 2
        )
        if "throttled_usec" in fields:
            stopped = (stopped or 0.0) + int(fields["throttled_usec"]) / 1e6
        elif "throttled_time" in fields:
            stopped = (stopped or 0.0) + int(fields["throttled_time"]) / 1e9
    return {} if stopped is None else {"quota_stopped_s": stopped}


def _sum(root: Path, pattern: str) -> int | None:
    counts = [int(text) for file in root.glob(pattern) if (text := read_system_file(file).strip()).isdigit()]
    return sum(counts) if counts else None


def _fastest_mhz(root: Path) -> float | None:
    files = root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
    return max((int(text) / 1e3 for file in files if (text := read_system_file(file).strip()).isdigit()), default=None)


def read_gpu_states() -> list[dict[str, Any]]:
    """Return one row per NVIDIA GPU, or no rows if nvidia-smi is absent, fails or hangs.

    `sm_mhz` and `sm_max_mhz` are clocks. `reasons` lists what limits the clock now. `limited_s` has the seconds for
    which each reason limited it since the driver was loaded (newer drivers only). `read_s` is the monotonic time.
    """
    tool = shutil.which("nvidia-smi")
    for fields in _DIALECTS if tool else ():
        command = [str(tool), f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        read_s = time.monotonic()
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return []
        if answer.returncode == 0:
            rows = (dict(zip(fields, map(str.strip, line.split(",")), strict=False)) for line in _lines(answer.stdout))
            return [_gpu(row) | {"read_s": read_s} for row in rows]
    return []


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _gpu(row: Mapping[str, str]) -> dict[str, Any]:
    names = {
        "index": "index",
        "clocks.sm": "sm_mhz",
        "clocks.max.sm": "sm_max_mhz",
        "temperature.gpu": "temperature_c",
        "power.draw": "power_w",
        "power.limit": "power_limit_w",
    }
    state: dict[str, Any] = {ours: _number(row.get(theirs, "")) for theirs, ours in names.items()}
    active = next((value for name, value in row.items() if name.endswith("_reasons.active")), "")
    if re.fullmatch(r"0x[0-9a-fA-F]+", active):
        state["reasons"] = [reason for bit, reason in REASONS.items() if int(active, 16) & bit]
    counters = {name.rpartition(".")[2]: _number(value) for name, value in row.items() if "_counters." in name}
    if known := {reason: us / 1e6 for reason, us in counters.items() if us is not None}:
        state["limited_s"] = known
    return {name: value for name, value in state.items() if value is not None}


def _number(text: str) -> float | None:
    """Return a reading without its unit, None for `[N/A]` and its like."""
    found = re.match(r"-?\d+(\.\d+)?", text)
    return float(found[0]) if found else None
