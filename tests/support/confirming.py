"""Builds what the engine notifies proposers of and plans attention by, from plain lists."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwise.engine.attention.pass_rows import AttentionPlan, Spans, plan_attention
from draftwise.engine.proposers.proposer import Confirmed


def page_table(pages: Sequence[Sequence[int]], scratch: int) -> Tensor:
    """Return page_table_BP of lists of pages; unused entries and the last column name the scratch page."""
    width = max(map(len, pages)) + 1
    return torch.tensor([[*row, *[scratch] * (width - len(row))] for row in pages], dtype=torch.int32)


def plan(
    starts: Sequence[int],
    lengths: Sequence[int],
    pages: Sequence[Sequence[int]],
    *,
    block_size: int,
    scratch: int,
    causal: bool = True,
) -> AttentionPlan:
    """Return the plan for ragged rows."""
    spans = Spans.of(starts, lengths, "cpu")
    return plan_attention(spans, page_table(pages, scratch), block_size=block_size, causal=causal)


def confirm(
    rows: Sequence[Sequence[int]],
    *,
    starts: Sequence[int],
    limits: Sequence[int],
    slots: Sequence[int] | None = None,
    num_prompt: Sequence[int] | None = None,
    pages: Sequence[Sequence[int]] | None = None,
    scratch: int = 0,
    features_NF: Tensor | None = None,
    temperature: float = 0.0,
    seeds: Sequence[int] | None = None,
    histories: Sequence[Sequence[int]] = (),
    width: int | None = None,
) -> Confirmed:
    """Say that each sequence got the tokens of its row.

    Args:
        rows: new tokens of each sequence.
        starts: position of each sequence's first new token.
        limits: draft tokens wanted of each.
        slots: 0, 1, ... unless given.
        num_prompt: 1 of each unless given.
        pages: of each sequence; none unless given.
        scratch: the page for what has no place.
        features_NF: a row for each new token, sequence after sequence.
        temperature: of every sequence.
        seeds: the slots unless given.
        histories: all tokens of each sequence.
        width: None for ragged rows; else rows of each sequence, as in a step whose lengths only a GPU knows. Padding
            has tokens and states that would spoil a draft if they were read.
    """
    count, lengths = len(rows), [len(row) for row in rows]
    slots = range(count) if slots is None else slots
    tokens_N = torch.tensor([token for row in rows for token in row], dtype=torch.long)
    spans = Spans.of(starts, lengths, "cpu")
    if width is not None:
        tokens_N = _lay_out(tokens_N, lengths, width, padding=1)
        features_NF = None if features_NF is None else _lay_out(features_NF, lengths, width, padding=1e3)
        spans = Spans(starts_B=spans.starts_B, lengths_B=spans.lengths_B, width=width, host=None)
    return Confirmed(
        slots_B=torch.tensor(slots, dtype=torch.long),
        spans=spans,
        tokens_N=tokens_N,
        num_prompt_B=torch.tensor([1] * count if num_prompt is None else num_prompt, dtype=torch.long),
        limits_B=torch.tensor(limits, dtype=torch.long),
        page_table_BP=page_table([()] * count if pages is None else pages, scratch),
        features_NF=features_NF,
        temperature_B=torch.full((count,), temperature),
        seeds_B=torch.tensor(slots if seeds is None else seeds, dtype=torch.long),
        histories=tuple(histories),
    )


def _lay_out(values_N: Tensor, lengths: Sequence[int], width: int, *, padding: float) -> Tensor:
    """Return ragged rows as `width` rows of each sequence."""
    uniform_BW = values_N.new_full((len(lengths), width, *values_N.shape[1:]), padding)
    for row_W, values in zip(uniform_BW, values_N.split(list(lengths)), strict=True):
        row_W[: len(values)] = values
    return uniform_BW.flatten(0, 1)
