"""How the matrix products for few rows are cut up.

The rule was read off measurements of some 40 ways for each of 12 products of Llama-3.1-8B, Llama-3.2-1B and EAGLE-3
at 1 to 64 rows on an H200 (benchmarks/h200/kernels/matmul.py). What decides is that all programs are resident at the
same time, equally many on each multiprocessor, with as many tiles in flight as shared memory holds.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
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
    """Whether tiles are fetched by the copy engine (compute capability 9)."""


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
    """Whether `matmul_hopper`, which fetches weights before the kernel in front has ended, may take it."""

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
    # A tile of 64 rows that is not full: a step of 48 rows took 5.3 ms with these kernels and 5.0 ms with cuBLAS.
    folds = _most_fold(padded(num_rows), num_out, device, gated=gated) > 1
    if folds and _PADDED[-2] < num_rows < _PADDED[-1] and weight_bytes > 1:
        return None
    ways = _ways(num_rows, num_out, num_in, device, gated=gated, weight_bytes=weight_bytes)
    return next((way for way in ways if way.stages >= (4 if way.fold == 2 and not gated else 3)), None)


def _ways(
    num_rows: int, num_out: int, num_in: int, device: Device, *, gated: bool, weight_bytes: int
) -> Iterator[Config]:
    """Yield what comes into question, the best first, with as many stages as there is room for."""
    most_fold = _most_fold(padded(num_rows), num_out, device, gated=gated)
    for fold in (fold for fold in (4, 2, 1) if fold <= most_fold):
        most = _most_resident(-(-num_out * fold // 64), fold, device, gated=gated)
        for resident, columns in itertools.product(range(most, 0, -1), (256, 128, 64, 32)):
            if num_in % (fold * columns) or (columns == 256 and (weight_bytes > 1 or resident > 2)):
                continue
            early = device.hopper and weight_bytes > 1 and columns >= 64
            way = Config(outputs=64 // fold, columns=columns, fold=fold, stages=0, copies=device.hopper, early=early)
            room = device.shared_bytes // resident - 1536
            stages = room // way.stage_bytes(num_rows, gated=gated, weight_bytes=weight_bytes)
            yield dataclasses.replace(way, stages=min(_MOST_STAGES, stages))


def _most_fold(rows: int, num_out: int, device: Device, *, gated: bool) -> int:
    """Return into how many parts to cut a row of weights: fewer where there are many rows, which are read for each."""
    if gated:
        return 2 if rows <= 8 else 1
    if num_out > 2 * 64 * device.num_sms:
        return 4 if rows <= 8 else 1
    return 4 if rows <= 16 else 2


def _most_resident(programs: int, fold: int, device: Device, *, gated: bool) -> int:
    """Return how many programs are to share a multiprocessor: all of them at once, if three are enough for that."""
    if gated:
        return 2 if fold > 1 else 1
    if programs > 3 * device.num_sms:
        return 2
    return max(fold // 2, -(-programs // device.num_sms))
