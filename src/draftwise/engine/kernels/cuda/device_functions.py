"""Functions that kernels share: counter-based noise, keys that order tokens, exact logarithms.

The noise is that of `sampling.random`, bit for bit. Keys order tokens by score and then by lowest index, so that the
best of many is a maximum of integers. Exponentials and logarithms are accurate to the last bit or so, as torch computes
them; Triton's own are faster and coarser. Triton's interpreter has no libdevice; there numpy's are accurate. Callers
pass `EXACT = not interpreted()`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftwise.engine.kernels.sampling_constants import GOLDEN, LANE, MIX_1, MIX_2, POSITION

_GOLDEN, _POSITION, _LANE = tl.constexpr(GOLDEN), tl.constexpr(POSITION), tl.constexpr(LANE)
_MIX_1, _MIX_2 = tl.constexpr(MIX_1), tl.constexpr(MIX_2)
LOWEST = tl.constexpr(-(2**63))
"""A value below every key."""
_LAST = tl.constexpr(2**31 - 1)


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
    """SplitMix64's finalizer."""
    bits = (bits ^ (bits >> 30)) * _MIX_1
    bits = (bits ^ (bits >> 27)) * _MIX_2
    return bits ^ (bits >> 31)


@triton.jit
def to_key(score, index):
    """Return the int64 key of float32 scores and the int32 indexes that have them."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)  # -0 equals 0
    return (_reorder(bits).to(tl.int64) << 32) | (index ^ _LAST).to(tl.int64)


@triton.jit
def to_index(key):
    """Return the index that a key was made of, as int64."""
    return (key & 0xFFFFFFFF) ^ _LAST


@triton.jit
def to_score(key):
    """Return the score that a key was made of."""
    return _reorder((key >> 32).to(tl.int32)).to(tl.float32, bitcast=True)


@triton.jit
def _reorder(bits):
    """Turn a float's bits into an integer that is ordered as the floats are, and back."""
    return bits ^ ((bits >> 31) & _LAST)


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
