"""Candidates, ranks and ties agree with real vLLM and with sorting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwise.engine.logprobs import top_logprobs

GOLDEN = json.loads((Path(__file__).parent / "vllm_golden.json").read_text())


def test_one_batch_equals_vllm() -> None:
    logprobs = torch.tensor([case["logits"] for case in GOLDEN]).log_softmax(-1)
    chosen = torch.tensor([case["output"][0] for case in GOLDEN])
    for case, row in zip(GOLDEN, top_logprobs(logprobs, chosen, 3), strict=True):
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
    (row,) = top_logprobs(torch.tensor([scores]).float().log_softmax(-1), torch.tensor([token]), k)
    assert token in row
    num_top = min(k, len(scores))
    assert sorted(entry.rank for entry in row.values())[:num_top] == list(range(1, num_top + 1))
    assert num_top <= len(row) <= num_top + 1
    for other, entry in row.items():
        better = sum(score > scores[other] for score in scores)
        assert better < entry.rank <= sum(score >= scores[other] for score in scores)


def test_no_candidates_asked_for() -> None:
    logprobs = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]]).log()
    rows = top_logprobs(logprobs, torch.tensor([0, 2]), 0)
    assert [list(row) for row in rows] == [[0], [2]]
    assert [row[token].rank for row, token in zip(rows, (0, 2), strict=True)] == [3, 3]
