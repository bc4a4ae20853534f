"""Chooses the tiling of matrix products for few rows.

Every program reads its weights and all activations, so the multiprocessor with the most to read decides how long a
product takes: the rule looks for the cut that leaves it least, with as many tiles in flight as shared memory holds, and
goes to cuBLAS where every cut leaves many multiprocessors without work. It knows numbers of programs and of
multiprocessors, no model's shape. It was read off measurements of the products of nine models at 1 to 64 rows on an
H200 (benchmarks/h200/kernels/matmul.py); regret.py there compares its choices with the best that was measured.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass

MOST_ROWS = 64
"""Rows up to which reading the weights takes longer than multiplying, and these kernels pay."""

_PADDED = (4, 8, 16, 32, 64)
_MOST_STAGES, _MOST_STAGES_EARLY = 7, 11
_MOST_RESIDENT = 3
_MOST_PARTS = 5
_LONG_PART = 2048
"""Columns of a part that are worth writing its sums, beyond 32 rows of what is cuBLAS's otherwise."""
_EVEN, _NEARLY_EVEN = 0.7, 0.75
"""Limits of `evenness`: least to keep from cuBLAS, and least to need neither parts of the columns nor room for the
next product's programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulDevice:
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
    parts: int = 1
    """Programs that share the columns of the same outputs, and leave it to the reader to add their sums."""

    def stage_bytes(self, num_rows: int, *, gated: bool, weight_bytes: int = 2) -> int:
        """Return the shared memory that one stage takes, with activations of the weights' type or a 16-bit one."""
        weights = self.outputs * self.fold * (2 if gated else 1)
        row_bytes = weight_bytes if self.early else 2
        return self.columns * (weight_bytes * weights + row_bytes * max(16, self.fold * padded(num_rows)))


def padded(num_rows: int) -> int:
    """Return the number of rows that a kernel computes for num_rows."""
    return next(size for size in _PADDED if num_rows <= size)


@functools.cache
def choose(
    num_rows: int,
    num_out: int,
    num_in: int,
    device: MatmulDevice,
    *,
    gated: bool,
    weight_bytes: int = 2,
    in_parts: bool = False,
) -> Config | None:
    """Return how to compute [num_rows, num_in] x [num_out, num_in], or None where cuBLAS is to do it.

    Args:
        num_out: rows of weights; of gate alone where gated.
        gated: whether two products are combined.
        weight_bytes: of one weight.
        in_parts: whether the reader adds the sums of parts of the columns.
    """
    if not 0 < num_rows <= MOST_ROWS:
        return None
    folds = (
        _find_gated_folds(num_rows, num_out, device, weight_bytes)
        if gated
        else _find_folds(num_rows, num_out, device, weight_bytes)
    )
    load = _find_load(num_out, folds[0], device)
    for_library = not gated and weight_bytes > 1 and _is_for_library(num_rows, load, folds[0])
    if in_parts and num_rows > 16 and weight_bytes > 1 and device.hopper and (for_library or _is_uneven(load)):
        way = _in_parts(num_rows, num_out, num_in, device)
        if way is not None:
            return way
    if for_library:
        return None
    for fold in folds:
        most = _find_residents(_find_load(num_out, fold, device))
        fewest = 4 if fold == 2 else 3
        if gated:
            most = 2 if weight_bytes == 1 else min(fold, 2)
            fewest = 2 if weight_bytes == 1 or fold == 4 else 3
        for resident, columns in itertools.product(range(most, 0, -1), (256, 128, 64, 32)):
            if num_in % (fold * columns) or (columns == 256 and (weight_bytes > 1 or resident > 2)):
                continue
            way = Config(
                outputs=64 // fold,
                columns=columns,
                fold=fold,
                stages=0,
                copies=device.hopper,
                early=device.hopper and columns * weight_bytes >= 128,
            )
            # All that fit: with fewer stages a program more would fit too, and some multiprocessors would get it.
            room = device.shared_bytes // resident - 1536
            stages = room // way.stage_bytes(num_rows, gated=gated, weight_bytes=weight_bytes)
            if stages >= fewest:
                return dataclasses.replace(way, stages=min(_MOST_STAGES_EARLY if way.early else _MOST_STAGES, stages))
    return None


def _in_parts(num_rows: int, num_out: int, num_in: int, device: MatmulDevice) -> Config | None:
    """Return how to cut columns instead where outputs alone do not keep all multiprocessors busy; None: not at all."""
    load = _find_load(num_out, 1, device)
    is_uneven = _is_uneven(_find_load(num_out, 2, device))
    most = _MOST_PARTS if is_uneven or num_rows <= 32 else min(_MOST_PARTS, num_in // _LONG_PART)
    if most < 2:
        return None
    parts = max(range(2, most + 1), key=lambda parts: (load * parts <= 2, evenness(load * parts)))
    way = Config(outputs=64, columns=128, fold=1, stages=0, parts=parts)
    stages = (device.shared_bytes // math.ceil(load * parts) - 1536) // way.stage_bytes(num_rows, gated=False)
    too_uneven = load * parts > 2 or evenness(load * parts) < (_NEARLY_EVEN if is_uneven else _EVEN)
    if too_uneven or stages < 2 or num_in % way.columns or num_in // way.columns // parts < stages:
        return None
    return dataclasses.replace(way, stages=min(_MOST_STAGES_EARLY, stages))


def _find_load(num_out: int, fold: int, device: MatmulDevice) -> float:
    """Return how many programs there are for each multiprocessor."""
    return -(-num_out * fold // 64) / device.num_sms


def evenness(load: float) -> float:
    """Return the mean multiprocessor's part of what the busiest one has to do."""
    return load / math.ceil(load)


def _is_uneven(load: float) -> bool:
    """Say whether whole rows keep so few multiprocessors busy that parts are faster, but not so few that cuBLAS is."""
    return _EVEN <= evenness(load) < _NEARLY_EVEN


def _find_gated_folds(num_rows: int, num_out: int, device: MatmulDevice, weight_bytes: int) -> list[int]:
    """Return what `_find_folds` does where two products are combined, which have twice the weights to a program."""
    if not device.hopper:
        return [2, 1] if num_rows <= 8 else [1]
    if weight_bytes == 1:
        return [2, 1] if num_rows <= 16 else [1]
    whole = num_rows > 8 and evenness(_find_load(num_out, 1, device)) > 0.95
    return [1] if num_rows > 16 or whole else [4, 2, 1]


def _find_folds(num_rows: int, num_out: int, device: MatmulDevice, weight_bytes: int) -> list[int]:
    """Return into how many parts to cut a row of weights, the best number first.

    Up to 8 rows it is the same for all, for it decides the order of sums.
    """
    rows, loads = padded(num_rows), {fold: _find_load(num_out, fold, device) for fold in (4, 2, 1)}
    if rows <= 8:
        return [4, 2, 1]
    if rows == 16:
        finer = loads[4] <= _MOST_RESIDENT or evenness(loads[4]) > 1.05 * evenness(loads[2])
        return [4, 2, 1] if finer else [2, 1]
    if _PADDED[-2] < num_rows < _PADDED[-1] and (device.hopper or weight_bytes > 1):
        return [1]  # activations that do not fill a folded tile: 4,096 x 12,800 takes 37 us at 48 rows, 29 at 64

    def busiest(fold: int) -> int:
        """Return the bytes that the busiest multiprocessor reads for each column."""
        return math.ceil(loads[fold]) * (64 // fold * weight_bytes + (weight_bytes if device.hopper else 2) * rows)

    return sorted((2, 1), key=busiest)


def _is_for_library(num_rows: int, load: float, fold: int) -> bool:
    """Say whether cuBLAS, which cuts columns too, is faster: the more rows, the better it hides what that costs."""
    return evenness(load) < _EVEN and (num_rows > 32 or (num_rows > 16 and fold == 1))


def _find_residents(load: float) -> int:
    """Return how many programs are to share a multiprocessor: all of them at once, if three are enough for that."""
    most = math.ceil(load)
    if most > _MOST_RESIDENT:
        return 2
    if 1 < most < _MOST_RESIDENT and evenness(load) < _NEARLY_EVEN:
        return most + 1  # the next product's first programs find room where this one leaves some
    return most
