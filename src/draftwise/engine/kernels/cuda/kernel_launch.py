"""Launches kernels early, and without most of Triton's work on the host.

Programmatic dependent launch sets a kernel up and lets it fetch its weights while the one before it still runs. A
kernel started with `launch_pdl=pdl()` gets `PDL=pdl()` too. It calls `wait(PDL)` before it reads anything that an
earlier kernel wrote and before it writes anything, and `launch_next(PDL)` as early as pays: after its own `wait` where
the next kernel would take the places of programs still to come. Every such kernel waits, so what holds for its
predecessor holds for all before that. Before `wait` it may read weights and nothing else.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@functools.cache
def pdl() -> bool:
    """Say whether kernels start before their predecessors have ended; the environment's DRAFTWISE_PDL=0 forbids it."""
    if interpreted() or os.environ.get("DRAFTWISE_PDL") == "0" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability()[0] >= 9


def interpreted() -> bool:
    """Say whether Triton interprets its kernels, on tensors of the CPU (TRITON_INTERPRET=1 when triton is imported)."""
    return bool(triton.knobs.runtime.interpret)


@triton.jit
def wait(PDL: tl.constexpr):
    """Wait until all earlier kernels have ended and what they wrote can be seen."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def launch_next(PDL: tl.constexpr):
    """Let the next kernel be set up from now on; it waits for the end of this one by itself."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


class Kernel:
    """A Triton kernel whose compiled forms are kept by what they depend on: Triton's own search takes twice as long.

    The function's last parameter is `PDL`, and its constants stand behind its other parameters.

    Args:
        jit: makes Triton's kernel of it: `triton.jit` or `gluon.jit`, with options.
    """

    def __init__(self, function: Callable[..., None], jit: Callable[..., Any] = triton.jit) -> None:
        self.jit: Any = jit(function)
        self._interpreted = interpreted()  # as Triton has decided now
        self._compiled: dict[tuple[Any, ...], Any] = {}

    @classmethod
    def of_sizes(
        cls, *names: str, unaligned: tuple[str, ...] = (), jit: Callable[..., Any] = triton.jit
    ) -> Callable[[Callable[..., None]], Kernel]:
        """Return the decorator of a kernel.

        Args:
            names: parameters that are numbers of any size, for which no code of their own is compiled.
            unaligned: pointers for whose alignment none is.
        """
        options = {"do_not_specialize": names, "do_not_specialize_on_alignment": unaligned}
        return functools.partial(cls, jit=functools.partial(jit, **options))

    def __call__(
        self, grid: tuple[int, ...], *args: Any, num_warps: int, num_stages: int | None = None, **constants: Any
    ) -> None:
        """Launch it.

        Args:
            grid: programs in each direction, up to three.
            args: tensors of one device, the copy engine's descriptors of some, numbers, or None for what is not there.
            num_stages: of its loops; None: Triton's default.
            constants: the constants but `PDL`.
        """
        constants["PDL"] = dependent = pdl()
        if self._interpreted:
            self.jit[grid](*args, **constants)
            return
        values, key = _specialize(args)
        key += (num_warps, num_stages, *constants.values())
        compiled = self._compiled.get(key)
        if compiled is None:
            stages = {} if num_stages is None else {"num_stages": num_stages}
            options = {"num_warps": num_warps, "launch_pdl": dependent, **stages}
            self._compiled[key] = self.jit[grid](*args, **constants, **options)
            return
        device = torch.cuda.current_device()
        stream = triton.runtime.driver.active.get_current_stream(device)
        # Metadata and hooks are for Triton's profiler.
        handle, metadata = compiled.function, compiled.packed_metadata
        grid_3 = (*grid, 1, 1)[:3]
        compiled.run(*grid_3, stream, handle, metadata, None, None, None, *values, *constants.values())


def _specialize(args: tuple[Any, ...]) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the arguments as the driver takes them, and all that Triton compiles different code for."""
    values: list[Any] = []
    key: list[Any] = []
    for arg in args:
        if isinstance(arg, Tensor):
            address = arg.data_ptr()
            values.append(address)
            key += (arg.dtype, arg.device, address % 16 == 0)
            continue
        values.append(arg)
        if isinstance(arg, int):
            key.append((arg == 1, arg % 16 == 0, arg.bit_length() < 32))
        elif hasattr(arg, "block_shape"):
            key += (arg.base.dtype, *arg.block_shape, getattr(arg, "layout", None))
        else:
            key.append(type(arg))
    return values, tuple(key)
