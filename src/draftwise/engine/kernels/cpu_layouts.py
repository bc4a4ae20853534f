"""The layout of matrices of four to eight bits, as the CPU kernels read them.

They lie in *groups* of 16 outputs, a group as *blocks* of 32 inputs. In a 64-byte vector of a block each output has 4
consecutive inputs: vector j of the first four has inputs 4j to 4j + 3 in the low halves of its bytes and those 16 later
in the high ones. Behind these 256 bytes come further bits of each weight, and scales (float16) of the 16 outputs.

Shape letters: N tokens, V and H rows and columns of a table, K inputs, B blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

GROUP, BLOCK = 16, 32

LAYOUT_VERSION = 1
"""Version of the layouts. Increase it with every change, because packed matrices are stored on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """Weights (stored - offset) * scale + minimum."""

    bits: int
    offset: int = 0
    block_bytes: int
    scale_at: int
    """Offset of the scales in a block. -1: they follow all blocks of the group, and weights are bytes."""
    minimum_at: int = -1
    halves: int = 1
    """Number of consecutive parts of a block that have their own scales."""

    @property
    def largest(self) -> int:
        """Largest stored weight; the smallest is 0."""
        return 2**self.bits - 1

    def group_bytes(self, blocks: int) -> int:
        """Return the size of a group in bytes, a multiple of 64."""
        return -(-blocks * (self.block_bytes + (2 * GROUP if self.scale_at < 0 else 0)) // 64) * 64


LAYOUTS = {
    "q4": BlockLayout(bits=4, block_bytes=320, scale_at=256, minimum_at=288),
    "q5": BlockLayout(bits=5, block_bytes=384, scale_at=320, minimum_at=352),
    "q6": BlockLayout(bits=6, offset=32, block_bytes=448, scale_at=384, halves=2),
    "q8": BlockLayout(bits=8, offset=128, block_bytes=512, scale_at=-1),
}
"""Layouts with 5, 6, 7 and 8.5 bits per weight."""


class PackedMatrix(NamedTuple):
    """A matrix in the kernels' layout."""

    kind: str
    memory: Tensor
    """uint8, aligned to 64 bytes."""
    rows: int
    blocks: int

    @property
    def group_bytes(self) -> int:
        """Offset from one group to the next, in bytes."""
        return LAYOUTS[self.kind].group_bytes(self.blocks)

    def read_rows(self, index_N: Tensor) -> Tensor:
        """Return the given rows in float32, [N, K]."""
        layout, groups, blocks = LAYOUTS[self.kind], -(-self.rows // GROUP), self.blocks
        group_N, lane_N = index_N // GROUP, index_N % GROUP

        def part(at: int, inner: int, dtype: torch.dtype = torch.uint8, stride: int | None = None) -> Tensor:
            """Return [N, B, ...] of what starts `at` in each block: `inner` vectors, of which a lane has its own."""
            size = dtype.itemsize
            step = (layout.block_bytes if stride is None else stride) // size
            lane = 4 if dtype == torch.uint8 else 1
            view = self.memory.view(dtype).as_strided(
                (groups, blocks, inner, GROUP, lane),
                (self.group_bytes // size, step, GROUP * lane, lane, 1),
                at // size,
            )
            return view[group_N, :, :, lane_N]

        if layout.scale_at < 0:
            stored = part(0, 8).flatten(2)
            scale = part(blocks * layout.block_bytes, 1, torch.float16, 2 * GROUP).flatten(2)
        else:
            nibbles, j = part(0, 4), torch.arange(8).view(8, 1)
            stored = torch.cat((nibbles & 15, nibbles >> 4), dim=2)
            if layout.bits == 5:
                stored = stored | (part(256, 1) >> j & 1) << 4
            elif layout.bits == 6:
                stored = stored | (part(256, 2).repeat_interleave(4, dim=2) >> 2 * (j % 4) & 3) << 4
            stored = stored.flatten(2)
            scale = part(layout.scale_at, 2 if layout.halves == 2 else 1, torch.float16).flatten(2)
        values = (stored.float() - layout.offset).unflatten(2, (layout.halves, -1)) * scale.float().unsqueeze(3)
        if layout.minimum_at >= 0:
            values = values + part(layout.minimum_at, 1, torch.float16).float()
        return values.flatten(1)


class QuantizedTable:
    """Looks up rows of a packed matrix in float32, so that an embedding needs no second copy.

    Attributes:
        shape: [V, H].
        dtype: float32.
        device: the CPU.
    """

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, matrix: PackedMatrix) -> None:
        self.matrix = matrix
        self.shape = (matrix.rows, matrix.blocks * BLOCK)

    def __call__(self, tokens_N: Tensor) -> Tensor:
        """Return the rows of tokens."""
        return self.matrix.read_rows(tokens_N)

    def holds(self, values_VH: Tensor) -> bool:
        """Return whether `values` equal this table, possibly rounded to bfloat16, as a drafting head's copy may."""
        if values_VH.shape != torch.Size(self.shape):
            return False
        for first in range(0, len(values_VH), 4096):
            other = values_VH[first : first + 4096]
            own = self(torch.arange(first, first + len(other)))
            if not torch.equal(own, other) and not torch.equal(own.bfloat16().float(), other):
                return False
        return True


Table = Tensor | QuantizedTable
"""Rows to look up, [V, H]."""
