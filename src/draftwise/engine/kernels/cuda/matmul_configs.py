"""How the matrix products for few rows are cut up.

The rule was read off measurements of some 40 ways for each of 12 products of Llama-3.1-8B, Llama-3.2-1B and EAGLE-3
at 1 to 64 rows on an H200 (benchmarks/h200/kernels/matmul.py). What decides is that all programs are resident at the
same time, equally many on each multiprocessor, with as many tiles in flight as shared memory holds.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

__all__ = ["MOST_ROWS", "Config", "Device", "choose", "padded"]

MOST_ROWS = 64
"""Rows up to which reading the weights takes longer than multiplying, and these kernels pay."""

_PADDED = (4, 8, 16, 32, 64)
_MOST_STAGES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What the rule needs to know of a GPU."""

    num_sms: int
    shared_bytes: int
    """Shared memory of a multiprocessor that one program may have."""
    hopper: bool
    """Whether there is a copy engine for tiles (compute capability 9 and above)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How one product is cut up; `matmul_code` explains the fold."""

    outputs: int
    """Outputs of a program."""
    columns: int
    """Columns of a tile."""
    fold: int
    stages: int
    """Tiles in shared memory: those in flight and the one at work."""
    copies: bool = True
    """Whether the copy engine fetches the tiles."""
    early: bool = True
    """Whether it may fetch weights before the kernel in front has ended; the code of `matmul_hopper`."""

    def stage_bytes(self, num_rows: int, *, gated: bool, weight_bytes: int = 2) -> int:
        """Return the shared memory that one stage takes, with activations of a 16-bit type."""
        weights = self.outputs * self.fold * (2 if gated else 1)
        return self.columns * (weight_bytes * weights + 2 * max(16, self.fold * padded(num_rows)))


def padded(num_rows: int) -> int:
    """Return the number of rows that a kernel computes for num_rows."""
    return next(size for size in _PADDED if num_rows <= size)


@functools.cache
def choose(
    num_rows: int, num_out: int, num_in: int, device: Device, *, gated: bool, weight_bytes: int = 2
) -> Config | None:
    """Return how to compute [num_rows, num_in] x [num_out, num_in], or None where cuBLAS is to do it.

    Args:
        num_rows: of activations.
        num_out: rows of weights; of gate alone where gated.
        num_in: columns.
        device: the GPU.
        gated: whether two products are combined.
        weight_bytes: of one weight.
    """
    if not 0 < num_rows <= MOST_ROWS:
        return None
    most_fold = _fold(padded(num_rows), num_out, device, gated=gated)
    for fold in (fold for fold in (4, 2, 1) if fold <= most_fold):
        programs = -(-num_out * fold // 64)
        many = programs > 3 * device.num_sms
        most = (2 if fold > 1 else 1) if gated else 2 if many else max(fold // 2, -(-programs // device.num_sms))
        for resident, columns in itertools.product(range(most, 0, -1), (256, 128, 64, 32)):
            config = Config(outputs=64 // fold, columns=columns, fold=fold, stages=_MOST_STAGES)
            stage_bytes = config.stage_bytes(num_rows, gated=gated, weight_bytes=weight_bytes)
            stages = min(_MOST_STAGES, (device.shared_bytes // resident - 1536) // stage_bytes)
            wide = columns <= 128 or (weight_bytes == 1 and resident <= 2)
            if num_in % (fold * columns) == 0 and wide and stages >= (4 if fold == 2 and not gated else 3):
                early = device.hopper and weight_bytes > 1 and columns >= 64
                return Config(
                    outputs=64 // fold, columns=columns, fold=fold, stages=stages, copies=device.hopper, early=early
                )
    return None


def _fold(rows: int, num_out: int, device: Device, *, gated: bool) -> int:
    """Return into how many parts a row of weights is cut: fewer where there are many rows, which are read for each."""
    if gated:
        return 2 if rows <= 8 else 1
    if num_out > 2 * 64 * device.num_sms:
        return 4 if rows <= 8 else 1
    return 4 if rows <= 16 else 2
