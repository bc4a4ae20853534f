"""Where the Triton kernel puts a pass's rows, against `plan_attention`."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from draftwise.engine.attention.pass_rows import Spans, plan_attention
from draftwise.engine.kernels.cuda.step_rows import place_rows


@pytest.mark.parametrize("limit", [None, 21, 10_000])
@pytest.mark.parametrize(("num_seqs", "width"), [(1, 1), (3, 4), (50, 7)])
def test_rows_lie_where_the_plan_puts_them(num_seqs, width, limit, device):
    torch.manual_seed(num_seqs)
    scratch, block_size, num_pages = 900, 16, 3
    table = torch.full((num_seqs + 1, num_pages + 1), scratch, dtype=torch.int32)
    table[:, :num_pages] = torch.randperm(scratch)[: table[:, :num_pages].numel()].view(-1, num_pages)
    table = table[1:].to(device)
    # Some rows begin before the first position, some reach to the end of the table and beyond.
    starts = torch.randint(-2, num_pages * block_size + 3, (num_seqs,))
    spans = Spans(starts_B=starts, lengths_B=torch.full_like(starts, width), width=width, host=None)
    plan = plan_attention(spans, table.cpu(), block_size=block_size, limit=limit)  # on the CPU by torch
    positions, slots = place_rows(starts.to(device), table, width=width, block_size=block_size, limit=limit)
    assert torch.equal(positions.cpu(), plan.positions_N)
    assert torch.equal(slots.cpu(), plan.slots_N)
