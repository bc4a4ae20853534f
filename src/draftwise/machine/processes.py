"""Processes: their cores and control groups, the command of a new interpreter, and the limit of open files."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from draftwise.core import InvalidSetup

_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of linux/prctl.h."""
_ROOT = Path("/")


def count_cores(root: Path = _ROOT) -> int:
    """Return the number of whole cores that this process can keep busy, at least 1.

    The minimum of the machine's cores, the cores allowed by the scheduler (`taskset`, cpusets), and the CPU time of its
    control groups (`docker run --cpus 1.5`, a pod's CPU limit). The last is rounded down: spinning threads would use up
    the quota within a period and then all stop.

    Args:
        root: root folder of the Linux system to inspect.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *(int(quota) for quota in _quotas(root))]))


def find_control_groups(root: Path = _ROOT) -> Iterator[Path]:
    """Yield the control-group folders that limit this process's CPU: its own and all parents (cgroup v2 or v1)."""
    for line in read_system_file(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        for folder in (Path(path), *Path(path).parents):
            yield mount / folder.relative_to("/")


def _quotas(root: Path) -> Iterator[float]:
    """Yield the cores' worth of CPU time that each control group grants, where it sets a limit."""
    for folder in find_control_groups(root):
        limits = read_system_file(folder / "cpu.max").split() or [
            read_system_file(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
        ]
        if len(limits) == 2 and all(limit.isdigit() for limit in limits):  # v2 writes "max", v1 -1 for none
            yield int(limits[0]) / int(limits[1])


def cpu_name() -> str:
    """Return the processor's model name if the kernel reports it, else the architecture."""
    lines = read_system_file(_ROOT / "proc/cpuinfo").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()


def read_system_file(file: Path) -> str:
    """Return the text of a kernel file; empty if it is absent or its process is gone."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def make_command(module: str, number: int, *, ends_with_parent: bool = False) -> list[str]:
    """Return the command that calls a module's `main` with a number, under this process's module search path.

    With `ends_with_parent`, Linux kills the process as soon as the thread that started it ends.
    """
    bind = f"from {__name__} import bind_to; bind_to({os.getpid()}); " if ends_with_parent else ""
    code = f"import json, sys; sys.path[:] = json.loads(sys.argv[2]); {bind}from {module} import main; "
    return [sys.executable, "-P", "-c", f"{code}main(int(sys.argv[1]))", str(number), json.dumps(sys.path)]


def bind_to(parent: int) -> None:
    """End this process with its parent, whatever is computed then, where the system can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            sys.exit(1)


def raise_file_limit() -> int | None:
    """Raise the limit on open files (streams count) to the system's maximum, and return it; None: no limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # (macOS has a lower limit of its own than the one it calls hard.)
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return None if hard == resource.RLIM_INFINITY else hard


def require_posix(what: str) -> None:
    """Do nothing on POSIX systems.

    Raises:
        InvalidSetup: the system is not POSIX.
    """
    if not hasattr(os, "fork"):
        raise InvalidSetup.because(
            "needs-posix",
            f"{what} on Linux and macOS only.",
            fix="On Windows, use WSL (`wsl --install`), or name a server that runs already by its URL.",
        )
