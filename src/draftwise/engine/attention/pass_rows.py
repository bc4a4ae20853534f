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
"""Sequences with at most this number of query tokens are padded and batched; longer ones run one by one."""
_FEW_ROWS = 64
"""Rows up to which a layer takes no longer than for one, so that leaving some out only adds launches."""
_LARGEST_PART = 0.75
"""Largest share of a pass's rows to select: above it, leaving out the others costs more than it saves."""


class PassPart(NamedTuple):
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
    parts: tuple[PassPart, ...] = ()
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
        parts: tuple[PassPart, ...] = (),
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

    def and_then(self, others: Spans) -> Spans:
        """Return these runs and then others, ragged; the host knows all of them."""
        runs = (*(self.host or ()), *(others.host or ()))
        return Spans.of([start for start, _ in runs], [length for _, length in runs], self.starts_B.device)

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
        if self.width == 1 and self.is_full:
            return self.starts_B
        return self.pack(self.starts_B.unsqueeze(1) + torch.arange(self.width, device=self.starts_B.device))

    @cached_property
    def owners_N(self) -> Tensor:
        """int64, the sequence of each row."""
        seqs_B = torch.arange(self.num_seqs, device=self.starts_B.device)
        return seqs_B if self.width == 1 and self.is_full else self.pack(seqs_B.unsqueeze(1).expand(-1, self.width))

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
    """Where the M rows of a group lie in the step, and where among its padded queries."""

    rows_M: Tensor
    padded_M: Tensor
    rows_X: Tensor
    """Row of each padded query; padding repeats its sequence's last."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeGroup:
    """Sequences with few query tokens, padded to one shape."""

    pages_BP: Tensor
    last_BQ: Tensor
    """Position of each query token: the last that it may look at."""
    padding: Padding | None
    """None when the step's rows are the queries, in order and without padding."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefillChunk:
    """One sequence with many query tokens."""

    row: int
    start: int
    length: int
    pages_1P: Tensor

    @property
    def context(self) -> int:
        """Tokens after the step."""
        return self.start + self.length


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionPlan:
    """Where each new token is stored and what it looks at; valid for one step and all its layers."""

    spans: Spans
    positions_N: Tensor
    """int64, within the page table."""
    slots_N: Tensor
    """int64, page * block_size + offset; in the scratch page for rows that have no place."""
    page_table_BP: Tensor
    """int32; unused entries and the whole last column name the scratch page."""
    block_size: int
    causal: bool
    """Whether a token looks at those up to itself only, and not at all of its sequence's."""
    wanted: RowSelection | None = None
    """Rows whose results somebody reads; None: all. Of the others the last layer only stores keys and values."""
    biases: dict[int | None, dict[DecodeGroup | PrefillChunk, Tensor]] = field(default_factory=dict)
    """Masks by window that the first layer computes for the later ones: 0 where a query may look, -inf elsewhere."""

    @property
    def most_tokens(self) -> int:
        """Tokens of a sequence that the table has pages for."""
        return (self.page_table_BP.shape[1] - 1) * self.block_size

    @cached_property
    def looks(self) -> tuple[Tensor, Tensor, int, int]:
        """int64 sequence of each row and the last position that it looks at, the longest context of a row, and a bound
        on the positions that all rows look at together; on a CPU."""
        owners_N, lasts_N = self.spans.owners_N.contiguous(), self.positions_N.contiguous()
        if not self.causal:
            lasts_N = (self.spans.starts_B + self.spans.lengths_B - 1)[owners_N]
        longest = max(int(lasts_N.numpy().max()) + 1, 1)
        return owners_N, lasts_N, longest, longest * len(lasts_N)

    def wanting(self, rows_R: Tensor, spans: Spans) -> AttentionPlan:
        """Return the plan of a pass of which only some rows are wanted; `spans` are their positions. It is itself where
        leaving out the others would not pay."""
        if not self._pays(len(rows_R)):
            return self
        plan = replace(self, biases={}, spans=spans, positions_N=self.positions_N[rows_R], slots_N=self.slots_N[rows_R])
        return replace(self, biases={}, wanted=RowSelection(rows_R, plan))

    def wanting_last(self) -> AttentionPlan:
        """Return the plan of a pass of which only the last row of each sequence is wanted, or itself; see `wanting`."""
        spans = self.spans
        return self.wanting(spans.last_row_B, spans.ends()) if self._pays(spans.num_seqs) else self

    def _pays(self, num_wanted: int) -> bool:
        num_rows = self.spans.num_rows
        return num_rows > _FEW_ROWS and num_wanted <= _LARGEST_PART * num_rows

    @cached_property
    def prefills(self) -> tuple[PrefillChunk, ...]:
        """Sequences whose rows are computed one by one: only where the host knows how many there are."""
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
        """Sequences with few query tokens; those of alike context together, because all are padded to the longest."""
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
        """Return all sequences as one group that reaches over their whole tables."""
        spans = self.spans
        last_BQ = spans.unpack(self.positions_N)
        if not self.causal:
            last_BQ = (spans.starts_B + spans.lengths_B - 1).unsqueeze(1).expand_as(last_BQ)
        return DecodeGroup(pages_BP=self.page_table_BP.long(), last_BQ=last_BQ, padding=None)

    def _is_prefill(self, length: int) -> bool:
        return self.causal and length > _LONGEST_DECODE

    def _group(self, spans: list[_Span]) -> DecodeGroup:
        """Return the group of `spans`, which are a part or all of the step's rows."""
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
    """Some rows of a pass, and what they look at."""

    rows_R: Tensor
    plan: AttentionPlan


@dataclass(frozen=True, slots=True)
class _Span:
    """New tokens of one sequence: which one, its rows, and the pages that it then fills."""

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
        page_table_BP: int32, pages of each sequence; unused entries and the last column name the scratch page.
        limit: rows at this position or later have no place; None: as far as the table reaches.
        causal: whether a token looks at those up to itself only, and not at all of its sequence's.
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
    on_host = page_table_BP.device.type == "cpu"  # where numpy runs less code for few numbers
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
