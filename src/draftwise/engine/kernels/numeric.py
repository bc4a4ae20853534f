"""What numba lacks for kernels over raw memory: pointers, task counters, bfloat16 and a fast exponential."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload

__all__ = ["exp", "float_of", "inline", "load", "next_task", "pointer", "store", "sum_of_squares"]

# numpy's error model: a check for division by zero would keep loops from being vectorised.
inline = njit(error_model="numpy", fastmath={"contract"})
_reduction = njit(error_model="numpy", fastmath={"contract", "reassoc"})


@intrinsic
def pointer(_typing: Any, address: Any, dtype: Any) -> Any:
    """Return an int64 address as a pointer to dtype."""
    kind = types.CPointer(dtype.dtype)

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(kind))

    return kind(address, dtype), generate


@intrinsic
def next_task(_typing: Any, counter: Any) -> Any:
    """Return the int64 that `counter` points at and add one to it, atomically."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", args[0], context.get_constant(types.int64, 1), "monotonic")

    return types.int64(counter), generate


@intrinsic
def float_of(_typing: Any, bits: Any) -> Any:
    """Return the float32 with the given uint32 bits."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), generate


@intrinsic
def _bits_of(_typing: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.uint32))

    return types.uint32(types.float32), generate


def load(values: Any, i: int) -> Any:
    """Return values[i] in float32; uint16 stands for bfloat16."""


def store(values: Any, i: int, x: Any) -> None:
    """Set values[i] to x, rounded to nearest with ties to even; uint16 stands for bfloat16."""


@overload(load)
def _load(values: Any, i: Any) -> Any:  # noqa: ARG001
    def load_bfloat16(values: Any, i: Any) -> Any:
        return float_of(np.uint32(values[i]) << np.uint32(16))

    def load_float32(values: Any, i: Any) -> Any:
        return values[i]

    return load_bfloat16 if values.dtype == types.uint16 else load_float32


@overload(store)
def _store(values: Any, i: Any, x: Any) -> Any:  # noqa: ARG001
    def store_bfloat16(values: Any, i: Any, x: Any) -> Any:
        bits = _bits_of(x)
        even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        values[i] = np.uint16((bits + even) >> np.uint32(16))

    def store_float32(values: Any, i: Any, x: Any) -> Any:
        values[i] = x

    return store_bfloat16 if values.dtype == types.uint16 else store_float32


@inline
def exp(x: Any) -> Any:
    """Return e^x in float32 for x up to 88, relative error 1e-7 (Cephes expf; unlike libm's it vectorises)."""
    x = max(x, np.float32(-87.0))
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * (r * r) + r + np.float32(1)
    return p * float_of(np.uint32(np.int32(n) + np.int32(127)) << np.uint32(23))


@_reduction
def sum_of_squares(x: Any, start: int, size: int) -> Any:
    """Return the sum of x[start : start + size] squared."""
    total = np.float32(0)
    for j in range(start, start + size):
        total += x[j] * x[j]
    return total


@_reduction
def four_dots(a: Any, start: int, b: Any, at: int, size: int) -> Any:
    """Return the products of four consecutive rows of `a` (from `start`) with the row of `b` at `at`."""
    s0 = s1 = s2 = s3 = np.float32(0)
    for j in range(size):
        x = b[at + j]
        s0 += a[start + j] * x
        s1 += a[start + size + j] * x
        s2 += a[start + 2 * size + j] * x
        s3 += a[start + 3 * size + j] * x
    return s0, s1, s2, s3
