"""The counter-based noise of `sampling.random`, bit for bit, for use inside kernels."""

from __future__ import annotations

import triton
import triton.language as tl

from draftwise.engine.kernels.constants import GOLDEN, LANE, MIX_1, MIX_2, POSITION
from draftwise.engine.kernels.cuda.maths import log, log1p

__all__ = ["row_bits", "to_gumbel", "to_uniform", "token_bits"]

_GOLDEN, _POSITION, _LANE = tl.constexpr(GOLDEN), tl.constexpr(POSITION), tl.constexpr(LANE)
_MIX_1, _MIX_2 = tl.constexpr(MIX_1), tl.constexpr(MIX_2)


@triton.jit
def row_bits(seed, position, LANE: tl.constexpr):
    """Return 64 random bits (uint64) of a row, from its int64 seed and position."""
    mixed = _mix(seed.to(tl.uint64) + _GOLDEN) + position.to(tl.uint64) * _POSITION
    return _mix(mixed + LANE * _LANE % 2**64)


@triton.jit
def token_bits(row_bits, token):
    """Return 64 random bits for each token of a row."""
    return _mix(row_bits + (token + 1).to(tl.uint64) * _GOLDEN)


@triton.jit
def to_uniform(bits):
    """Return the float64 between 0 and 1 that bits stand for, as `random.uniform`."""
    return ((bits >> 12).to(tl.float64) + 0.5) * 2.0**-52


@triton.jit
def to_gumbel(bits, EXACT: tl.constexpr):
    """Return the standard Gumbel noise (float32) that bits stand for, as `random.gumbel`; `EXACT` as in `maths`."""
    u = ((bits >> 33).to(tl.int32).to(tl.float32) + 0.5) * 2.0**-31
    u = tl.minimum(u, 1 - 2.0**-24)  # rounding to float32 can reach 1, whose logarithm is infinite
    return -log(-log1p(-u, EXACT), EXACT)


@triton.jit
def _mix(bits):
    """SplitMix64's finaliser."""
    bits = (bits ^ (bits >> 30)) * _MIX_1
    bits = (bits ^ (bits >> 27)) * _MIX_2
    return bits ^ (bits >> 31)
