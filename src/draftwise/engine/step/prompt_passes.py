"""Lays out a step's prompts in one of a few sizes, so the target's pass over them can be a CUDA graph.

For few tokens, the GPU computes a pass faster than the host launches it, kernel by kernel. Extra rows of a size are
computed as if the last prompt continued: they write after its end, where later tokens overwrite them, and their output
is unused.

Sequences that decode in the same step come first, as long as they have few rows: a separate pass would read all weights
again. Each has W rows, whatever its draft's length. Rows after the draft are unused, as in a step without prompts.

Shape letters: N rows of the pass, B sequences, padding included in both, D of them decoding, W rows of each of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwise.engine.attention.pass_rows import PassPart, Spans
from draftwise.engine.memory.transfer import upload
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.step.scheduler import Chunk
from draftwise.engine.step.table import View

_ROWS = (16, 32, 64, 96, 128, *range(192, 1025, 64))
"""Row counts of captured passes. Above them, most models keep the GPU busy longer than the host. A row of padding takes
as long as any other."""
_SEQS = (1, 8)
_MIXED_ROWS = (64, 128, 192, *range(256, 512, 32), *range(512, 1025, 64))
_MOST_DECODE_ROWS = 128
"""Maximum rows of decoding sequences in a captured pass over prompts: with more, a second pass is faster."""
MOST_DECODE_ROWS = 512
"""The same in a pass with more rows than graphs have. There a second pass costs more, since it reads all weights."""
_LONGEST_CONTEXT = 4096
"""Longest context of decoding sequences in such a pass. A graph does not know their number, so attention cannot
distribute the keys of a few long ones over many multiprocessors."""


_ALIGNED = 4
"""Number of sequences is padded to this, so page-table rows align to 16 bytes, as compiled kernels expect."""


@dataclass(frozen=True, slots=True, order=True)
class PromptSize:
    """A size to which passes over prompts are padded."""

    num_rows: int
    """N."""
    num_seqs: int
    """Maximum number of prompts."""
    num_decodes: int = 0
    """D; 0: decoding sequences are not allowed."""
    width: int = 0
    """W."""

    @property
    def num_wanted(self) -> int:
        """Number of rows whose hidden states are read: those of D sequences, then each prompt's last row."""
        return self.num_decodes * self.width + self.num_seqs


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedDecode:
    """Decoding sequences that may share a pass over prompts."""

    count: int
    padded: int
    """Number of sequences with padding, as in a separate step."""
    width: int
    """W."""
    longest: int
    """Length of the longest in tokens."""


def choose_size(
    chunks: Sequence[Chunk],
    sizes: Sequence[PromptSize],
    *,
    reach: int,
    mixed: MixedDecode | None = None,
    max_num_rows: int = 0,
) -> PromptSize | None:
    """Return the smallest size for these prompts and the sequences that share the pass.

    Args:
        sizes: captured sizes, ascending.
        reach: maximum positions in a sequence's pages.
        max_num_rows: maximum rows of a shared pass with more prompts than a graph has, which is not padded.

    Returns:
        None: prompts are computed without padding, and the sequences in a separate pass.
    """
    num_rows, num_decodes, width = sum(chunk.length for chunk in chunks), 0, 0
    if mixed is not None:
        if mixed.padded * mixed.width > MOST_DECODE_ROWS or mixed.longest > _LONGEST_CONTEXT:
            return None
        num_decodes, width = mixed.padded, mixed.width
        num_rows += mixed.count * width
    for size in sizes:
        alike = size.width == width and len(chunks) <= size.num_seqs and num_decodes <= size.num_decodes
        if alike and 0 <= size.num_rows - num_rows <= reach - chunks[-1].end:
            return size
    if mixed is None or not sizes or not sizes[-1].num_rows < num_rows <= max_num_rows:
        return None
    return PromptSize(num_rows, len(chunks), -(-num_decodes // _ALIGNED) * _ALIGNED, width)


def prompt_sizes(
    *, max_num_seqs: int, max_num_batched_tokens: int, widths: Sequence[int] = ()
) -> tuple[PromptSize, ...]:
    """Return the sizes to capture, in ascending order.

    Args:
        widths: possible rows of a decoding sequence: 1 plus the draft tokens of a step.
    """
    num_seqs = _SEQS if max_num_seqs > 1 else _SEQS[:1]
    alone = [PromptSize(rows, seqs) for rows in _ROWS for seqs in num_seqs]
    mixed = [
        PromptSize(rows, _SEQS[-1], min(max_num_seqs, _MOST_DECODE_ROWS // width), width)
        for rows in _MIXED_ROWS
        for width in set(widths)
        if max_num_seqs > 1 and width <= _MOST_DECODE_ROWS
    ]
    return tuple(sorted(size for size in (*alone, *mixed) if size.num_rows <= max_num_batched_tokens))


class MixedDraft:
    """The draft made before a mixed pass and needed after it. Its tensors belong to no graph, because the pass's graph
    may reuse the memory of any other graph.

    Args:
        slots_B: slots of a captured step, padding included.

    Attributes:
        slots_B: the slots.
        draft: the draft.
    """

    def __init__(self, slots_B: Tensor, k: int) -> None:
        size, device = len(slots_B), slots_B.device
        self.slots_B = slots_B
        self.draft = Draft.empty(size, k, device=device)
        self._last_B, self._position_B = torch.zeros(2, size, dtype=torch.long, device=device).unbind()

    def set(self, view: View, draft: Draft) -> None:
        """Store a draft, with the token and position that it follows."""
        self._last_B.copy_(view.last_B)
        self._position_B.copy_(view.position_B)
        self.draft.lengths_B.copy_(draft.lengths_B)
        self.draft.tokens_BK[:, : draft.tokens_BK.shape[1]].copy_(draft.tokens_BK)

    def starts(self, count: int) -> Tensor:
        """Return the position of the first row of the first `count` sequences."""
        return self._position_B[:count]

    def rows(self, count: int) -> tuple[Tensor, Tensor]:
        """Return tokens and positions of the rows of the first `count` sequences."""
        tokens_BW = torch.cat((self._last_B.unsqueeze(1), self.draft.tokens_BK), dim=1)[:count]
        offsets_W = torch.arange(tokens_BW.shape[1], device=tokens_BW.device)
        return tokens_BW.flatten(), (self.starts(count).unsqueeze(1) + offsets_W).flatten()


class PromptBatch:
    """The rows of a pass, in tensors reused for every pass.

    Args:
        longest: maximum rows of a prompt, for a pass outside graphs. None: a graph replays the pass.
    """

    def __init__(
        self, size: PromptSize, *, padding_slot: int, device: torch.device, longest: int | None = None
    ) -> None:
        self.size, self._padding_slot = size, padding_slot
        self._longest = longest
        num_rows, num_decodes, width = size.num_rows, size.num_decodes, size.width
        num_seqs = num_decodes + size.num_seqs
        lengths = (3 * num_rows, 4 * num_seqs, size.num_wanted)
        self._numbers = torch.zeros(sum(lengths), dtype=torch.long, device=device)
        by_row, by_seq, self._wanted_rows_R = self._numbers.split(lengths)
        self.tokens_N, self._owners_N, self._positions_N = by_row.view(3, -1).unbind()
        self.slots_B, self._starts_B, self._lengths_B, self._wanted_starts_B = by_seq.view(4, -1).unbind()
        self._wanted_lengths_B = upload([width] * num_decodes + [1] * size.num_seqs, device)
        self.spans: Spans
        """Spans of the last setting; captured work reads its tensors only."""
        self.wanted: tuple[Tensor, Spans]
        """Rows whose hidden states are read, and their places: see `PromptSize.num_wanted`. Rows of absent sequences
        point to others'."""

    def set(self, chunks: Sequence[Chunk], slots: Sequence[int] = (), mixed: MixedDraft | None = None) -> None:
        """Set a step's prompts, and the sequences that decode in the same pass, by slot."""
        size, count = self.size, len(slots)
        num_rows, num_decodes, width = size.num_rows, size.num_decodes, size.width
        by_row = np.zeros((3, num_rows), dtype=np.int64)
        by_seq = np.zeros((4, num_decodes + size.num_seqs), dtype=np.int64)
        wanted_rows = np.zeros(size.num_wanted, dtype=np.int64)
        by_seq[0] = self._padding_slot
        by_seq[0, :count], by_seq[2, :count] = slots, width
        wanted_rows[: num_decodes * width] = np.minimum(np.arange(num_decodes * width), num_rows - 1)
        row = count * width
        by_row[1, :row] = np.repeat(np.arange(count), width)
        for i, chunk in enumerate(chunks):
            b, is_last = num_decodes + i, i == len(chunks) - 1
            length = num_rows - row if is_last else chunk.length
            by_row[0, row : row + chunk.length] = chunk.sequence.tokens[chunk.start : chunk.end]
            by_row[1, row : row + length] = b
            by_row[2, row : row + length] = np.arange(chunk.start, chunk.start + length)
            by_seq[:, b] = chunk.sequence.row, chunk.start, length, chunk.end - 1
            wanted_rows[num_decodes * width + i] = row + chunk.length - 1
            row += length
        numbers = np.concatenate((by_row, by_seq, wanted_rows), axis=None)
        self._numbers.copy_(upload(numbers, self._numbers.device))
        if mixed:
            by_seq[[1, 3], :count] = self._enter(mixed, count)
        self.spans = Spans.laid_out(
            _pairs(by_seq[1], by_seq[2]),
            self._starts_B,
            self._lengths_B,
            positions_N=self._positions_N,
            owners_N=self._owners_N,
            parts=self._parts(count),
        )
        ends = Spans(
            starts_B=self._wanted_starts_B,
            lengths_B=self._wanted_lengths_B,
            width=max(width, 1),
            host=_pairs(by_seq[3], np.repeat((width, 1), (num_decodes, size.num_seqs))),
            parts=(PassPart(0, num_decodes, width, 0), PassPart(num_decodes, size.num_seqs, 1, num_decodes * width))
            if num_decodes
            else (),
        )
        self.wanted = self._wanted_rows_R, ends

    def _parts(self, count: int) -> tuple[PassPart, ...]:
        """Return the sequences that a kernel takes separately if `count` decode: in a graph there may be any number."""
        size = self.size
        if not size.num_decodes:
            return ()
        if self._longest is None:
            return PassPart(0, size.num_decodes, size.width), PassPart(size.num_decodes, size.num_seqs, size.num_rows)
        return PassPart(0, count, size.width, 0), PassPart(size.num_decodes, size.num_seqs, self._longest)

    def _enter(self, mixed: MixedDraft, count: int) -> list[int]:
        """Enter tokens and positions that only the device knows; return the latter if the host may look."""
        tokens_N, positions_N = mixed.rows(count)
        self.tokens_N[: len(tokens_N)].copy_(tokens_N)
        self._positions_N[: len(positions_N)].copy_(positions_N)
        starts_B = mixed.starts(count)
        for room_B in (self._starts_B, self._wanted_starts_B):
            room_B[:count].copy_(starts_B)
        return starts_B.tolist() if starts_B.device.type == "cpu" else [0] * count


def _pairs(starts: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(starts.tolist(), lengths.tolist(), strict=True))
