"""What the machine says about clocks and throttling is read as the kernel and the driver print it."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftwise.measure.device_state import DeviceWatch, read_cpu_state, read_device_state, read_gpu_states
from draftwise.measure.run_context import describe_hardware

HERTZ = os.sysconf("SC_CLK_TCK")
READING = "0, 1980, 1980, 47, 402.25, 700.00"
WriteTool = Callable[[str], None]


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def stat(pid: int, name: str, parent: int, ticks: tuple[int, int, int, int]) -> str:
    times = " ".join(map(str, ticks))
    return f"{pid} ({name}) S {parent} 1 1 0 -1 4194304 9 9 9 9 {times} 20 0 1 0 100 1000 10\n"


def test_busy_and_stolen_seconds(tmp_path: Path) -> None:
    text = "cpu  100 20 30 4000 500 6 7 80 9 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n"
    state = read_cpu_state(write(tmp_path, {"proc/stat": text}))
    assert state["busy_s"] == pytest.approx((100 + 20 + 30 + 6 + 7) / HERTZ)
    assert state["steal_s"] == pytest.approx(80 / HERTZ)


def test_own_seconds_are_those_of_the_whole_family(tmp_path: Path) -> None:
    me = os.getpid()
    files = {
        f"proc/{me}/stat": stat(me, "python", 1, (10, 20, 3, 4)),
        "proc/900001/stat": stat(900001, "a (bad) name", me, (100, 0, 0, 0)),
        "proc/900002/stat": stat(900002, "grandchild", 900001, (1000, 0, 0, 0)),
        "proc/900003/stat": stat(900003, "stranger", 1, (5000, 0, 0, 0)),
    }
    assert read_cpu_state(write(tmp_path, files))["own_s"] == pytest.approx(1137 / HERTZ)


def test_a_quota_of_any_group_above_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/box/cpu.stat": "usage_usec 5\nnr_throttled 0\nthrottled_usec 0\n",
        "sys/fs/cgroup/pod/cpu.stat": "usage_usec 5\nnr_throttled 7\nthrottled_usec 2500000\n",
        "sys/fs/cgroup/cpu.stat": "usage_usec 5\n",
    }
    assert read_cpu_state(write(tmp_path, files))["quota_stopped_s"] == pytest.approx(2.5)


def test_a_quota_of_the_older_groups(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/docker/abc\n0::/\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 1500000000\n",
    }
    assert read_cpu_state(write(tmp_path, files))["quota_stopped_s"] == pytest.approx(1.5)


def test_thermal_stops_and_the_fastest_clock(tmp_path: Path) -> None:
    cpus = "sys/devices/system/cpu"
    files = {
        f"{cpus}/cpu0/thermal_throttle/core_throttle_count": "3\n",
        f"{cpus}/cpu1/thermal_throttle/core_throttle_count": "4\n",
        f"{cpus}/cpu0/cpufreq/scaling_cur_freq": "1200000\n",
        f"{cpus}/cpu11/cpufreq/scaling_cur_freq": "3400000\n",
    }
    state = read_cpu_state(write(tmp_path, files))
    assert (state["thermal_stops"], state["mhz"]) == (7, 3400)


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    assert set(read_cpu_state(tmp_path)) == {"cores"}


@pytest.fixture
def write_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteTool:
    """Return a function that puts a script in the place of the driver's tool; `$1` is the query."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write_script(body: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(0o755)

    return write_script


@pytest.mark.parametrize(
    ("used", "cards"),
    [(None, ["H100", "H200"]), (["1"], ["H200"]), (["GPU-a"], ["H100"]), ([], [])],
)
def test_hardware_is_what_the_servers_use(write_tool: WriteTool, used: list[str] | None, cards: list[str]) -> None:
    write_tool("echo '0, GPU-a0, H100, 81559 MiB, 580.1'; echo '1, GPU-b0, H200, 143771 MiB, 580.1'; echo No more")
    assert [each.split(",")[0] for each in describe_hardware(used).gpus] == cards


def test_a_new_driver(write_tool: WriteTool) -> None:
    write_tool(f"echo '{READING}, 0x0000000000000024, 1500000, 0, 0, 250000'")
    (gpu,) = read_gpu_states()
    assert (gpu["sm_mhz"], gpu["sm_max_mhz"], gpu["temperature_c"], gpu["power_w"]) == (1980, 1980, 47, 402.25)
    assert gpu["reasons"] == ["sw_power_cap", "sw_thermal_slowdown"]
    assert gpu["limited_s"]["sw_power_cap"] == pytest.approx(1.5)
    assert gpu["limited_s"]["hw_power_brake_slowdown"] == pytest.approx(0.25)


def test_an_old_driver_refuses_what_it_does_not_know(write_tool: WriteTool) -> None:
    write_tool(
        'case "$1" in *event_reasons*) echo \'Field "x" is not a valid field to query.\'; exit 2;; esac\n'
        f"echo '{READING}, 0x0000000000000001'\necho '1, [N/A], 1980, 47, [Not Supported], 700.00, Not Active'"
    )
    first, second = read_gpu_states()
    assert first["reasons"] == ["gpu_idle"]
    assert "limited_s" not in first
    assert set(second) == {"index", "sm_max_mhz", "temperature_c", "power_limit_w", "read_s"}


@pytest.mark.parametrize("body", ["echo 'NVIDIA-SMI has failed'; exit 9", "exit 0"])
def test_a_driver_that_fails_says_nothing(write_tool: WriteTool, body: str) -> None:
    write_tool(body)
    assert read_gpu_states() == []
    assert "gpus" not in read_device_state()


def test_a_driver_that_hangs_is_left_alone(write_tool: WriteTool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.measure.device_state._TIMEOUT_S", 0.05)
    write_tool("exec sleep 30")
    assert read_gpu_states() == []


def test_without_the_tool_there_is_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_gpu_states() == []


def test_gpus_are_asked_only_when_wanted(write_tool: WriteTool) -> None:
    write_tool(f"echo '{READING}, 0x0'")
    assert "gpus" not in read_device_state(gpus=False)
    assert read_device_state()["gpus"][0]["reasons"] == []
    assert read_device_state()["monotonic_s"] >= 0


def test_the_driver_is_asked_again_only_after_a_while(write_tool: WriteTool, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    write_tool(f"echo x >> {asked}\necho '{READING}, 0x0'")

    async def read_twice() -> list[dict[str, Any]]:
        watch = DeviceWatch(gpus=True)
        return [await watch.read(), await watch.read()]

    first, second = asyncio.run(read_twice())
    assert asked.read_text().count("x") == 1
    assert first["gpus"] == second["gpus"]
    assert second["monotonic_s"] > first["monotonic_s"]
    assert "gpus" not in asyncio.run(DeviceWatch(gpus=False).read())


def test_the_time_for_which_something_waited_for_a_core(tmp_path: Path) -> None:
    lines = "some avg10=5.87 avg60=3.58 avg300=5.16 total=7175941634\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"
    assert read_cpu_state(write(tmp_path, {"proc/pressure/cpu": lines}))["waited_s"] == pytest.approx(7175.941634)
