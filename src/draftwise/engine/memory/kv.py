"""Paged keys and values of all layers, allocated once.

Shape letters: N new tokens of the step, B sequences, T tokens of context (padded), P pages, G key-value heads, D head
dimension.
"""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

from draftwise.core import ModelShape


class PagedKV:
    """Keys and values of all layers in pages, allocated once.

    Args:
        num_pages: number of pages for sequences. One more is the scratch page for rows without a place.
        dtype: storage type of keys and values. float8_e4m3fn is widened when read.

    Attributes:
        shape: the model's shape.
        layers: [num_pages + 1, block_size, 2, G, D] per layer. A token's keys and values are adjacent, so one copy
            gathers both.
        num_bytes: memory of all layers.
        is_narrow: whether elements are stored in one byte and need widening.
    """

    def __init__(
        self, shape: ModelShape, *, num_pages: int, block_size: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.shape, self.num_pages, self.block_size = shape, num_pages, block_size
        self.is_narrow = dtype.itemsize == 1
        self.num_bytes = (num_pages + 1) * block_size * shape.kv_bytes_per_token(dtype.itemsize)
        size = (num_pages + 1, block_size, 2, shape.num_kv_heads, shape.head_dim)
        self.layers = [_zeros(size, dtype, torch.device(device)) for _ in range(shape.num_layers)]

    def store(self, layer: int, slots_N: Tensor, kv_N2GD: Tensor) -> None:
        """Store keys and values of N tokens at their slots (page * block_size + offset)."""
        flat = self.layers[layer].flatten(0, 1)
        if self.is_narrow:
            largest = torch.finfo(flat.dtype).max
            flat.view(torch.uint8).index_copy_(
                0, slots_N, kv_N2GD.clamp(-largest, largest).to(flat.dtype).view(torch.uint8)
            )
        else:
            flat.index_copy_(0, slots_N, kv_N2GD)

    def gather(self, layer: int, pages_BP: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return keys and values of B page lists, [B, G, P * block_size, D] each."""
        pages = self.layers[layer]
        stored = pages.view(torch.uint8) if self.is_narrow else pages
        tokens = stored.index_select(0, pages_BP.flatten()).view(pages_BP.shape[0], -1, *pages.shape[2:])
        if self.is_narrow:
            tokens = tokens.view(pages.dtype).to(dtype)
        keys_BGTD, values_BGTD = tokens.permute(2, 0, 3, 1, 4).unbind(0)
        return keys_BGTD, values_BGTD


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros, because pages are gathered whole: what a masked position holds must at least be finite.

    On a CPU the memory is taken only when something is stored there: most pools are never full.
    """
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(size) * dtype.itemsize, access=mmap.ACCESS_COPY)
    return torch.frombuffer(memory, dtype=dtype).view(size)
