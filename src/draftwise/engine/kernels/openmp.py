"""Runs compiled kernels on the threads that torch already has.

Two pools of threads on the same cores slow each other down: torch's OpenMP workers spin for a while after each
parallel region. So numba's own pool is never started; its functions run inside torch's.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["Team"]

_Job = ctypes.c_int64 * 16
# Calls that keep the interpreter lock: they last microseconds, and losing it to another thread costs more.
_Kernel = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class Team:
    """Torch's threads, or this thread alone where torch's OpenMP runtime cannot be reached."""

    def __init__(self) -> None:
        self._parallel = _find_gomp_parallel()

    def kernel(self, compiled: Any) -> Callable[..., None]:
        """Return a function that runs a compiled kernel over a job.

        Its first argument says whether to use all threads; the rest are the job's int64 values after the task
        counter.
        """
        address, call, parallel = compiled.address, _Kernel(compiled.address), self._parallel

        def run(wide: bool, *values: int) -> None:
            job = _Job(0, *values)
            if wide and parallel is not None:
                parallel(address, job, torch.get_num_threads(), 0)
            else:
                call(job)

        return run


def _find_gomp_parallel() -> Callable[..., None] | None:
    """Return `GOMP_parallel(function, data, num_threads, flags)` of the OpenMP runtime that torch has loaded.

    LLVM's and Intel's runtimes export it as well as GNU's.
    """
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return None
    for library in dict.fromkeys(re.findall(r"/\S*lib(?:gomp|iomp5|omp)\b\S*", mapped)):
        call = getattr(ctypes.PyDLL(library), "GOMP_parallel", None)
        if call is not None:
            call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            call.restype = None
            return call
    return None
