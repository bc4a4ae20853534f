"""Which positions of which sequences a pass computes, and where their rows lie.

Shape letters: B sequences, W rows that a sequence can have at most, N rows of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftwise.engine.memory.transfer import upload

__all__ = ["Part", "Spans"]


class Part(NamedTuple):
    """Some sequences of a pass that a kernel does best to take by themselves."""

    first_seq: int
    num_seqs: int
    width: int
    """Rows of each at most."""
    first_row: int | None = None
    """Where their rows lie, which are `width` of each, one after the other; None: anywhere."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Spans:
    """One run of consecutive positions for each sequence.

    The rows of a pass are *ragged* where the host knows the lengths: sequence after sequence, without padding. In a
    step whose lengths only the device knows they are *uniform*: B * W rows, of which row b * W + i is position i of
    sequence b's run, and those with i >= length are padding that nobody reads.
    """

    starts_B: Tensor
    """int64, first position of each run."""
    lengths_B: Tensor
    """int64, 0..W."""
    width: int
    """W."""
    host: tuple[tuple[int, int], ...] | None
    """(start, length) of each run; None when only the device knows: the rows are uniform."""
    parts: tuple[Part, ...] = ()
    """Where some have much shorter runs than others: together all sequences that have rows."""

    @classmethod
    def of(cls, starts: Sequence[int], lengths: Sequence[int], device: torch.device | str) -> Spans:
        """Return the ragged rows for runs that the host knows."""
        both = upload([starts, lengths], device)
        host = tuple(zip(starts, lengths, strict=True))
        return cls(starts_B=both[0], lengths_B=both[1], width=max(lengths), host=host)

    @classmethod
    def laid_out(
        cls,
        host: tuple[tuple[int, int], ...],
        starts_B: Tensor,
        lengths_B: Tensor,
        *,
        positions_N: Tensor,
        owners_N: Tensor,
        parts: tuple[Part, ...] = (),
    ) -> Spans:
        """Return ragged rows about which everything is on the device already, so that nothing is uploaded for them:
        a pass over them can be captured as a CUDA graph, for any runs of as many rows."""
        spans = cls(starts_B=starts_B, lengths_B=lengths_B, width=len(positions_N), host=host, parts=parts)
        spans.__dict__.update(positions_N=positions_N, owners_N=owners_N)
        return spans

    @classmethod
    def on(cls, starts_B: Tensor, lengths_B: Tensor, width: int, *, uniform: bool) -> Spans:
        """Return the rows for runs of at most `width` positions.

        With `uniform` nothing waits for the device; else the lengths are read, the rows are ragged, and W becomes the
        longest length.
        """
        host = None
        if not uniform:
            lengths = lengths_B.tolist()
            host, width = tuple(zip(starts_B.tolist(), lengths, strict=True)), max(lengths)
        return cls(starts_B=starts_B, lengths_B=lengths_B, width=width, host=host)

    def with_runs(self, starts_B: Tensor, lengths_B: Tensor, width: int) -> Spans:
        """Return the rows for other runs of at most `width` positions, uniform or ragged as these are."""
        return Spans.on(starts_B, lengths_B, width, uniform=self.host is None)

    def ends(self) -> Spans:
        """Return the last position of each run, a row for each; an empty run's is the one before it."""
        host = None if self.host is None else tuple((start + length - 1, 1) for start, length in self.host)
        return Spans(
            starts_B=self.starts_B + self.lengths_B - 1, lengths_B=torch.ones_like(self.lengths_B), width=1, host=host
        )

    @property
    def num_seqs(self) -> int:
        """B."""
        return len(self.starts_B)

    @cached_property
    def is_full(self) -> bool:
        """Whether there are B * W rows: uniform, or ragged without a shorter run."""
        return self.host is None or all(length == self.width for _, length in self.host)

    @cached_property
    def num_rows(self) -> int:
        """N."""
        return self.num_seqs * self.width if self.host is None else sum(length for _, length in self.host)

    @cached_property
    def positions_N(self) -> Tensor:
        """int64, position of each row; of padding too, behind its run."""
        return self.pack(self.starts_B.unsqueeze(1) + torch.arange(self.width, device=self.starts_B.device))

    @cached_property
    def owners_N(self) -> Tensor:
        """int64, the sequence of each row."""
        return self.pack(torch.arange(self.num_seqs, device=self.starts_B.device).unsqueeze(1).expand(-1, self.width))

    @cached_property
    def first_row_B(self) -> Tensor:
        """int64, row of each run's first position."""
        if self.is_full:
            return torch.arange(0, self.num_rows, self.width, device=self.starts_B.device)
        return self.lengths_B.cumsum(0) - self.lengths_B

    @cached_property
    def last_row_B(self) -> Tensor:
        """int64, row of each run's last position; of an empty one, some row."""
        return (self.first_row_B + self.lengths_B - 1).clamp_(min=0)

    def shift(self, by: int) -> Spans:
        """Return the runs as many positions later (earlier, if negative)."""
        if by == 0:
            return self
        host = None if self.host is None else tuple((start + by, length) for start, length in self.host)
        shifted = Spans(starts_B=self.starts_B + by, lengths_B=self.lengths_B, width=self.width, host=host)
        for name in (
            "is_full",
            "num_rows",
            "owners_N",
            "first_row_B",
            "last_row_B",
        ):  # what is known of the rows stays known
            if name in self.__dict__:
                shifted.__dict__[name] = self.__dict__[name]
        return shifted

    def pack(self, values_BW: Tensor) -> Tensor:
        """Return the rows [N, ...] of what is laid out as [B, W, ...]; a wider layout is cut off at W."""
        flat = values_BW[:, : self.width].flatten(0, 1)
        return flat if self.is_full else flat.index_select(0, self._places_N)

    def unpack(self, values_N: Tensor) -> Tensor:
        """Return rows [N, ...] laid out as [B, W, ...]; behind a ragged run's end stands some row of the pass."""
        if self.is_full:
            return values_N.unflatten(0, (self.num_seqs, self.width))
        offsets_W = torch.arange(self.width, device=values_N.device)
        last_B1 = (self.lengths_B - 1).clamp(min=0).unsqueeze(1)
        rows_BW = self.first_row_B.unsqueeze(1) + torch.minimum(offsets_W, last_B1)
        return values_N[rows_BW.clamp_(max=self.num_rows - 1)]

    @cached_property
    def _places_N(self) -> Tensor:
        """Place of each ragged row in [B, W], flattened."""
        assert self.host is not None
        places = [np.arange(b * self.width, b * self.width + length) for b, (_, length) in enumerate(self.host)]
        return upload(np.concatenate(places), self.starts_B.device)
