"""On a CPU a row's attention has the same bits alone, behind drafts, and in any batch."""

import itertools

import pytest
import torch

from draftwise.core import ModelShape
from draftwise.engine.attention import attend, attend_by_torch
from draftwise.engine.attention.pass_rows import Spans, plan_attention
from draftwise.engine.memory.kv import PagedKV

BLOCK, PAGES = 16, 160
HEADS = [(9, 3, 64), (8, 8, 16), (4, 1, 128)]
"""Query heads, key heads, and their size."""


@pytest.fixture(params=HEADS, ids=str)
def heads(request):
    return request.param


def make_pages(heads, dtype):
    num_heads, num_kv_heads, size = heads
    shape = ModelShape(
        hidden_size=num_heads * size,
        num_layers=1,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=size,
        intermediate_size=8,
        vocab_size=8,
        max_position_embeddings=4096,
    )
    kv = PagedKV(shape, num_pages=PAGES, block_size=BLOCK, dtype=dtype, device="cpu")
    kv.layers[0].copy_(torch.randn(kv.layers[0].shape, generator=torch.Generator().manual_seed(1)).to(dtype))
    return kv


def run(kv, heads, sequences, *, by=attend, causal=True, window=None):
    """Return the output of sequences of (pages, start, queries), whose queries lie apart as they do in a pass."""
    num_heads, num_kv_heads, size = heads
    width = max(len(pages) for pages, _, _ in sequences) + 1
    table = torch.tensor([[*pages, *[PAGES] * (width - len(pages))] for pages, _, _ in sequences], dtype=torch.int32)
    spans = Spans.of([start for _, start, _ in sequences], [len(q) for _, _, q in sequences], "cpu")
    plan = plan_attention(spans, table, block_size=BLOCK, causal=causal)
    q_NAD = torch.cat([q for _, _, q in sequences])
    qkv_NSD = torch.cat([q_NAD, q_NAD.new_zeros(len(q_NAD), 2 * num_kv_heads, size)], 1)
    return by(qkv_NSD[:, :num_heads], kv, 0, plan, window=window)


def queries(heads, count, dtype, seed):
    return torch.randn(count, heads[0], heads[2], generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("causal", "window"), [(True, None), (True, 7), (False, None)])
def test_it_is_attention(heads, dtype, tolerance, causal, window):
    kv = make_pages(heads, dtype)
    lengths = [(0, 1), (3, 1), (30, 5), (200, 2), (1, 32), (0, 77), (33, 40)]
    sequences = [
        (list(range(i * 20, i * 20 + 16)), start, queries(heads, count, dtype, i))
        for i, (start, count) in enumerate(lengths)
    ]
    ours = run(kv, heads, sequences, causal=causal, window=window)
    theirs = run(kv, heads, sequences, by=attend_by_torch, causal=causal, window=window)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_whatever_stands_next_to_it(heads, dtype):
    kv, pages = make_pages(heads, dtype), list(range(5, 150))
    other = ([PAGES - 1, *range(40)], 600, queries(heads, 3, dtype, 9))
    for start in (0, 1, 15, 63, 2046):
        rows = queries(heads, 80, dtype, start)
        together = run(kv, heads, [(pages, start, rows)])
        for count in (1, 2, 4, 5, 17, 33, 64):
            assert torch.equal(run(kv, heads, [(pages, start, rows[:count])]), together[:count])
            batch = run(kv, heads, [other, (pages, start, rows[:count]), other])
            assert torch.equal(batch[3 : 3 + count], together[:count])
        for i in (1, 2, 79):
            assert torch.equal(run(kv, heads, [(pages, start + i, rows[i : i + 1])]), together[i : i + 1])


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(heads, threads):
    kv, sequence = make_pages(heads, torch.bfloat16), (list(range(150)), 2000, queries(heads, 9, torch.bfloat16, 0))
    before, expected = torch.get_num_threads(), run(kv, heads, [sequence])
    torch.set_num_threads(threads)
    try:
        assert all(torch.equal(run(kv, heads, [sequence]), expected) for _ in itertools.repeat(None, 3))
    finally:
        torch.set_num_threads(before)
