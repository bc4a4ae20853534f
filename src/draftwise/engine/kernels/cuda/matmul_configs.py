"""How the matrix products for few rows are cut up: measured on an H200, and a rule for other shapes and devices."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from dataclasses import dataclass

__all__ = ["MOST_ROWS", "Config", "Device", "choose", "padded"]

MOST_ROWS = 64
"""Rows up to which reading the weights takes longer than multiplying, and these kernels pay."""

_PADDED = (4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a rule needs to know of a GPU."""

    num_sms: int
    shared_bytes: int
    """Shared memory of a multiprocessor that one program may have."""
    tma: bool
    """Whether there is a copy engine for tiles (compute capability 9 and above)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """How one product is cut up; `matmul_code` explains fold and splits."""

    outputs: int
    """Outputs of a program."""
    columns: int
    """Columns of a tile."""
    fold: int = 1
    splits: int = 1
    stages: int = 4
    """Tiles in flight, and one."""
    warps: int = 4
    tma: bool = True
    x_tma: bool = True
    hopper: bool = False
    prefetch: int = 256
    """Columns of each part of a row of weights that are asked for before the activations are there."""

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
    """Return how to compute [num_rows, num_in] x [num_out, num_in], or None where cuBLAS is as fast.

    Args:
        num_rows: of activations.
        num_out: rows of weights; of gate alone where gated.
        num_in: columns.
        device: the GPU.
        gated: whether two products are combined.
        weight_bytes: of one weight.
    """
    if num_rows > MOST_ROWS or num_in % 64:
        return None
    parts, rows = _parts(num_out, num_in, device, gated=gated), padded(num_rows)
    programs = num_out * parts // 64
    if (
        rows > 16
        and parts > 1
        and weight_bytes > 1
        and (rows > 32 or programs > 2 * device.num_sms)
        and num_in <= 12288
    ):
        return None
    most = 1 if gated else 2 if programs > 3 * device.num_sms else max(1, -(-programs // device.num_sms))
    fold = parts if rows <= 16 else 1
    for resident, columns in itertools.product(range(most, 0, -1), (256, 128, 64, 32)):
        config = Config(outputs=64 // fold, columns=columns, fold=fold, splits=parts // fold)
        room = device.shared_bytes // resident - 1536
        stages = room // config.stage_bytes(num_rows, gated=gated, weight_bytes=weight_bytes)
        if num_in % (parts * columns) == 0 and stages >= 3 and (columns <= 128 or gated):
            return dataclasses.replace(config, stages=min(5, stages), tma=device.tma, x_tma=device.tma)
    return None


def _parts(num_out: int, num_in: int, device: Device, *, gated: bool) -> int:
    """Return into how many parts a row of weights is cut: as many as give every multiprocessor two programs."""
    parts = 1
    while not gated and parts < 4 and num_out * parts < 2 * 64 * device.num_sms and num_in % (2 * parts * 64) == 0:
        parts *= 2
    return parts
