"""Triton kernels for the rows of a step's sequences: for the same work torch needs dozens of launches.

Shape letters: S slots, B sequences, C integers of a sequence, W tokens that a step can confirm at most or rows of each
sequence in a pass, N = B * W, D integers that follow from them, P pages, R = K+1 target rows a sequence, K draft
tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda.kernel_launch import Kernel, launch_next, pdl, wait

_PAGES = 1024
"""Pages that a program copies; all programs of a sequence write the same integers."""
_ROWS = 128
"""Rows of a program."""
_VALUES = 4096
"""Values that a program copies."""


def look_up_rows(
    integers_SC: Tensor, shares_S3: Tensor, pages_SP: Tensor, slots_B: Tensor, *, first_new: int, k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return integers_CB, derived_DB, shares_3B and pages_BP; see `SequenceTable` for what they are.

    Args:
        integers_SC: int64; column `first_new` and those after it are the newest tokens.
        shares_S3: float32.
        pages_SP: int32.
        slots_B: int64.
        first_new: how many integers come before the tokens.
        k: draft tokens of the step at most.
    """
    num_seqs, width, device = len(slots_B), integers_SC.shape[1], slots_B.device
    integers_CB = torch.empty(width, num_seqs, dtype=torch.int64, device=device)
    derived_DB = torch.empty(5, num_seqs, dtype=torch.int64, device=device)
    shares_3B = torch.empty(shares_S3.shape[1], num_seqs, device=device)
    pages_BP = torch.empty(num_seqs, pages_SP.shape[1], dtype=torch.int32, device=device)
    dependent = pdl()
    _look_up[(num_seqs, triton.cdiv(pages_SP.shape[1], _PAGES))](
        integers_SC,
        shares_S3,
        pages_SP,
        slots_B,
        integers_CB,
        derived_DB,
        shares_3B,
        pages_BP,
        num_seqs,
        pages_SP.shape[1],
        k,
        C=width,
        NEW=first_new,
        COLUMNS=triton.next_power_of_2(width),
        SHARES=shares_S3.shape[1],
        PAGES=_PAGES,
        PDL=dependent,
        num_warps=4,
        launch_pdl=dependent,
    )
    return integers_CB, derived_DB, shares_3B, pages_BP


def advance_rows(
    integers_SC: Tensor,
    slots_B: Tensor,
    num_accepted_B: Tensor,
    tokens_BR: Tensor,
    draft_lengths_B: Tensor,
    draft_tokens_BK: Tensor,
    *,
    first_new: int,
) -> Tensor:
    """Make the emitted tokens the newest ones of their sequences; return what the host wants, [B, 2 + R + K].

    Args:
        integers_SC: int64, written in place.
        slots_B: int64.
        num_accepted_B: int64.
        tokens_BR: int64, negative behind the emitted ones.
        draft_lengths_B: int64.
        draft_tokens_BK: int64.
        first_new: see `look_up_rows`.
    """
    num_seqs, num_rows = tokens_BR.shape
    num_out = 2 + num_rows + draft_tokens_BK.shape[1]
    packed_B = torch.empty(num_seqs, num_out, dtype=torch.int64, device=slots_B.device)
    dependent = pdl()
    _advance[(num_seqs,)](
        integers_SC,
        slots_B,
        num_accepted_B.contiguous(),
        tokens_BR.contiguous(),
        draft_lengths_B.contiguous(),
        draft_tokens_BK.contiguous(),
        packed_B,
        C=integers_SC.shape[1],
        NEW=first_new,
        R=num_rows,
        K=draft_tokens_BK.shape[1],
        COLUMNS=triton.next_power_of_2(num_rows),
        PDL=dependent,
        num_warps=1,
        launch_pdl=dependent,
    )
    return packed_B


def store_rows(rows_SWF: Tensor, slots_B: Tensor, new_BRF: Tensor) -> None:
    """Store rows as the first ones of their slots: torch's `index_copy_` takes three times as long.

    Args:
        rows_SWF: written in place.
        slots_B: int64.
        new_BRF: of the same type; R is at most W.
    """
    new_BRF = new_BRF.contiguous()
    size = new_BRF[0].numel()
    _store_rows(
        (len(slots_B), triton.cdiv(size, _VALUES)),
        rows_SWF,
        slots_B,
        new_BRF,
        rows_SWF.stride(0),
        size,
        VALUES=_VALUES,
        num_warps=4,
    )


@Kernel
def _store_rows(rows, slots, new, row_stride, size, VALUES: tl.constexpr, PDL: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * VALUES + tl.arange(0, VALUES)
    launch_next(PDL)
    wait(PDL)
    values = tl.load(new + b * size + places, mask=places < size, other=0.0)
    tl.store(rows + tl.load(slots + b) * row_stride + places, values, mask=places < size)


@triton.jit(do_not_specialize=["num_seqs", "k"])
def _look_up(
    integers_ptr,
    shares_ptr,
    pages_ptr,
    slots_ptr,
    out_integers_ptr,
    out_derived_ptr,
    out_shares_ptr,
    out_pages_ptr,
    num_seqs,
    num_pages,
    k,
    C: tl.constexpr,
    NEW: tl.constexpr,
    COLUMNS: tl.constexpr,
    SHARES: tl.constexpr,
    PAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One sequence, and a part of its pages.

    The first integers are CAPACITY, NUM_TOKENS, NUM_PROMPT, MAX_TOKENS, MAX_DRAFT, NUM_NEW.
    """
    launch_next(PDL)
    wait(PDL)
    b = tl.program_id(0)
    slot = tl.load(slots_ptr + b)
    row_ptr = integers_ptr + slot * C
    columns = tl.arange(0, COLUMNS)
    row = tl.load(row_ptr + columns, mask=columns < C, other=0)
    tl.store(out_integers_ptr + columns * num_seqs + b, row, mask=columns < C)
    capacity, num_tokens, num_prompt = tl.load(row_ptr), tl.load(row_ptr + 1), tl.load(row_ptr + 2)
    max_tokens, max_draft, num_new = tl.load(row_ptr + 3), tl.load(row_ptr + 4), tl.load(row_ptr + 5)
    room = tl.minimum(max_tokens - 1, capacity) - num_tokens
    limit = tl.maximum(tl.minimum(tl.minimum(max_draft, room), k), 0)
    out_ptr = out_derived_ptr + b
    tl.store(out_ptr, limit)
    tl.store(out_ptr + num_seqs, tl.load(row_ptr + NEW + num_new - 1))
    tl.store(out_ptr + 2 * num_seqs, num_tokens - 1)
    tl.store(out_ptr + 3 * num_seqs, num_tokens - num_new)
    tl.store(out_ptr + 4 * num_seqs, num_tokens - num_prompt)
    for share in tl.static_range(SHARES):
        tl.store(out_shares_ptr + share * num_seqs + b, tl.load(shares_ptr + slot * SHARES + share))
    places = tl.program_id(1) * PAGES + tl.arange(0, PAGES)
    pages = tl.load(pages_ptr + slot * num_pages + places, mask=places < num_pages, other=0)
    tl.store(out_pages_ptr + b.to(tl.int64) * num_pages + places, pages, mask=places < num_pages)


@triton.jit
def _advance(
    integers_ptr,
    slots_ptr,
    num_accepted_ptr,
    tokens_ptr,
    draft_lengths_ptr,
    draft_tokens_ptr,
    packed_ptr,
    C: tl.constexpr,
    NEW: tl.constexpr,
    R: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One sequence; the integer before the tokens says whether it is a real one."""
    launch_next(PDL)
    wait(PDL)
    b = tl.program_id(0)
    row_ptr = integers_ptr + tl.load(slots_ptr + b) * C
    num_emitted = tl.load(num_accepted_ptr + b) + 1
    columns = tl.arange(0, COLUMNS)
    tokens = tl.load(tokens_ptr + b * R + columns, mask=columns < R, other=0)
    drafted = tl.load(draft_tokens_ptr + b * K + columns, mask=columns < K, other=0)
    is_real = tl.load(row_ptr + NEW - 1)
    tl.store(row_ptr + 1, tl.load(row_ptr + 1) + num_emitted * is_real)
    tl.store(row_ptr + 5, num_emitted)
    tl.store(row_ptr + NEW + columns, tl.maximum(tokens, 0), mask=columns < R)
    out_ptr = packed_ptr + b * (2 + R + K)
    tl.store(out_ptr, num_emitted)
    tl.store(out_ptr + 1, tl.load(draft_lengths_ptr + b))
    tl.store(out_ptr + 2 + columns, tokens, mask=columns < R)
    tl.store(out_ptr + 2 + R + columns, drafted, mask=columns < K)


def place_rows(
    starts_B: Tensor, page_table_BP: Tensor, *, width: int, block_size: int, limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return positions_N and slots_N of uniform rows, as `plan_attention` computes them.

    Row b * W + i is at position starts_B[b] + i, which is clamped to 0 and to the end of what has a place.

    Args:
        starts_B: int64.
        page_table_BP: int32, pages of each sequence; the last column names the scratch page.
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
