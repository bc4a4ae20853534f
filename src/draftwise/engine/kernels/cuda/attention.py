"""Paged attention on the GPU: a few query tokens of each sequence, or many, over pages that are read where they lie.

Shape letters: N query tokens, B sequences, P pages of a sequence, A query heads, G key-value heads, D head
dimension, S splits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from draftwise.engine.kernels.cuda import attention_kernels
from draftwise.engine.kernels.cuda.launch import pdl

__all__ = ["Tiling", "choose_tiling", "decode_attention", "num_counters"]

_LOG2_E = 1.4426950408889634
_FEW_SPLITS = 64
"""Kernels for fewer splits are not compiled: one for so many serves them."""
_SMS_OF_NO_GPU = 4
"""So few that the interpreter, for which every tile is work, sees some sequences split and others whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """How the work of one call is cut up and compiled."""

    rows: int
    """Query tokens times the heads that share keys, in one tile: a power of two, at least 16."""
    keys: int
    """Keys of a block: a power of two, at least 16."""
    warps: int
    stages: int
    """Blocks in flight, the one at work included."""
    splits: int
    """Most parts into which the keys of a tile are split."""
    min_blocks: int = 1
    """Fewest blocks of keys for which a further split is worth its joining."""
    join_in_place: bool = False
    """Whether the split that ends last joins them all, and not a kernel of its own."""
    join_rows: int = 4
    """Rows that one program of that kernel joins."""
    unmasked_first: bool = False
    """Whether blocks that every row sees whole have a loop of their own, without masks."""


@functools.cache
def _num_sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else _SMS_OF_NO_GPU


def choose_tiling(
    *, num_seqs: int, num_groups: int, share: int, width: int, head_dim: int, itemsize: int, num_sms: int
) -> Tiling:
    """Return the tiling for B sequences of at most `width` query tokens.

    It is a function of shapes alone: inside a CUDA graph the host does not know how long any sequence is.

    Args:
        num_seqs: B.
        num_groups: G.
        share: A / G, query heads that share keys.
        width: most query tokens of a sequence.
        head_dim: D.
        itemsize: bytes of an element of q.
        num_sms: multiprocessors of the GPU.
    """
    wide = width * share > 64
    rows = 128 if wide and head_dim <= 128 else min(64, max(16, triton.next_power_of_2(width * share)))
    tiles = num_seqs * num_groups * -(-width * share // rows)
    keys = 64 if head_dim <= 128 else 32
    if itemsize > 2:
        rows, keys = min(rows, 32), 32
    return Tiling(
        rows=rows,
        keys=keys,
        warps=8 if rows == 128 else 4,
        stages=3,
        splits=max(1, min(64, 4 * num_sms // tiles)),
        unmasked_first=wide,
    )


def num_counters(q_NAD: Tensor, pages: Tensor, num_seqs: int, width: int, tiling: Tiling) -> int:
    """Return how many counters `tiling.join_in_place` needs."""
    tiles = -(-width * q_NAD.shape[1] // pages.shape[3] // tiling.rows)
    return num_seqs * pages.shape[3] * tiles


def decode_attention(
    q_NAD: Tensor,
    pages: Tensor,
    page_table_BP: Tensor,
    first_row_B: Tensor,
    starts_B: Tensor,
    lengths_B: Tensor,
    *,
    width: int,
    causal: bool,
    scale: float,
    out: Tensor | None = None,
    tiling: Tiling | None = None,
    arrived: Tensor | None = None,
) -> Tensor:
    """Return the attention output [N, A * D] of the new tokens, whose keys and values are in the pages already.

    Sequence b has the query rows first_row_B[b] + i for i < lengths_B[b] <= width; row i is at position
    starts_B[b] + i. With N = B * width rows the batch is uniform: rows with i >= lengths_B[b] exist, may hold
    anything, and get something finite. In any other batch no row lies outside the sequences.

    Args:
        q_NAD: queries; rows may lie apart, heads may not.
        pages: [num_pages, block_size, 2, G, D] in the type of q or in float8_e4m3fn, with scale 1.
        page_table_BP: int32, the pages of each sequence in order.
        first_row_B: int64, row of each sequence's first query.
        starts_B: int64, its position.
        lengths_B: int64, query tokens of each sequence; may be 0.
        width: the most that `lengths_B` may hold.
        causal: whether a token looks at positions up to its own, and not at all of its sequence's.
        scale: of the scores.
        out: where the result goes; by default a new tensor.
        tiling: how the work is cut up; by default what was measured to be best.
        arrived: int32 zeros, `num_counters` of them, which are zero again afterwards; for `tiling.join_in_place`.
    """
    num_rows, heads, dim = q_NAD.shape
    num_seqs, groups = len(starts_B), pages.shape[3]
    assert q_NAD.stride()[1:] == (dim, 1), "heads lie beside each other"
    assert pages[0].is_contiguous(), "a page is one piece"
    assert page_table_BP.stride(1) == 1
    assert all(t.is_contiguous() for t in (first_row_B, starts_B, lengths_B))
    tiling = tiling or choose_tiling(
        num_seqs=num_seqs,
        num_groups=groups,
        share=heads // groups,
        width=width,
        head_dim=dim,
        itemsize=q_NAD.element_size(),
        num_sms=_num_sms(q_NAD.device),
    )
    if out is None:
        out = q_NAD.new_empty(num_rows, heads * dim)
    assert out.is_contiguous()
    parts = logs = out  # with one split nothing is written there
    if tiling.splits > 1:
        parts = q_NAD.new_empty(tiling.splits, num_rows, heads, dim, dtype=torch.float32)
        logs = q_NAD.new_empty(tiling.splits, num_rows, heads, dtype=torch.float32)
    in_place = tiling.splits > 1 and tiling.join_in_place
    if in_place and arrived is None:
        arrived = starts_B.new_zeros(num_counters(q_NAD, pages, num_seqs, width, tiling), dtype=torch.int32)
    tiles = -(-width * heads // groups // tiling.rows)
    shape = {
        "GROUPS": groups,
        "SHARE": heads // groups,
        "D": dim,
        "DIMS": triton.next_power_of_2(dim),
        "M": tiling.rows,
        "K": tiling.keys,
        "S": 1 if tiling.splits == 1 else max(_FEW_SPLITS, triton.next_power_of_2(tiling.splits)),
        "CAUSAL": causal,
        "UNIFORM": num_rows == num_seqs * width,
        "PDL": pdl(),
        "launch_pdl": pdl(),
    }
    attention_kernels.attend[groups * tiles, tiling.splits, num_seqs](
        q_NAD,
        pages,
        page_table_BP,
        first_row_B,
        starts_B,
        lengths_B,
        out,
        parts,
        logs,
        arrived if in_place else starts_B,
        scale * _LOG2_E,
        num_rows,
        width,
        q_NAD.stride(0),
        pages.stride(0),
        page_table_BP.stride(0),
        page_table_BP.shape[1],
        tiling.splits,
        tiling.min_blocks,
        PAGE=pages.shape[1],
        STAGES=tiling.stages,
        UNMASKED_FIRST=tiling.unmasked_first,
        JOIN=in_place,
        **shape,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    if tiling.splits > 1 and not in_place:
        joined = min(tiling.join_rows, tiling.rows)
        attention_kernels.join[groups * -(-width * heads // groups // joined), num_seqs](
            first_row_B,
            starts_B,
            lengths_B,
            out,
            parts,
            logs,
            num_rows,
            width,
            tiling.splits,
            tiling.min_blocks,
            R=joined,
            **shape,
            num_warps=4,
        )
    return out
