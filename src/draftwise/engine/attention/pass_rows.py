"""Lays out the rows of a pass: the positions and sequences they compute, their slots, and their context.

On a GPU one Triton kernel attends for all sequences of a step. The groups and chunks here are for torch's own attention
over gathered pages, which runs elsewhere and in float64 (see `attend`).

Shape letters: B sequences, W rows that a sequence can have at most, N rows of the pass, Q query tokens of a sequence
(padded), M and X = B * Q the tokens of a group without and with padding, P pages, R rows of a selection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftwise.engine.memory.transfer import upload

_LONGEST_DECODE = 32
"""Sequences with up to this number of query tokens are padded and batched. Longer ones run one by one."""
_FEW_ROWS = 64
"""Up to this number of rows, a layer takes as long as for one row, so selecting rows only adds launches."""
_LARGEST_PART = 0.75
"""Largest share of a pass's rows to select. Above it, a selection costs more than it saves."""


class PassPart(NamedTuple):
    """Sequences of a pass that a kernel computes faster separately."""

    first_seq: int
    num_seqs: int
    width: int
    """Largest number of rows of a sequence."""
    first_row: int | None = None
    """First row of the part, whose sequences have `width` consecutive rows each. None: rows lie anywhere."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Spans:
    """One run of consecutive positions for each sequence.

    The rows of a pass are *ragged* if the host knows the lengths: sequence after sequence, without padding. If only the
    device knows the lengths, they are *uniform*: B * W rows, where row b * W + i is position i of sequence b's run.
    Rows with i >= length are padding and never read.
    """

    starts_B: Tensor
    """int64. First position of each run."""
    lengths_B: Tensor
    """int64, 0..W."""
    width: int
    """W."""
    host: tuple[tuple[int, int], ...] | None
    """(start, length) of each run. None if only the device knows them: the rows are uniform."""
    parts: tuple[PassPart, ...] = ()
    """Parts with similar run lengths. Together, they cover all sequences with rows."""

    @classmethod
    def of(cls, starts: Sequence[int], lengths: Sequence[int], device: torch.device | str) -> Spans:
        """Return ragged rows for runs known to the host."""
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
        parts: tuple[PassPart, ...] = (),
    ) -> Spans:
        """Return ragged rows whose tensors are already on the device. No upload is needed, so a CUDA graph can capture
        a pass over them and serve any runs with the same number of rows."""
        spans = cls(starts_B=starts_B, lengths_B=lengths_B, width=len(positions_N), host=host, parts=parts)
        spans.__dict__.update(positions_N=positions_N, owners_N=owners_N)
        return spans

    @classmethod
    def on(cls, starts_B: Tensor, lengths_B: Tensor, width: int, *, uniform: bool) -> Spans:
        """Return the rows for runs of at most `width` positions.

        With `uniform`, nothing waits for the device. Otherwise the lengths are read, the rows are ragged, and W becomes
        the longest length.
        """
        host = None
        if not uniform:
            lengths = lengths_B.tolist()
            host, width = tuple(zip(starts_B.tolist(), lengths, strict=True)), max(lengths)
        return cls(starts_B=starts_B, lengths_B=lengths_B, width=width, host=host)

    def with_runs(self, starts_B: Tensor, lengths_B: Tensor, width: int) -> Spans:
        """Return the rows for other runs of at most `width` positions, uniform or ragged like these."""
        return Spans.on(starts_B, lengths_B, width, uniform=self.host is None)

    def ends(self) -> Spans:
        """Return one row per run: its last position, or the position before an empty run."""
        host = None if self.host is None else tuple((start + length - 1, 1) for start, length in self.host)
        return Spans(
            starts_B=self.starts_B + self.lengths_B - 1, lengths_B=torch.ones_like(self.lengths_B), width=1, host=host
        )

    def and_then(self, others: Spans) -> Spans:
        """Return these runs followed by `others`, as ragged rows. The host must know all lengths."""
        runs = (*(self.host or ()), *(others.host or ()))
        return Spans.of([start for start, _ in runs], [length for _, length in runs], self.starts_B.device)

    @property
    def num_seqs(self) -> int:
        """B."""
        return len(self.starts_B)

    @cached_property
    def is_full(self) -> bool:
        """Whether there are B * W rows: uniform, or ragged with all runs of length W."""
        return self.host is None or all(length == self.width for _, length in self.host)

    @cached_property
    def num_rows(self) -> int:
        """N."""
        return self.num_seqs * self.width if self.host is None else sum(length for _, length in self.host)

    @cached_property
    def positions_N(self) -> Tensor:
        """int64 [N]. Position of each row. Positions of padding continue after the run."""
        if self.width == 1 and self.is_full:
            return self.starts_B
        return self.pack(self.starts_B.unsqueeze(1) + torch.arange(self.width, device=self.starts_B.device))

    @cached_property
    def owners_N(self) -> Tensor:
        """int64 [N]. Sequence of each row."""
        seqs_B = torch.arange(self.num_seqs, device=self.starts_B.device)
        return seqs_B if self.width == 1 and self.is_full else self.pack(seqs_B.unsqueeze(1).expand(-1, self.width))

    @cached_property
    def first_row_B(self) -> Tensor:
        """int64 [B]. Row of each run's first position."""
        if self.is_full:
            return torch.arange(0, self.num_rows, self.width, device=self.starts_B.device)
        return self.lengths_B.cumsum(0) - self.lengths_B

    @cached_property
    def last_row_B(self) -> Tensor:
        """int64 [B]. Row of each run's last position; for an empty run, an arbitrary row."""
        return (self.first_row_B + self.lengths_B - 1).clamp_(min=0)

    def shift(self, by: int) -> Spans:
        """Return the runs moved `by` positions later (earlier, if negative)."""
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
        """Return the rows [N, ...] of values laid out as [B, W, ...]. A wider layout is cut off at W."""
        flat = values_BW[:, : self.width].flatten(0, 1)
        return flat if self.is_full else flat.index_select(0, self._places_N)

    def unpack(self, values_N: Tensor) -> Tensor:
        """Return rows [N, ...] laid out as [B, W, ...]. Places after a ragged run's end hold arbitrary rows."""
        if self.is_full:
            return values_N.view(self.num_seqs, self.width, *values_N.shape[1:])
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Places of a group's M rows in the step and among its padded queries."""

    rows_M: Tensor
    padded_M: Tensor
    rows_X: Tensor
    """Row of each padded query. Padding repeats the sequence's last row."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeGroup:
    """Sequences with few query tokens, padded to one shape."""

    pages_BP: Tensor
    last_BQ: Tensor
    """Last position that each query token attends to."""
    padding: Padding | None
    """None if the step's rows are the queries, in order and without padding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillChunk:
    """One sequence with many query tokens."""

    row: int
    start: int
    length: int
    pages_1P: Tensor

    @property
    def context(self) -> int:
        """Tokens of the sequence after the step."""
        return self.start + self.length


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionPlan:
    """Where each new token is stored and what it attends to. Valid for one step and all its layers."""

    spans: Spans
    positions_N: Tensor
    """int64 [N]. Positions within the page table."""
    slots_N: Tensor
    """int64 [N], page * block_size + offset. In the scratch page for rows without a place."""
    page_table_BP: Tensor
    """int32. Unused entries and the whole last column are the scratch page."""
    block_size: int
    causal: bool
    """Whether a token attends only up to itself, instead of to its whole sequence."""
    wanted: RowSelection | None = None
    """Rows whose results are read; None: all. For other rows, the last layer only stores keys and values."""
    only_stores: bool = False
    """Whether no results are read: the last layer only stores keys and values of all rows."""
    biases: dict[int | None, dict[DecodeGroup | PrefillChunk, Tensor]] = field(default_factory=dict)
    """Masks by window, computed in the first layer for later ones: 0 where a query attends, -inf elsewhere."""

    @property
    def most_tokens(self) -> int:
        """Largest number of tokens per sequence that fits the table's pages."""
        return (self.page_table_BP.shape[1] - 1) * self.block_size

    @cached_property
    def looks(self) -> tuple[Tensor, Tensor, int, int]:
        """Sequence of each row (int64), last position that it attends to (int64), longest context of a row, and an
        upper bound on the sum of all rows' contexts; CPU only."""
        owners_N, lasts_N = self.spans.owners_N.contiguous(), self.positions_N.contiguous()
        if not self.causal:
            lasts_N = (self.spans.starts_B + self.spans.lengths_B - 1)[owners_N]
        longest = max(int(lasts_N.numpy().max()) + 1, 1)
        return owners_N, lasts_N, longest, longest * len(lasts_N)

    def wanting(self, rows_R: Tensor, spans: Spans) -> AttentionPlan:
        """Return the plan of a pass that needs only the results of `rows_R`, at positions `spans`. Returns this plan if
        the selection would not pay."""
        if not self._pays(len(rows_R)):
            return self
        plan = replace(self, biases={}, spans=spans, positions_N=self.positions_N[rows_R], slots_N=self.slots_N[rows_R])
        return replace(self, biases={}, wanted=RowSelection(rows_R, plan))

    def wanting_last(self) -> AttentionPlan:
        """Return the plan of a pass that needs only each sequence's last row, or this plan; see `wanting`."""
        spans = self.spans
        return self.wanting(spans.last_row_B, spans.ends()) if self._pays(spans.num_seqs) else self

    def wanting_none(self) -> AttentionPlan:
        """Return the plan of a pass whose results nobody reads, or this plan; see `wanting`. A single call of all
        layers on a CPU computes each sequence's last row nevertheless."""
        plan = self.wanting_last()
        return plan if plan is self else replace(plan, only_stores=True)

    def _pays(self, num_wanted: int) -> bool:
        num_rows = self.spans.num_rows
        return num_rows > _FEW_ROWS and num_wanted <= _LARGEST_PART * num_rows

    @cached_property
    def prefills(self) -> tuple[PrefillChunk, ...]:
        """Sequences that are computed one by one. Empty if the host does not know the lengths."""
        if self.spans.host is None:
            return ()
        chunks, row = [], 0
        for b, (start, length) in enumerate(self.spans.host):
            if self._is_prefill(length):
                num_pages = -(-(start + length) // self.block_size)
                pages_1P = self.page_table_BP[b : b + 1, :num_pages].long()
                chunks.append(PrefillChunk(row=row, start=start, length=length, pages_1P=pages_1P))
            row += length
        return tuple(chunks)

    @cached_property
    def decodes(self) -> tuple[DecodeGroup, ...]:
        """Sequences with few query tokens, grouped by similar context, because each group is padded to its longest."""
        if self.spans.host is None:
            return (self._uniform_group(),)
        groups: dict[int, list[_Span]] = {}
        row = 0
        for b, (start, length) in enumerate(self.spans.host):
            if length and not self._is_prefill(length):
                num_pages = -(-(start + length) // self.block_size)
                groups.setdefault(num_pages.bit_length(), []).append(_Span(b, row, start, length, num_pages))
            row += length
        return tuple(self._group(spans) for spans in groups.values())

    def _uniform_group(self) -> DecodeGroup:
        """Return all sequences as one group that covers their whole tables."""
        spans = self.spans
        last_BQ = spans.unpack(self.positions_N)
        if not self.causal:
            last_BQ = (spans.starts_B + spans.lengths_B - 1).unsqueeze(1).expand_as(last_BQ)
        return DecodeGroup(pages_BP=self.page_table_BP.long(), last_BQ=last_BQ, padding=None)

    def _is_prefill(self, length: int) -> bool:
        return self.causal and length > _LONGEST_DECODE

    def _group(self, spans: list[_Span]) -> DecodeGroup:
        """Return the group of `spans`, some or all of the step's rows."""
        num_queries, num_pages = max(span.length for span in spans), max(span.num_pages for span in spans)
        last: list[int] = []
        for span in spans:
            end = span.start + span.length
            own = range(span.start, end) if self.causal else [end - 1] * span.length
            last += [*own, *[end - 1] * (num_queries - span.length)]
        device = self.page_table_BP.device
        alone_and_even = sum(span.length for span in spans) == self.spans.num_rows == len(last)
        owners = upload([span.index for span in spans], device)
        return DecodeGroup(
            pages_BP=self.page_table_BP[:, :num_pages].index_select(0, owners).long(),
            last_BQ=upload(last, device).view(len(spans), num_queries),
            padding=None if alone_and_even else _pad(spans, num_queries, device),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowSelection:
    """Selected rows of a pass and what they attend to."""

    rows_R: Tensor
    plan: AttentionPlan


@dataclass(frozen=True, slots=True)
class _Span:
    """New tokens of one sequence: its index, its rows, and the pages that it fills after the step."""

    index: int
    row: int
    start: int
    length: int
    num_pages: int


def plan_attention(
    spans: Spans, page_table_BP: Tensor, *, block_size: int, limit: int | None = None, causal: bool = True
) -> AttentionPlan:
    """Return the plan for one step, without waiting for the device.

    Args:
        page_table_BP: int32. Pages of each sequence. Unused entries and the last column are the scratch page.
        limit: rows at this position or later have no place. None: the end of the table.
        causal: whether a token attends only up to itself, instead of to its whole sequence.
    """
    if spans.host is None and page_table_BP.is_cuda:
        from draftwise.engine.kernels.cuda.step_rows import place_rows  # Triton is there where CUDA is

        positions_N, slots_N = place_rows(
            spans.starts_B, page_table_BP, width=spans.width, block_size=block_size, limit=limit
        )
    else:
        positions_N, slots_N = _place(spans, page_table_BP, block_size, limit)
    return AttentionPlan(
        spans=spans,
        positions_N=positions_N,
        slots_N=slots_N,
        page_table_BP=page_table_BP,
        block_size=block_size,
        causal=causal,
    )


def _place(spans: Spans, page_table_BP: Tensor, block_size: int, limit: int | None) -> tuple[Tensor, Tensor]:
    """Return positions_N and slots_N."""
    last = page_table_BP.shape[1] - 1
    end = last * block_size if limit is None else min(limit, last * block_size)
    rows: tuple[Any, ...] = spans.positions_N, spans.owners_N, page_table_BP
    # Numpy runs less code for few numbers; uniform rows are computed as on a GPU, which the host does not look at.
    on_host = spans.host is not None and page_table_BP.device.type == "cpu"
    positions_N, owners_N, table_BP = [each.numpy() for each in rows] if on_host else rows
    positions_N = positions_N.clip(0, end)
    columns_N = positions_N // block_size
    columns_N = columns_N + (positions_N == end) * (last - columns_N)
    slots_N = table_BP[owners_N, columns_N] * block_size + positions_N % block_size
    return (torch.from_numpy(positions_N), torch.from_numpy(slots_N)) if on_host else (positions_N, slots_N)


def _pad(spans: list[_Span], num_queries: int, device: torch.device | str) -> Padding:
    rows: list[int] = []
    padded: list[int] = []
    queries: list[int] = []
    for b, span in enumerate(spans):
        own = range(span.row, span.row + span.length)
        rows += own
        padded += range(b * num_queries, b * num_queries + span.length)
        queries += [*own, *[own[-1]] * (num_queries - span.length)]
    rows_M, padded_M, rows_X = (upload(index, device) for index in (rows, padded, queries))
    return Padding(rows_M=rows_M, padded_M=padded_M, rows_X=rows_X)
