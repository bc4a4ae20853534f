"""Runs a compiled function on the threads that torch already has.

Two pools of threads on the same cores slow each other down: torch's OpenMP workers spin for a while after
each parallel region. So numba's own pool is never started; its functions run inside torch's.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import torch

__all__ = ["Launcher"]

Job = ctypes.c_int64 * 24
"""Arguments of a compiled function; the first is the counter its threads draw tasks from."""


class Launcher:
    """Calls C functions `void (*)(int64 *job)`, alone or once on every thread of torch's pool."""

    def __init__(self) -> None:
        self._team = _find_team_call()

    def __call__(self, address: int, *arguments: int, parallel: bool) -> None:
        """Run the function at `address`; in parallel, its calls share the tasks through the job's counter."""
        job = Job(0, *arguments)
        if parallel and self._team is not None:
            self._team(address, job, torch.get_num_threads(), 0)
        else:
            _FUNCTION(address)(job)


_FUNCTION = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


def _find_team_call() -> Callable[..., None] | None:
    """Return `GOMP_parallel(function, data, num_threads, flags)` of the OpenMP runtime loaded by torch.

    LLVM's and Intel's runtimes export it too. None where there is no such runtime: then one thread works.
    """
    try:
        mapped = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    for library in dict.fromkeys(re.findall(r"/\S*lib(?:gomp|iomp5|omp)\b\S*", mapped)):
        # PyDLL keeps the interpreter lock: calls last microseconds, and giving it up could cost milliseconds.
        call = getattr(ctypes.PyDLL(library), "GOMP_parallel", None)
        if call is not None:
            call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            call.restype = None
            return call
    return None
