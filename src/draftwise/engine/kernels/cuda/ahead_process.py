"""The process that compiles kernels (`engine.compilers`): reads a job a line, writes a line for each that failed."""

from __future__ import annotations

import json
import multiprocessing
import sys
from itertools import chain
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from draftwise.engine.compilers import CompileJob
from draftwise.engine.kernels.cuda.ahead import compile_job, prepare

__all__ = ["main"]


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
    """Compile what stdin lists, `count` kernels at a time, as soon as it is listed."""
    prepare()  # while there are no jobs yet; so is this
    _find_launcher()
    jobs = (CompileJob(*json.loads(line)) for line in iter(sys.stdin.readline, ""))
    first = next(jobs, None)
    if first is None:
        return
    driver.set_active(_NoGPU(first.target))
    # Forked, as importing torch takes longer than compiling most kernels; this process has no threads and no GPU.
    with multiprocessing.get_context("fork").Pool(count) as pool:
        for failure in pool.imap_unordered(_try, chain((first,), jobs)):
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


def _try(job: CompileJob) -> str:
    """Compile a job; return why it failed, or nothing."""
    try:
        compile_job(job)
    except Exception as error:
        return f"{job.name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return ""
