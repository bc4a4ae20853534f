"""Paged attention against dense attention: whatever the batch, every query sees its own past and nothing else."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from draftwise.core import ModelShape
from draftwise.engine.attention import attend
from draftwise.engine.attention.pass_rows import AttentionPlan, Spans, plan_attention
from draftwise.engine.memory.kv import PagedKV

HEADS, GROUPS, SIZE, BLOCK = 4, 2, 8, 4
SHAPE = ModelShape(
    hidden_size=HEADS * SIZE,
    num_layers=2,
    num_heads=HEADS,
    num_kv_heads=GROUPS,
    head_dim=SIZE,
    intermediate_size=8,
    vocab_size=8,
    max_position_embeddings=256,
)


def dense(q_QAD: torch.Tensor, k_TGD: torch.Tensor, v_TGD: torch.Tensor) -> torch.Tensor:
    """Return causal attention of the last Q of T positions, one head at a time."""
    num_queries, context = len(q_QAD), len(k_TGD)
    visible = torch.arange(context) <= torch.arange(context - num_queries, context).unsqueeze(1)
    out = torch.empty_like(q_QAD)
    for head in range(HEADS):
        keys, values = k_TGD[:, head * GROUPS // HEADS], v_TGD[:, head * GROUPS // HEADS]
        scores = (q_QAD[:, head] @ keys.T / SIZE**0.5).masked_fill(~visible, float("-inf"))
        out[:, head] = scores.softmax(-1) @ values
    return out.flatten(1)


def store(
    kv: PagedKV,
    layer: int,
    lengths: list[int],
    contexts: list[int],
    tables: list[list[int]],
    new_tokens: list[torch.Tensor],
) -> AttentionPlan:
    """Write the newest tokens of each sequence into its pages."""
    starts = [context - length for context, length in zip(contexts, lengths, strict=True)]
    width = max(map(len, tables)) + 1
    table_BP = torch.tensor([table + [kv.num_pages] * (width - len(table)) for table in tables], dtype=torch.int32)
    plan = plan_attention(Spans.of(starts, lengths, "cpu"), table_BP, block_size=BLOCK)
    kv.store(layer, plan.slots_N, torch.cat(new_tokens))
    return plan


def run(sizes: list[tuple[int, int]], seed: int, *, layer: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (paged, dense) outputs for sequences of (context before, new tokens)."""
    generator = torch.Generator().manual_seed(seed)
    totals = [before + new for before, new in sizes]
    needed = [-(-total // BLOCK) for total in totals]
    order = torch.randperm(sum(needed) + 3, generator=generator).tolist()
    tables = [[order.pop() for _ in range(count)] for count in needed]
    kv = PagedKV(SHAPE, num_pages=sum(needed) + 3, block_size=BLOCK, dtype=torch.float64, device="cpu")
    for pages in kv.layers:
        pages.normal_(generator=generator)  # what old owners left behind must not matter
    texts = [torch.randn(total, 2, GROUPS, SIZE, dtype=torch.float64, generator=generator) for total in totals]
    queries = [torch.randn(new, HEADS, SIZE, dtype=torch.float64, generator=generator) for _, new in sizes]
    old = [i for i, (before, _) in enumerate(sizes) if before]
    if old:
        lengths = [sizes[i][0] for i in old]
        store(kv, layer, lengths, lengths, [tables[i] for i in old], [texts[i][: sizes[i][0]] for i in old])
    new_tokens = [text[before:] for text, (before, _) in zip(texts, sizes, strict=True)]
    plan = store(kv, layer, [new for _, new in sizes], totals, tables, new_tokens)
    paged = attend(torch.cat(queries), kv, layer, plan)
    expected = [dense(q, text[:, 0], text[:, 1]) for q, text in zip(queries, texts, strict=True)]
    return paged, torch.cat(expected)


sequences = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 45)), min_size=1, max_size=5)


@settings(max_examples=80, deadline=None)
@given(sizes=sequences, seed=st.integers(0, 2**16))
@example(sizes=[(5, 1), (9, 1)], seed=0).via("decode, in order and without padding")
@example(sizes=[(5, 3), (9, 1)], seed=0).via("unequal drafts")
@example(sizes=[(5, 3), (6, 1), (60, 2)], seed=0).via("as many rows outside a group as padding inside")
@example(sizes=[(0, 15), (0, 42)], seed=0).via("a short prompt before a long one")
@example(sizes=[(0, 42), (7, 1)], seed=0).via("a long prompt before a decoding sequence")
@example(sizes=[(40, 40)], seed=0).via("a later chunk of a long prompt")
def test_paged_equals_dense(sizes: list[tuple[int, int]], seed: int) -> None:
    torch.testing.assert_close(*run(sizes, seed))


def test_the_oracle_notices_a_query_that_looks_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwise.engine import attention

    monkeypatch.setattr(
        attention, "_bias", lambda last, length, dtype, _: torch.zeros(*last.shape, length, dtype=dtype)
    )
    with pytest.raises(AssertionError):
        torch.testing.assert_close(*run([(5, 3), (9, 2)], 0))


def test_rows_without_a_place_are_stored_in_the_scratch_page() -> None:
    table_12 = torch.tensor([[3, 7]], dtype=torch.int32)  # one page of four tokens, and page 7 is scratch
    plan = plan_attention(Spans.of([2], [5], "cpu"), table_12, block_size=4)
    assert plan.slots_N.tolist()[:2] == [14, 15]
    assert {slot // 4 for slot in plan.slots_N.tolist()[2:]} == {7}
    limited = plan_attention(Spans.of([0], [3], "cpu"), table_12, block_size=4, limit=2)
    assert [slot // 4 for slot in limited.slots_N.tolist()] == [3, 3, 7]
