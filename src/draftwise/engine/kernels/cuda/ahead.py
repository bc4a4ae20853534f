"""Which kernels a rehearsal of the engine's steps would launch, and how one of them is compiled without launching it.

They are compiled into Triton's cache (`compilers`), and so is the C code that Triton makes for each signature.
Afterwards every launch finds its kernel there. What a recording misses is compiled by its first launch, as ever.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import driver

from draftwise.engine.compilers import Job

__all__ = ["compile_job", "note_late_compilations", "recording"]

logger = logging.getLogger("draftwise.engine")


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
