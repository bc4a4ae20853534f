"""The process that compiles kernels (`engine.compilers`): it reads all jobs, and writes a line for each that failed."""

from __future__ import annotations

import json
import multiprocessing
import sys
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from draftwise.engine.compilers import Job
from draftwise.engine.kernels.cuda.ahead import compile_job, prepare

__all__ = ["main"]

_LONG = ("attend_hopper", "attend", "hopper_kernel", "gated_kernel", "matmul_kernel", "_multiply")
"""Kernels that take longest to compile, the longest first: in this order they begin."""


class _NoGPU:
    """Stands for the driver of a GPU, of which the compiler asks nothing but what kind it is."""

    def __init__(self, target: tuple[str, int, int]) -> None:
        self._target = GPUTarget(*target)
        self.launcher_cls = _find_launcher()

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


def main(count: int) -> None:
    """Compile what stdin lists, `count` kernels at a time."""
    prepare()  # while there are no jobs yet; so is this
    _find_launcher()
    jobs = [Job(*fields) for fields in map(json.loads, sys.stdin)]
    if not jobs:
        return
    driver.set_active(_NoGPU(jobs[0].target))
    jobs.sort(key=lambda job: _LONG.index(job.name) if job.name in _LONG else len(_LONG))
    # Forked, as importing torch takes longer than compiling most kernels; this process has no threads and no GPU.
    with multiprocessing.get_context("fork").Pool(min(count, len(jobs))) as pool:
        for failure in pool.imap_unordered(_try, jobs):
            if failure:
                print(failure, flush=True)


def _find_launcher() -> Any:
    """Return what compiles the C code that launches a kernel; None where there is no driver to link it with."""
    try:
        from triton.backends.nvidia.driver import CudaLauncher, CudaUtils

        CudaUtils()  # C code too, which every process needs
    except Exception:  # no compiler, no libcuda: the engine's own process will say so if it matters
        return None
    return CudaLauncher


def _try(job: Job) -> str:
    """Compile a job; return why it failed, or nothing."""
    try:
        compile_job(job)
    except Exception as error:
        return f"{job.name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""
