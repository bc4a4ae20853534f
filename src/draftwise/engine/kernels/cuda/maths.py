"""Exponentials and logarithms accurate to the last bit or so, as torch computes them; Triton's own are faster, coarser.

Triton's interpreter has no libdevice; there numpy's are accurate. Callers pass `EXACT = not interpreted()`.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["exp", "log", "log1p"]


@triton.jit
def exp(value, EXACT: tl.constexpr):
    """Return e to the power of float32 values."""
    return tl.extra.cuda.libdevice.exp(value) if EXACT else tl.exp(value)


@triton.jit
def log(value, EXACT: tl.constexpr):
    """Return the natural logarithm of float32 values."""
    return tl.extra.cuda.libdevice.log(value) if EXACT else tl.log(value)


@triton.jit
def log1p(value, EXACT: tl.constexpr):
    """Return the natural logarithm of 1 + value for float32 values, not 0."""
    if EXACT:
        return tl.extra.cuda.libdevice.log1p(value)
    # Kahan's: the rounding of 1 + value cancels out.
    whole = 1 + value
    return tl.where(whole == 1, value, value * tl.log(whole) / tl.where(whole == 1, 1.0, whole - 1))
