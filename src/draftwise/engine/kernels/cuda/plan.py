"""Triton kernel that finds the positions and slots of a pass's rows, for which torch needs a dozen launches.

Shape letters: B sequences, W rows of each, N = B * W, P pages of a sequence.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.launch import Kernel, launch_next, wait

__all__ = ["place_rows"]

_ROWS = 128
"""Rows of a program."""


def place_rows(
    starts_B: Tensor, page_table_BP: Tensor, *, width: int, block_size: int, limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return positions_N and slots_N of uniform rows, as `plan_attention` computes them.

    Row b * W + i is at position starts_B[b] + i, which is clamped to 0 and to the end of what has a place.

    Args:
        starts_B: int64.
        page_table_BP: int32, pages of each sequence; the last column names the scratch page.
        width: W.
        block_size: tokens a page.
        limit: rows at this position or later go to the scratch page; None: as far as the table reaches.
    """
    num_rows, last = len(starts_B) * width, page_table_BP.shape[1] - 1
    end = last * block_size if limit is None else min(limit, last * block_size)
    places_2N = torch.empty(2, num_rows, dtype=torch.int64, device=starts_B.device)
    _place_rows(
        (triton.cdiv(num_rows, _ROWS), 1),
        starts_B,
        page_table_BP,
        places_2N,
        page_table_BP.stride(0),
        num_rows,
        last,
        end,
        WIDTH=width,
        PAGE=block_size,
        ROWS=_ROWS,
        num_warps=4,
    )
    return places_2N[0], places_2N[1]


@Kernel.of_sizes("num_rows")
def _place_rows(
    starts,
    page_table,
    places,
    table_stride,
    num_rows,
    last_column,
    end,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    PDL: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    owners = rows // WIDTH
    launch_next(PDL)
    wait(PDL)
    first = tl.load(starts + owners, mask=inside, other=0)
    positions = tl.minimum(tl.maximum(first + rows % WIDTH, 0), end)
    columns = tl.where(positions == end, last_column, positions // PAGE)
    pages = tl.load(page_table + owners.to(tl.int64) * table_stride + columns, mask=inside, other=0).to(tl.int64)
    tl.store(places + rows, positions, mask=inside)
    tl.store(places + num_rows + rows, pages * PAGE + positions % PAGE, mask=inside)
