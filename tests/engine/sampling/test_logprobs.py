"""Candidates, ranks and ties agree with real vLLM and with sorting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwise.engine.sampling.logprobs import TokenRanks, parse, rank_tokens

GOLDEN = json.loads((Path(__file__).parent / "vllm_golden.json").read_text())


def test_one_batch_equals_vllm() -> None:
    logits = torch.tensor([case["logits"] for case in GOLDEN])
    chosen = torch.tensor([case["output"][0] for case in GOLDEN])
    for case, row in zip(GOLDEN, parse(rank_tokens(logits, chosen, 3).rows(), 3, str), strict=True):
        # vLLM's own rule for the dictionary: the sampled token first, overwritten by its entry among the top.
        ranks = dict(zip(case["top_ids"], [case["rank"], 1, 2, 3], strict=True))
        assert list(row) == list(dict.fromkeys(case["top_ids"]))
        assert {token: entry.rank for token, entry in row.items()} == ranks
        for token, value in zip(case["top_ids"], case["top_logprobs"], strict=True):
            assert row[token].logprob == pytest.approx(value, abs=2e-6)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9), st.data())
def test_ranks_under_ties(scores: list[int], data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(scores) - 1))
    k = data.draw(st.integers(0, len(scores) + 2))
    (row,) = parse(rank_tokens(torch.tensor([scores]).float(), torch.tensor([token]), k).rows(), k, str)
    assert token in row
    num_top = min(k, len(scores))
    assert sorted(entry.rank for entry in row.values())[:num_top] == list(range(1, num_top + 1))
    assert num_top <= len(row) <= num_top + 1
    for other, entry in row.items():
        better = sum(score > scores[other] for score in scores)
        assert better < entry.rank <= sum(score >= scores[other] for score in scores)


def test_no_candidates_asked_for() -> None:
    logits = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]]).log()
    rows = parse(rank_tokens(logits, torch.tensor([0, 2]), 0).rows(), 0, str)
    assert [list(row) for row in rows] == [[0], [2]]
    assert [row[token].rank for row, token in zip(rows, (0, 2), strict=True)] == [3, 3]


def test_rows_of_one_batch_may_want_different_counts() -> None:
    logits, chosen = torch.randn(4, 20), torch.tensor([3, -1, 19, 0])
    rows = rank_tokens(logits, chosen, 5).rows()
    for row, k in ((0, 5), (2, 2), (3, 1)):  # row 1 was not emitted: nobody reads what stands there
        alone = rank_tokens(logits[row : row + 1], chosen[row : row + 1], k)
        assert parse(rows[row : row + 1], k, str) == parse(alone.rows(), k, str)


def test_half_precision_is_ranked_in_single() -> None:
    logits = torch.randn(3, 50).bfloat16()
    got, expected = (rank_tokens(x, torch.tensor([1, 2, 3]), 4) for x in (logits, logits.float()))
    assert got.logprobs_RT.dtype == torch.float32
    assert torch.equal(got.logprobs_RT, expected.logprobs_RT)
    assert torch.equal(got.ids_RT, expected.ids_RT)


def test_a_ranking_can_be_sent_elsewhere_without_its_values() -> None:
    """Meta tensors have no values: reading one, which on a GPU would wait for it, raises."""
    ranked = rank_tokens(torch.empty(4, 30, device="meta"), torch.empty(4, dtype=torch.long, device="meta"), 5)
    assert isinstance(ranked, TokenRanks)
    assert ranked.ids_RT.shape == ranked.logprobs_RT.shape == (4, 6)
