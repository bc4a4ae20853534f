"""4- to 8-bit matrices in the CPU kernels' layout, from GGUF blocks or rounded while loading.

Shape letters: O outputs, K inputs, B blocks of 32 inputs, H halves of a block with a scale each, R rows, N tokens,
G groups of 16 outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from draftwise.engine.kernels.cpu_layouts import BLOCK, GROUP, LAYOUTS

_CHUNK = 2**24
"""Number of weights to pack at a time."""


class Blocks(NamedTuple):
    """A matrix as (stored - offset) * scale + minimum. The offset depends on the kind."""

    stored_OK: Tensor
    """uint8."""
    scale_OBH: Tensor
    """float16; H is 2 for `q6`, else 1."""
    minimum_OB: Tensor | None
    """float16, for `q4` and `q5`."""


def num_bytes(kind: str, rows: int, width: int) -> int:
    """Return the bytes of a packed matrix."""
    return -(-rows // GROUP) * LAYOUTS[kind].group_bytes(width // BLOCK)


def pack_blocks(kind: str, blocks: Blocks) -> Tensor:
    """Return the memory of a `PackedMatrix`."""
    layout, (rows, width) = LAYOUTS[kind], blocks.stored_OK.shape
    count, groups = width // BLOCK, -(-rows // GROUP)
    memory_GX = torch.zeros(groups, layout.group_bytes(count), dtype=torch.uint8)
    step = max(1, _CHUNK // (width * GROUP)) * GROUP
    for first in range(0, rows, step):
        rows_here, minimum_OB = slice(first, first + step), blocks.minimum_OB
        part = Blocks(
            _padded(blocks.stored_OK[rows_here]),
            _padded(blocks.scale_OBH[rows_here]),
            None if minimum_OB is None else _padded(minimum_OB[rows_here]),
        )
        here = slice(first // GROUP, first // GROUP + len(part.stored_OK) // GROUP)
        _fill(memory_GX[here], kind, part)
    return memory_GX.flatten()


def _padded(values: Tensor) -> Tensor:
    """Return rows with zeros behind them up to whole groups."""
    missing = -len(values) % GROUP
    return torch.cat((values, values.new_zeros(missing, *values.shape[1:]))) if missing else values


def _fill(memory_GX: Tensor, kind: str, part: Blocks) -> None:
    layout, groups = LAYOUTS[kind], len(memory_GX)
    count = part.scale_OBH.shape[1]
    words = part.stored_OK.contiguous().view(torch.int32).view(groups, GROUP, count, 8)
    stored = words.permute(0, 2, 3, 1).contiguous().view(torch.uint8).view(groups, count, 8, GROUP, 4)

    def lanes(values_OB: Tensor) -> Tensor:
        return values_OB.view(groups, GROUP, count).transpose(1, 2).contiguous().view(torch.uint8)

    body = memory_GX[:, : count * layout.block_bytes].view(groups, count, layout.block_bytes)
    if layout.scale_at < 0:
        body.copy_(stored.flatten(2))
        memory_GX[:, count * layout.block_bytes :][:, : count * 2 * GROUP] = lanes(part.scale_OBH[..., 0]).flatten(1)
        return
    body[:, :, :256] = (stored[:, :, :4] & 15 | stored[:, :, 4:] << 4).flatten(2)
    if layout.bits == 5:
        body[:, :, 256:320] = _merge([(stored[:, :, j] >> 4 & 1) << j for j in range(8)])
    elif layout.bits == 6:
        for half in range(2):
            high = _merge([(stored[:, :, 4 * half + j] >> 4 & 3) << 2 * j for j in range(4)])
            body[:, :, 256 + 64 * half : 320 + 64 * half] = high
    for half in range(layout.halves):
        at = layout.scale_at + 2 * GROUP * half
        body[:, :, at : at + 2 * GROUP] = lanes(part.scale_OBH[..., half])
    if part.minimum_OB is not None:
        body[:, :, layout.minimum_at :] = lanes(part.minimum_OB)


def _merge(parts: list[Tensor]) -> Tensor:
    """Return bytes of which each part has some bits."""
    return functools.reduce(torch.bitwise_or, parts).flatten(2)


def round_weights(kind: str, weight_OK: Tensor) -> Blocks:
    """Round weights to `q8` (symmetric) or `q4` (between the smallest and the largest of a block)."""
    blocks_OBX = weight_OK.float().unflatten(1, (-1, BLOCK))
    if kind == "q8":
        scale_OB1 = (blocks_OBX.abs().amax(2, keepdim=True) / 127).half()
        stored = _divide(blocks_OBX, scale_OB1).clamp_(-127, 127) + LAYOUTS[kind].offset
        return Blocks(stored.to(torch.uint8).flatten(1), scale_OB1, None)
    low_OB1 = blocks_OBX.amin(2, keepdim=True).half()
    scale_OB1 = ((blocks_OBX.amax(2, keepdim=True) - low_OB1.float()) / 15).half()
    stored = _divide(blocks_OBX - low_OB1.float(), scale_OB1).clamp_(0, 15)
    return Blocks(stored.to(torch.uint8).flatten(1), scale_OB1, low_OB1.squeeze(2))


def _divide(values: Tensor, scale: Tensor) -> Tensor:
    return torch.where(scale > 0, values / scale.float(), 0.0).round_()


def _half(data: np.ndarray, at: int) -> np.ndarray:
    """Return the float16 at a place of each block, in float32, [..., 1]."""
    return np.ascontiguousarray(data[..., at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(data: np.ndarray) -> np.ndarray:
    """Return bytes of 32 inputs each as their low halves before their high ones."""
    return np.concatenate((data & 15, data >> 4), axis=-1)


def _bits(data: np.ndarray) -> np.ndarray:
    """Return the bits of bytes, the lowest first."""
    return np.unpackbits(np.ascontiguousarray(data), axis=-1, bitorder="little")


_Read = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Stored weights, scales and minima, of blocks of 32 or 256 weights."""


def _read_q4(data: np.ndarray, *, has_minimum: bool) -> _Read:
    d = _half(data, 0)
    return _nibbles(data[..., 4 if has_minimum else 2 :]), d, _half(data, 2) if has_minimum else -8 * d


def _read_q5(data: np.ndarray, *, has_minimum: bool) -> _Read:
    d, at = _half(data, 0), 4 if has_minimum else 2
    stored = _nibbles(data[..., at + 4 :]) | _bits(data[..., at : at + 4]) << 4
    return stored, d, _half(data, 2) if has_minimum else -16 * d


def _read_q8(data: np.ndarray) -> _Read:
    return data[..., 2:] ^ 0x80, _half(data, 0), None


def _k_scales(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the eight scales and minima of a block of 256, six bits each in twelve bytes."""
    s = data[..., 4:16]
    low, high, both = s[..., :4], s[..., 4:8], s[..., 8:]
    scales = np.concatenate((low & 63, both & 15 | low >> 6 << 4), axis=-1)
    minima = np.concatenate((high & 63, both >> 4 | high >> 6 << 4), axis=-1)
    return _half(data, 0) * scales, -_half(data, 2) * minima


def _read_q4_k(data: np.ndarray) -> _Read:
    return _nibbles(data[..., 16:].reshape(*data.shape[:-1], 4, 32)), *_k_scales(data)


def _read_q5_k(data: np.ndarray) -> _Read:
    fifth = _bits(data[..., 16:48, None]).swapaxes(-1, -2)  # of input i of eighth j: bit j of byte i
    stored = _nibbles(data[..., 48:].reshape(*data.shape[:-1], 4, 32))
    return stored.reshape(*fifth.shape) | fifth << 4, *_k_scales(data)


def _read_q6_k(data: np.ndarray) -> _Read:
    lead = data.shape[:-1]
    low = data[..., :128].reshape(*lead, 2, 2, 32)
    low = np.concatenate((low & 15, low >> 4), axis=-2)  # two halves of the block, four times 32 inputs each
    high = data[..., 128:192].reshape(*lead, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8).reshape(4, 1) & 3
    scales = np.ascontiguousarray(data[..., 192:208]).view(np.int8).astype(np.float32)
    return low | high << 4, _half(data, 208) * scales, None


_READERS: Mapping[str, tuple[str, Callable[[np.ndarray], _Read], int]] = {
    "Q4_0": ("q4", lambda data: _read_q4(data, has_minimum=False), 18),
    "Q4_1": ("q4", lambda data: _read_q4(data, has_minimum=True), 20),
    "Q5_0": ("q5", lambda data: _read_q5(data, has_minimum=False), 22),
    "Q5_1": ("q5", lambda data: _read_q5(data, has_minimum=True), 24),
    "Q8_0": ("q8", _read_q8, 34),
    "Q4_K": ("q4", _read_q4_k, 144),
    "Q5_K": ("q5", _read_q5_k, 176),
    "Q6_K": ("q6", _read_q6_k, 210),
}
"""GGUF's type -> kind, what reads its blocks, and their bytes."""

KINDS: Mapping[str, str] = {name: kind for name, (kind, _, _) in _READERS.items()}
"""GGUF types that are multiplied directly -> kind."""


def read_blocks(dtype: str, data_OX: np.ndarray) -> Blocks:
    """Return the blocks of rows in a GGUF type from `KINDS`."""
    kind, read, size = _READERS[dtype]
    rows = len(data_OX)
    stored, scales, minima = read(data_OX.reshape(rows, -1, size))

    def blocks(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values.reshape(rows, -1))).half()

    halves = LAYOUTS[kind].halves
    return Blocks(
        torch.from_numpy(np.ascontiguousarray(stored.reshape(rows, -1))),
        blocks(scales).unflatten(1, (-1, halves)),
        None if minima is None else blocks(minima),
    )


def join_blocks(parts: Sequence[Blocks]) -> Blocks:
    """Stack matrices of one kind."""
    if len(parts) == 1:
        return parts[0]
    stored, scales, minima = zip(*parts, strict=True)
    return Blocks(torch.cat(stored), torch.cat(scales), None if minima[0] is None else torch.cat(minima))


class BlockSource(Protocol):
    """Decides how matrices are stored, and reads them in that form."""

    def kind_of(self, name: str) -> str:
        """Return the kind of a matrix."""

    def read(self, kind: str, name: str, values: Callable[[], Tensor]) -> Blocks:
        """Return a matrix as blocks of `kind`, which may be `q8` for any matrix. `values` reads its values."""


class RoundedBlocks(BlockSource):
    """Rounds matrices while loading: those of layers to a kind, embeddings and heads to 8 bits."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def kind_of(self, name: str) -> str:
        """See `BlockSource`."""
        return self._kind if ".layers." in name else "q8"

    def read(self, kind: str, name: str, values: Callable[[], Tensor]) -> Blocks:  # noqa: ARG002 - of the protocol
        """See `BlockSource`."""
        return round_weights(kind, values())
