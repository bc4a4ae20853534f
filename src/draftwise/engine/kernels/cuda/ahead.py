"""Compiles kernels ahead of their first launch, in processes of their own: the compiler needs cores and no GPU.

A rehearsal of the engine's steps is recorded, in which no kernel is launched; what it would have launched is compiled
side by side, into Triton's cache, and so is the C code that Triton makes for each signature. Afterwards every launch
finds its kernel there. What a recording misses is compiled by its first launch, as ever.
"""

from __future__ import annotations

import importlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import driver

__all__ = ["Compilers", "Job", "compile_job", "note_late_compilations", "recording"]

logger = logging.getLogger("draftwise.engine")

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from draftwise.engine.kernels.cuda.ahead_process import main; main(int(sys.argv[1]))"
)
"""Code for the new interpreter: it has the same module search path as this one."""


class Job(NamedTuple):
    """A kernel to compile."""

    module: str
    name: str
    """Of the function in the module."""
    form: str
    """What Triton compiles different code for, as it writes that down itself (JSON)."""
    target: tuple[str, int, int]
    """Backend, compute capability and threads of a warp."""


@contextmanager
def recording(jobs: dict[Job, None]) -> Iterator[None]:
    """Launch no kernel inside; add to `jobs` those that would have to be compiled.

    New tensors hold zeros meanwhile: what kernels leave unwritten is looked up by operations of torch.
    """
    target: Any = driver.active.get_current_target()

    def note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:  # noqa: A002  (Triton's name)
        form = compile["specialization_data"]
        jobs[Job(fn.module, fn.name, form, (target.backend, target.arch, target.warp_size))] = None
        return True  # Triton goes on without compiling or launching

    runtime = triton.knobs.runtime
    before = runtime.jit_cache_hook
    runtime.jit_cache_hook = note
    try:
        with _Zeros():
            yield
    finally:
        runtime.jit_cache_hook = before


class _Zeros(TorchDispatchMode):
    """Fills new tensors with zeros."""

    _MAKERS = tuple(
        getattr(torch.ops.aten, name)
        for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket in self._MAKERS and isinstance(made, Tensor):
            made.zero_()
        return made


class Compilers:
    """A process that starts its compilers while this one does something else.

    Args:
        count: kernels compiled at a time.
    """

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-P", "-c", _BOOT, str(count), json.dumps(sys.path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Compilers:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """End the process, whatever it is doing."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def compile(self, jobs: Iterable[Job]) -> list[str]:
        """Compile everything; return what could not be, with the reason. To be called once."""
        answers, _ = self._process.communicate("".join(f"{json.dumps(job)}\n" for job in jobs))
        failed = [line for line in answers.splitlines() if line]
        if self._process.returncode:
            failed.append(f"the compilers' process ended with status {self._process.returncode}")
        return failed


def compile_job(job: Job) -> None:
    """Compile a kernel into Triton's cache; the driver in use says for which GPU."""
    function = getattr(importlib.import_module(job.module), job.name)
    compiled = getattr(function, "jit", function).preload(job.form)  # a `launch.Kernel` wraps Triton's function
    launcher = getattr(driver.active, "launcher_cls", None)
    if compiled is not None and launcher is not None:
        launcher(compiled.src, compiled.metadata)


def note_late_compilations() -> None:
    """Log every kernel that is compiled from now on: requests wait for it."""

    def note(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            logger.warning("Kernel %s was compiled while requests wait (%s).", src.name, src.constants)

    triton.knobs.compilation.listener = note
