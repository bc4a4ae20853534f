"""The cores that a process really has: affinity and quotas of both kinds of control groups."""

import os
from pathlib import Path

import pytest

from draftwise.machine.processes import count_cores


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max 100000", 8), ("150000 100000", 1), ("50000 100000", 1), ("250000 100000", 2), ("6400000 100000", 8)],
)
def test_quota_of_cgroup_v2(tmp_path: Path, limit: str, expected: int) -> None:
    files = {"proc/self/cgroup": "0::/pod/box\n", "sys/fs/cgroup/pod/box/cpu.max": limit + "\n"}
    assert count_cores(put(tmp_path, files)) == expected


def test_the_tightest_level_counts(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/box/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/pod/cpu.max": "300000 100000\n",
        "sys/fs/cgroup/cpu.max": "max 100000\n",
    }
    assert count_cores(put(tmp_path, files)) == 3


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("150000", 1), ("300000", 3)])
def test_quota_of_cgroup_v1(tmp_path: Path, quota: str, expected: int) -> None:
    group = "sys/fs/cgroup/cpu,cpuacct/docker/abc"
    files = {
        "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/docker/abc\n0::/\n",
        f"{group}/cpu.cfs_quota_us": f"{quota}\n",
        f"{group}/cpu.cfs_period_us": "100000\n",
    }
    assert count_cores(put(tmp_path, files)) == expected


def test_a_container_sees_its_group_where_the_mount_begins(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/../../outside\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}
    assert count_cores(put(tmp_path, files)) == 2


def test_affinity_counts_where_there_is_no_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5}, raising=False)
    assert count_cores(tmp_path) == 2


def test_a_system_without_affinity_or_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert count_cores(tmp_path) == 4
