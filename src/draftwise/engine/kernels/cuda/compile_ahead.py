"""Compiles the kernels that a rehearsal of the engine's steps would launch, without launching them.

They are compiled into Triton's cache (`compilers`), and so is the C code that Triton makes for each signature.
Afterwards every launch finds its kernel there. What a recording misses is compiled by its first launch, as ever.
`main` is the process that does it: it reads a job a line and writes a line for each that failed.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import multiprocessing
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.cache import triton_key
from triton.runtime.jit import JITFunction

from draftwise.engine.compilers import CompileJob
from draftwise.engine.kernels import cuda

logger = logging.getLogger("draftwise.engine")
_preparing = threading.Lock()


def prepare() -> None:
    """Hash Triton and all kernels, as every process must before it looks for one that another has compiled.

    Triton (3.6.0, `DependenciesFinder._update_hash`) hashes the constants of a function into a kernel that calls it
    only if it has hashed the function before. So functions come first here: in the order of launches, two processes
    would keep one kernel under two names. Where two threads ask for it, one waits for the other.
    """
    with _preparing:
        _prepare_once()


@functools.cache
def _prepare_once() -> None:
    triton_key()
    seen = set[int]()
    for each in pkgutil.iter_modules(cuda.__path__, f"{cuda.__name__}."):
        try:
            module = importlib.import_module(each.name)
        except (ImportError, AttributeError, TypeError):  # not every Triton has Gluon
            continue
        for value in vars(module).values():
            _hash(value, seen)


def _hash(value: Any, seen: set[int]) -> None:
    """Hash a kernel, if that is one, and before it what it calls."""
    function = getattr(value, "jit", value)  # a `launch.Kernel` wraps Triton's function
    if not isinstance(function, JITFunction) or id(function) in seen:
        return
    seen.add(id(function))
    for name in function.fn.__code__.co_names:
        _hash(function.fn.__globals__.get(name), seen)
    _ = function.cache_key


@contextmanager
def recording(take: Callable[[CompileJob], object]) -> Iterator[None]:
    """Launch no kernel inside; give to `take`, once each, those that would have to be compiled.

    New tensors hold zeros meanwhile: what kernels leave unwritten is looked up by operations of torch.
    """
    target: Any = driver.active.get_current_target()
    seen, jobs = set[object](), set[CompileJob]()
    launch = JITFunction.run

    def note(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:  # noqa: A002  (Triton's name)
        form = compile["specialization_data"]
        job = CompileJob(fn.module, fn.name, form, (target.backend, target.arch, target.warp_size))
        if job not in jobs:
            jobs.add(job)
            take(job)
        return True  # Triton goes on without compiling or launching

    def run(self: Any, *args: Any, **options: Any) -> None:
        # A model's layers launch the same kernels: Triton would take half a millisecond to see that for each.
        form = (id(self), *map(_form, args), *((name, value) for name, value in options.items() if name != "grid"))
        if form not in seen:
            seen.add(form)
            launch(self, *args, **options)

    runtime, before = triton.knobs.runtime, triton.knobs.runtime.jit_cache_hook
    runtime.jit_cache_hook, JITFunction.run = note, run
    try:
        with _zeros():
            yield
    finally:
        runtime.jit_cache_hook, JITFunction.run = before, launch


def _form(value: Any) -> object:
    """Return what Triton can compile different code for."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        return value == 1, value % 16 == 0, value.bit_length() < 32
    if hasattr(value, "block_shape"):  # a descriptor for the copy engine, of either kind
        return value.base.dtype, tuple(value.block_shape), str(getattr(value, "layout", None))
    return type(value)


@contextmanager
def _zeros() -> Iterator[None]:
    """Let new tensors hold zeros."""
    makers = torch.empty, torch.empty_like, Tensor.new_empty
    module: Any = torch
    kind: Any = Tensor
    module.empty, module.empty_like, kind.new_empty = torch.zeros, torch.zeros_like, Tensor.new_zeros
    try:
        yield
    finally:
        module.empty, module.empty_like, kind.new_empty = makers


def compile_job(job: CompileJob) -> None:
    """Compile a kernel into Triton's cache; the driver in use says for which GPU."""
    function = getattr(importlib.import_module(job.module), job.name)
    compiled = getattr(function, "jit", function).preload(job.form)
    launcher = getattr(driver.active, "launcher_cls", None)
    if compiled is not None and launcher is not None:
        launcher(compiled.src, compiled.metadata)


def note_late_compilations() -> None:
    """Log every kernel that is compiled from now on: requests wait for it."""

    def note(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            logger.warning("Kernel %s was compiled while requests waited (%s).", src.name, src.constants)

    triton.knobs.compilation.listener = note


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
