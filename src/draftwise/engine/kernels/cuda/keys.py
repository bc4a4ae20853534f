"""Keys that order tokens by score and then by lowest index, so that the best of many is a maximum of integers."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["LOWEST", "to_index", "to_key", "to_score"]

LOWEST = tl.constexpr(-(2**63))
"""Below every key."""
_LAST = tl.constexpr(2**31 - 1)


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
