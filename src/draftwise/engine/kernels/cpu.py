"""The operations of a decoder layer on the CPU, compiled by numba and run on the threads that torch already has.

Two pools of threads on the same cores slow each other down: torch's OpenMP workers spin for a while after each
parallel region. So numba's own pool is never started; its functions run inside torch's.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftwise.core import ModelShape
from draftwise.engine.kernels.cpu_code import CODE, MULTIPLY, QUANTIZED, ROWS, compile_kernel
from draftwise.engine.kernels.cpu_layouts import GROUP, LAYOUTS, PackedMatrix
from draftwise.engine.kernels.reference import Kernels, RotaryTable, Rotations
from draftwise.engine.memory.kv import PagedKV
from draftwise.machine.folders import one_at_a_time

_WIDE = 8192
"""Values from which a kernel is worth several threads."""
_JobValues = ctypes.c_int64 * 32
# Calls that keep the interpreter lock: they last microseconds, and losing it to another thread costs more.
_CompiledKernel = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_LongKernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Code(NamedTuple):
    add_norm: Callable[..., None]
    silu_mul: Callable[..., None]
    rotate_store: Callable[..., None]
    attend: Callable[..., None]


@functools.cache
def _compile(dtype: torch.dtype) -> _Code:
    """Compile the kernels of a type, or take them from numba's cache, which one process fills for all."""
    team = Team()
    with one_at_a_time("cpu-kernels"):
        return _Code(*(team.kernel(compile_kernel(code)) for code in CODE[str(dtype).removeprefix("torch.")]))


class CpuKernels(Kernels):
    """Needs one pass over memory where torch needs several. For bfloat16 and float32."""

    def __init__(self, shape: ModelShape, rope: RotaryTable, eps: float, dtype: torch.dtype) -> None:
        super().__init__(shape, rope, eps, dtype)
        self.rotation_dtype = torch.float32
        self._dtype, self._eps_bits = dtype, int(np.float32(eps).view(np.uint32))

    @functools.cached_property
    def _code(self) -> _Code:
        return _compile(self._dtype)

    def compile(self) -> None:
        """See `Kernels`."""
        _compile(self._dtype)

    def add_norm(
        self,
        x_NH: Tensor,
        delta_NH: Tensor | None,
        weight_H: Tensor,
        total_NH: Tensor | None = None,
        *,
        delta_weight_H: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if weight_H.dtype != self._dtype:
            return super().add_norm(x_NH, delta_NH, weight_H, total_NH, delta_weight_H=delta_weight_H)
        if delta_NH is not None and delta_weight_H is not None:
            delta_NH = self.add_norm(delta_NH, None, delta_weight_H)[1]
        rows, width = x_NH.shape
        x_NH = x_NH.contiguous()
        out_NH, sum_NH = torch.empty_like(x_NH), x_NH if delta_NH is None else torch.empty_like(x_NH)
        self._code.add_norm(
            rows * width >= _WIDE,
            x_NH.data_ptr(),
            0 if delta_NH is None else delta_NH.data_ptr(),
            weight_H.data_ptr(),
            sum_NH.data_ptr(),
            out_NH.data_ptr(),
            rows,
            width,
            self._eps_bits,
        )
        if total_NH is not None:
            total_NH.copy_(sum_NH)
        return sum_NH, out_NH

    def silu_mul(self, gate_up_N2I: Tensor) -> Tensor:
        rows, width = gate_up_N2I.shape[0], gate_up_N2I.shape[1] // 2
        out_NI = gate_up_N2I.new_empty(rows, width)
        self._code.silu_mul(rows * width >= _WIDE, gate_up_N2I.data_ptr(), out_NI.data_ptr(), rows, width)
        return out_NI

    def rotate_and_store(
        self,
        qkv_NSD: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        rotations: Rotations,
        kv: PagedKV,
        layer: int,
        slots_N: Tensor,
    ) -> Tensor:
        if kv.is_narrow or (norms is not None and norms[0].dtype != self._dtype):
            return super().rotate_and_store(qkv_NSD, norms, rotations, kv, layer, slots_N)
        rows, num_heads, size = qkv_NSD.shape
        heads, qkv_NSD = num_heads - 2 * self.shape.num_kv_heads, qkv_NSD.contiguous()
        q_norm, k_norm = (0, 0) if norms is None else (norms[0].data_ptr(), norms[1].data_ptr())
        scratch = torch.empty(rows // ROWS + 1, (heads + self.shape.num_kv_heads) * size)
        self._code.rotate_store(
            qkv_NSD.numel() >= _WIDE,
            qkv_NSD.data_ptr(),
            rotations[0].data_ptr(),
            rotations[1].data_ptr(),
            kv.layers[layer].data_ptr(),
            slots_N.data_ptr(),
            q_norm,
            k_norm,
            self._eps_bits,
            rows,
            heads,
            self.shape.num_kv_heads,
            size,
            kv.layers[layer].shape[:2].numel(),
            scratch.data_ptr(),
        )
        return qkv_NSD[:, :heads]


def attend_rows(
    q_NAD: Tensor,
    kv: PagedKV,
    layer: int,
    page_table_BP: Tensor,
    looks: tuple[Tensor, Tensor, int, int],
    *,
    scale: float,
    window: int | None,
) -> Tensor:
    """Return the same as `attend`, computed row by row: a row's bits depend only on that row.

    Args:
        q_NAD: bfloat16 or float32, D a multiple of 16; rows may have gaps between them.
        kv: the pages, of the same type.
        page_table_BP: int32.
        looks: see `AttentionPlan.looks`.
        window: number of positions, up to its own, that a row attends to. None: all.
    """
    rows, heads, size = q_NAD.shape
    owners_N, lasts_N, longest, num_scores = looks
    q_NAD = q_NAD if q_NAD.stride()[1:] == (size, 1) else q_NAD.contiguous()
    out_NE, pages = q_NAD.new_empty(rows, heads * size), kv.layers[layer]
    room, wide = -(-longest // 16) * 16, num_scores * heads * size >= _WIDE
    threads = torch.get_num_threads() if wide else 1
    scratch = torch.empty(64 + threads * (8 * size + 12 * room), dtype=torch.uint8)
    scratch[:8] = 0
    _compile(q_NAD.dtype).attend(
        wide,
        q_NAD.data_ptr(),
        q_NAD.stride(0) * q_NAD.itemsize,
        pages.data_ptr(),
        page_table_BP.data_ptr(),
        page_table_BP.stride(0),
        owners_N.data_ptr(),
        lasts_N.data_ptr(),
        longest if window is None else window,
        out_NE.data_ptr(),
        rows,
        heads,
        pages.shape[3],
        size,
        kv.block_size,
        int(np.float32(scale).view(np.uint32)),
        scratch.data_ptr(),
        room,
    )
    return out_NE


_CHUNK_BYTES = 2**14
"""Weights that a thread takes at a time."""


@functools.cache
def _multiplier(kind: str) -> Any:
    with one_at_a_time("cpu-kernels"):
        return compile_kernel(MULTIPLY[kind], num_args=5)


@functools.cache
def _compile_quantized() -> tuple[Callable[..., None], ...]:
    team = Team()
    with one_at_a_time("cpu-kernels"):
        return tuple(team.kernel(compile_kernel(code)) for code in QUANTIZED)


class QuantizedLinear:
    """A product on the CPU with weights of four to eight bits: rows are rounded to int8 in blocks of 32 inputs.

    A row's result has the same bits for any number of rows and of threads.

    Args:
        matrices: same width, stacked vertically. All but the last have a multiple of 16 rows.
    """

    def __init__(self, matrices: Sequence[PackedMatrix], bias_O: Tensor | None = None) -> None:
        self.matrices = tuple(matrices)
        self.num_out, self.blocks = sum(each.rows for each in matrices), matrices[0].blocks
        self.width = -(-self.num_out // GROUP) * GROUP
        self.bias = torch.zeros(GROUP if bias_O is None else self.width)
        if bias_O is not None:
            self.bias[: self.num_out] = bias_O
        chunks, column = list[list[int]](), 0
        for matrix in matrices:
            address, size = _multiplier(matrix.kind).address, LAYOUTS[matrix.kind].group_bytes(self.blocks)
            groups = -(-matrix.rows // GROUP)
            step = max(1, _CHUNK_BYTES // size)
            for first in range(0, groups, step):
                at, count = column + first * GROUP, min(step, groups - first)
                bias = (self.bias.data_ptr() + (0 if bias_O is None else 4 * at), 0 if bias_O is None else 4 * GROUP)
                place = matrix.memory.data_ptr() + first * size
                chunks.append([address, place, size, count, 4 * at, *bias, self.blocks])
            column += matrix.rows
        self.chunks = torch.tensor(chunks)
        self._quantize, self._product = _compile_quantized()

    def __call__(self, x_RK: Tensor) -> Tensor:
        """Return x @ weight.T + bias in float32, [R, out]."""
        x_RK, rows, blocks = x_RK.float().contiguous(), len(x_RK), self.blocks
        inputs = torch.empty(rows * blocks * 48, dtype=torch.uint8)
        y_RO = torch.empty(rows, self.width)
        self._quantize(x_RK.numel() >= _WIDE, x_RK.data_ptr(), rows, blocks, inputs.data_ptr())
        chunks = (self.chunks.data_ptr(), len(self.chunks))
        self._product(True, *chunks, rows, inputs.data_ptr(), y_RO.data_ptr(), 4 * self.width)
        return y_RO if self.width == self.num_out else y_RO[:, : self.num_out]


class Team:
    """Torch's threads, or only this thread if torch's OpenMP runtime cannot be reached.

    Attributes:
        count_threads: address of the function that counts the threads of a parallel region; 0: one thread.
    """

    def __init__(self) -> None:
        library = _find_openmp()
        self._parallel = None if library is None else _parallel_of(ctypes.PyDLL(library))
        self._long_parallel = None if library is None else _parallel_of(ctypes.CDLL(library))
        self.count_threads = 0
        if library is not None:
            count = ctypes.CDLL(library).omp_get_num_threads
            self.count_threads = ctypes.cast(count, ctypes.c_void_p).value or 0

    def kernel(self, compiled: Any, *, is_long: bool = False) -> Callable[..., None]:
        """Return a function that runs a compiled kernel over a job.

        Its first argument is whether to use all threads. The others are the job's int64 values after the task counter.

        Args:
            is_long: whether other Python threads may run meanwhile.
        """
        address, call = compiled.address, (_LongKernel if is_long else _CompiledKernel)(compiled.address)
        parallel = self._long_parallel if is_long else self._parallel

        def run(wide: bool, *values: int) -> None:
            job = _JobValues(0, *values)
            if wide and parallel is not None:
                parallel(address, job, torch.get_num_threads(), 0)
            else:
                call(job)

        return run


def _parallel_of(library: ctypes.CDLL) -> Callable[..., None]:
    """Return `GOMP_parallel(function, data, num_threads, flags)`; LLVM's and Intel's runtimes have it as GNU's has."""
    call = library.GOMP_parallel
    call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    call.restype = None
    return call


def _find_openmp() -> str | None:
    """Return the file of the OpenMP runtime that torch has loaded, if it can be used."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return None
    for library in dict.fromkeys(re.findall(r"/\S*lib(?:gomp|iomp5|omp)\b\S*", mapped)):
        if all(hasattr(ctypes.CDLL(library), name) for name in ("GOMP_parallel", "omp_get_num_threads")):
            return library
    return None
