"""Paged attention on the GPU: a few query tokens of each sequence, or many, over pages that are read where they lie.

Shape letters: N query tokens, B sequences, P pages of a sequence, A query heads, G key-value heads, D head
dimension, S splits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from draftwise.engine.kernels.cuda import attention_kernels
from draftwise.engine.kernels.cuda.matmul import find_device, has_copy_engine
from draftwise.engine.kernels.cuda.matmul_configs import MatmulDevice, evenness

_LOG2_E = 1.4426950408889634
_MOST_SPLITS = 64
_JOINED_AT_ONCE = 16
_FEW = 64
"""Sequences, and tokens of one, up to which `find_forms` looks at every number."""
_FULL = 0.9
"""Part of the multiprocessors that have work where each is to have one program."""
_EVEN = 0.75
"""Least `evenness` of programs of which four share a multiprocessor: below it, two larger ones do."""


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
    """Most parts into which the keys of a tile are split; a part has one block at least."""
    copies: bool = False
    """Whether `attention_hopper` computes it, whose blocks and warps are what they are."""


@functools.cache
def _find_gpu(device: torch.device) -> MatmulDevice:
    found = find_device(device)
    if found is None:  # before compute capability 8
        properties = torch.cuda.get_device_properties(device)
        found = MatmulDevice(num_sms=properties.multi_processor_count, shared_bytes=0, hopper=False)
    return found


def can_copy(pages: Tensor, dtype: torch.dtype) -> bool:
    """Say whether `attention_hopper` can fetch these pages, for queries of a type."""
    page, dim = pages.shape[1], pages.shape[4]
    whole = pages.is_contiguous() and pages.data_ptr() % 16 == 0 and pages.dtype == dtype and dtype.itemsize == 2
    return whole and dim in (64, 128) and page in (8, 16, 32, 64, 128) and has_copy_engine()


@functools.cache
def choose_tiling(
    *,
    num_seqs: int,
    num_groups: int,
    share: int,
    width: int,
    head_dim: int,
    itemsize: int,
    gpu: MatmulDevice,
    kv_itemsize: int | None = None,
    copies: bool = False,
) -> Tiling:
    """Return the tiling for B sequences of at most `width` query tokens.

    It is a function of shapes alone: inside a CUDA graph the host does not know how long any sequence is. That costs
    less than 2 % on average at any context from 640 to 65,536 tokens (benchmarks/h200/kernels/regret.py). What
    decides is that no multiprocessor gets more programs than others: there are as many for each as its shared memory
    has room for, or one that has all of it.

    Args:
        share: A / G, query heads that share keys.
        width: most query tokens of a sequence.
        itemsize: bytes of an element of q.
        kv_itemsize: bytes of an element of the pages; None: as many.
        copies: whether the copy engine can fetch the pages.
    """
    rows = min(128, max(16, triton.next_power_of_2(width * share)))
    if itemsize > 2 or head_dim > 128:  # a tile must fit registers and shared memory
        rows = min(rows, 32 if itemsize > 2 else 64)
    tiles = num_seqs * num_groups * -(-width * share // rows)

    def split(each: int, *, rows: int = rows, keys: int = 64, warps: int = 4, stages: int = 3) -> Tiling:
        """Return the tiling with this many programs per multiprocessor, if the tiles suffice for no more."""
        splits = max(1, min(_MOST_SPLITS, each * gpu.num_sms // tiles))
        return Tiling(rows=rows, keys=keys, warps=warps, stages=stages, splits=splits)

    if itemsize > 2 or head_dim > 128:
        many = itemsize == 2 and kv_itemsize != 1 and rows == 16 and tiles > gpu.num_sms
        return split(1, keys=32, warps=8) if many else split(2, keys=32)
    if rows == 128:
        return replace(split(1, keys=128, stages=2), copies=True) if copies else split(1, warps=8)
    if rows > 32:
        return split(2)
    if rows == 16 and kv_itemsize == 1 and tiles >= gpu.num_sms // 2:
        return split(2, keys=32, warps=2)  # what takes the time is to widen the keys
    roomy = gpu.shared_bytes >= 3 * 2 * 2 * 64 * triton.next_power_of_2(head_dim) * itemsize  # two blocks in flight
    alone = gpu.num_sms // tiles
    if roomy and (alone >= rows // 2 or (alone == 1 and tiles >= _FULL * gpu.num_sms)):
        return split(1, keys=128, warps=8)
    large = roomy and rows == 16 and head_dim > 64
    small = tiles > (2 if rows == 16 else 3) * gpu.num_sms and (rows == 16 or kv_itemsize != 1)
    if small and not (large and evenness(tiles / (4 * gpu.num_sms)) < _EVEN):
        return split(1, keys=32, warps=2, stages=4 if rows == 16 else 3)  # four and more share a multiprocessor
    if rows == 16 and tiles > gpu.num_sms:  # two share it, and no third program finds room
        return split(1, stages=4) if large else split(1, rows=32)
    return split(3 if roomy and rows == 16 and (width == 1 or head_dim <= 64) else 2)


def find_forms(
    *,
    num_heads: int,
    num_groups: int,
    head_dim: int,
    itemsize: int,
    kv_itemsize: int,
    device: torch.device,
    copies: bool,
    most_seqs: int,
    most_tokens: int,
    longest: int,
) -> list[list[int]]:
    """Return lengths of prompts for which the kernels are compiled differently, in as few tokens as show each form.

    Args:
        itemsize: bytes of an element of q.
        kv_itemsize: of an element of the pages.
        copies: whether the copy engine can fetch the pages.
        most_seqs: prompts of a step at most.
        most_tokens: tokens of a step at most.
        longest: tokens of a prompt at most.
    """
    found: dict[tuple[int | bool, ...], tuple[int, list[int]]] = {}
    widths = [*range(1, _FEW + 1), *(_FEW + 16 * 2**i for i in range(16))]
    for width in (each for each in widths if each <= min(longest, most_tokens)):
        for num_seqs in (*range(1, min(_FEW, most_seqs) + 1), *range(_FEW + 16, most_seqs + 1, 16)):
            tiling = choose_tiling(
                num_seqs=num_seqs,
                num_groups=num_groups,
                share=num_heads // num_groups,
                width=width,
                head_dim=head_dim,
                itemsize=itemsize,
                gpu=_find_gpu(device),
                kv_itemsize=kv_itemsize,
                copies=copies,
            )
            form = (
                tiling.rows,
                tiling.keys,
                tiling.warps,
                tiling.stages,
                tiling.copies,
                triton.next_power_of_2(tiling.splits),
            )
            for uniform in (True, False) if num_seqs > 1 and width > 1 else (True,):
                num_tokens = num_seqs * width if uniform else num_seqs - 1 + width
                if num_tokens <= most_tokens and num_tokens < found.get((*form, uniform), (most_tokens + 1, []))[0]:
                    lengths = [width] * num_seqs if uniform else [width, *[1] * (num_seqs - 1)]
                    found[(*form, uniform)] = num_tokens, lengths
    return [lengths for _, lengths in found.values()]


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
    window: int | None = None,
    uniform: bool | None = None,
    out: Tensor | None = None,
    tiling: Tiling | None = None,
) -> Tensor:
    """Return the attention output [N, A * D] of the new tokens, whose keys and values are in the pages already.

    Sequence b has the query rows first_row_B[b] + i for i < lengths_B[b] <= width; row i is at position
    starts_B[b] + i. In a uniform batch first_row_B[b] is b * width; rows with i >= lengths_B[b] may hold anything, and
    get something finite. Otherwise those are others' or do not exist, and the sequences may be some of a batch: rows
    of `out` that belong to none are left alone.

    Args:
        q_NAD: queries; rows may lie apart, heads may not.
        pages: [num_pages, block_size, 2, G, D] in the type of q or in float8_e4m3fn, with scale 1.
        page_table_BP: int32, the pages of each sequence in order. Positions behind its end have no keys.
        first_row_B: int64, row of each sequence's first query.
        starts_B: int64, its position.
        lengths_B: int64, query tokens of each sequence; may be 0.
        width: the most that `lengths_B` may hold.
        causal: whether a token looks at positions up to its own, and not at all of its sequence's.
        scale: of the scores; positive.
        window: positions up to its own that a token looks at; None: all. Only where it is causal.
        uniform: by default, whether N = B * width. Say so when the sequences are some of a batch.
        out: where the result goes; by default a new tensor.
        tiling: how the work is cut up; by default what was measured to be best.
    """
    num_rows, heads, dim = q_NAD.shape
    num_seqs, groups = len(starts_B), pages.shape[3]
    assert q_NAD.stride()[1:] == (dim, 1), "heads lie next to each other"
    assert pages.stride()[1:] == (2 * groups * dim, groups * dim, dim, 1), "a page is one piece"
    assert page_table_BP.stride(1) == 1
    assert all(t.is_contiguous() for t in (first_row_B, starts_B, lengths_B))
    tiling = tiling or choose_tiling(
        num_seqs=num_seqs,
        num_groups=groups,
        share=heads // groups,
        width=width,
        head_dim=dim,
        itemsize=q_NAD.element_size(),
        gpu=_find_gpu(q_NAD.device),
        kv_itemsize=pages.itemsize,
        copies=window is None and can_copy(pages, q_NAD.dtype),
    )
    if out is None:
        out = q_NAD.new_empty(num_rows, heads * dim)
    assert out.is_contiguous()
    splits = tiling.splits
    parts = logs = out  # with one split nothing is written there
    if splits > 1:
        parts = q_NAD.new_empty(num_rows, heads, splits, dim, dtype=torch.float32)
        logs = q_NAD.new_empty(num_rows, heads, splits, dtype=torch.float32)
    most_keys = page_table_BP.shape[1] * pages.shape[1]
    form = {
        "SHARE": heads // groups,
        "D": dim,
        "CAUSAL": causal,
        "UNIFORM": num_rows == num_seqs * width if uniform is None else uniform,
    }
    dims = triton.next_power_of_2(dim)
    of_pages = {"PAGE": pages.shape[1], "GROUPS": groups, "SPLIT": splits > 1, "STAGES": tiling.stages}
    grid = (groups * -(-width * heads // groups // tiling.rows), splits, num_seqs)
    inputs = (
        page_table_BP,
        first_row_B,
        starts_B,
        lengths_B,
        out,
        parts,
        logs,
        scale * _LOG2_E,
        width,
        q_NAD.stride(0),
    )
    sizes: tuple[int, ...] = (page_table_BP.stride(0), most_keys, splits)
    if tiling.copies:
        from draftwise.engine.kernels.cuda import attention_hopper as code  # not every Triton has Gluon

        described = code.describe_pages(pages)
        code.attend_hopper(grid, q_NAD, described, *inputs, *sizes, **form, **of_pages, num_warps=tiling.warps)
    else:
        sizes = (pages.stride(0), *sizes)
        of_tiles = {"DIMS": dims, "M": tiling.rows, "K": tiling.keys, "WINDOW": window or 0}
        launch = {"num_warps": tiling.warps, "num_stages": tiling.stages}
        attention_kernels.attend(grid, q_NAD, pages, *inputs, *sizes, **form, **of_tiles, **of_pages, **launch)
    if splits > 1:
        attention_kernels.join(
            (heads, width, num_seqs),
            first_row_B,
            starts_B,
            lengths_B,
            out,
            parts,
            logs,
            width,
            most_keys,
            splits,
            tiling.rows,
            tiling.keys,
            DIMS=dims,
            S=triton.next_power_of_2(splits),
            F=min(_JOINED_AT_ONCE, triton.next_power_of_2(splits)),
            WINDOW=window or 0,
            **form,
            num_warps=2,
        )
    return out
