"""Prompts of a step laid out as one of a few sizes, so that the target's pass over them can be a CUDA graph.

A pass over few tokens takes the GPU less long than the host takes to launch it, kernel by kernel. Rows that a size has
too many are computed as if the last prompt went on: what they write lies behind its end, where the tokens to come
overwrite it, and nobody reads what comes out.

Shape letters: N rows of the pass, B sequences, padding included in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from draftwise.engine.attention.spans import Spans
from draftwise.engine.memory.transfer import upload
from draftwise.engine.step.scheduler import Chunk

__all__ = ["PromptBatch", "PromptSize", "prompt_sizes"]

_ROWS = (16, 32, 64, 96, 128, 192, 256, 320, 384, 512, 768, 1024)
"""Beyond, a pass of most models takes the GPU longer than the host."""
_SEQS = (1, 8)


@dataclass(frozen=True, slots=True, order=True)
class PromptSize:
    """A size that passes over prompts are padded to."""

    num_rows: int
    num_seqs: int

    @staticmethod
    def of(chunks: Sequence[Chunk], sizes: Sequence[PromptSize], *, reach: int) -> PromptSize | None:
        """Return the smallest of the ascending `sizes` that holds these prompts; None: they are computed as they are.

        Args:
            chunks: of the step.
            sizes: to choose from.
            reach: positions that the pages of a sequence can have.
        """
        num_rows = sum(chunk.length for chunk in chunks)
        room = reach - chunks[-1].end
        fits = (s for s in sizes if len(chunks) <= s.num_seqs and 0 <= s.num_rows - num_rows <= room)
        return next(fits, None)


def prompt_sizes(*, max_num_seqs: int, max_num_batched_tokens: int) -> tuple[PromptSize, ...]:
    """Return the sizes that are captured, in ascending order."""
    num_seqs = _SEQS if max_num_seqs > 1 else _SEQS[:1]
    return tuple(PromptSize(rows, seqs) for rows in _ROWS if rows <= max_num_batched_tokens for seqs in num_seqs)


class PromptBatch:
    """The prompts of a captured pass: always the same tensors, written for each pass."""

    def __init__(self, size: PromptSize, *, padding_slot: int, device: torch.device) -> None:
        self.size, self._padding_slot = size, padding_slot
        self._numbers = torch.zeros(3 * (size.num_rows + size.num_seqs), dtype=torch.long, device=device)
        by_row, by_seq = self._numbers.split((3 * size.num_rows, 3 * size.num_seqs))
        self.tokens_N, self._owners_N, self._positions_N = by_row.view(3, -1).unbind()
        self.slots_B, self._starts_B, self._lengths_B = by_seq.view(3, -1).unbind()
        self.spans: Spans
        """Of the prompts that were set last; what is captured looks at its tensors only."""

    def set(self, chunks: Sequence[Chunk]) -> None:
        """Enter the prompts of a step."""
        num_rows, num_seqs = self.size.num_rows, self.size.num_seqs
        by_row = np.zeros((3, num_rows), dtype=np.int64)
        by_seq = np.zeros((3, num_seqs), dtype=np.int64)
        by_seq[0] = self._padding_slot
        row = 0
        for b, chunk in enumerate(chunks):
            length = num_rows - row if b == len(chunks) - 1 else chunk.length
            by_row[0, row : row + chunk.length] = chunk.sequence.tokens[chunk.start : chunk.end]
            by_row[1, row : row + length] = b
            by_row[2, row : row + length] = np.arange(chunk.start, chunk.start + length)
            by_seq[:, b] = chunk.sequence.row, chunk.start, length
            row += length
        self._numbers.copy_(upload(np.concatenate((by_row, by_seq), axis=None), self._numbers.device))
        self.spans = Spans.laid_out(
            tuple(zip(by_seq[1].tolist(), by_seq[2].tolist(), strict=True)),
            self._starts_B,
            self._lengths_B,
            positions_N=self._positions_N,
            owners_N=self._owners_N,
        )
