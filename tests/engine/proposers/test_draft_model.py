"""The draft model proposes what it would say by itself, however its work is batched, chunked and interrupted."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.engine.attention import PagedKV, plan_attention
from draftwise.engine.models import CausalLM, load_model
from draftwise.engine.proposers.base import Confirmed
from draftwise.engine.proposers.draft_model import DraftModelProposer

VOCAB = 200


@pytest.fixture(scope="module")
def model(tiny_draft: Path) -> CausalLM:
    return load_model(tiny_draft, dtype="float64", device="cpu")


def confirm(news: dict[int, list[int]], *, temperature: float = 0.0) -> Confirmed:
    width = max(map(len, news.values()))
    return Confirmed(
        slots=tuple(news),
        tokens_BN=torch.tensor([row + [0] * (width - len(row)) for row in news.values()]),
        lengths_B=torch.tensor([len(row) for row in news.values()]),
        num_prompt=tuple(1 for _ in news),
        temperature=tuple(temperature for _ in news),
        seeds=tuple(slot + 7 for slot in news),
    )


def next_logits(model: CausalLM, tokens: list[int]) -> torch.Tensor:
    """Return the logits after `tokens`, computed in one pass from nothing."""
    pages = list(range(-(-len(tokens) // 16)))
    kv = PagedKV(model.shape, num_pages=len(pages), block_size=16, dtype=model.dtype, device=model.device)
    plan = plan_attention(
        query_lens=[len(tokens)], context_lens=[len(tokens)], page_tables=[pages], block_size=16, device=model.device
    )
    with torch.inference_mode():
        hidden, _ = model(torch.tensor(tokens), torch.arange(len(tokens)), kv, plan)
        return model.logits(hidden[-1:])[0]


def greedy(model: CausalLM, tokens: list[int], k: int) -> list[int]:
    tokens = list(tokens)
    for _ in range(k):
        tokens.append(int(next_logits(model, tokens).argmax()))
    return tokens[len(tokens) - k :]


def make_proposer(model: CausalLM, **settings: int | bool) -> DraftModelProposer:
    return DraftModelProposer(model, **({"max_num_seqs": 3, "max_model_len": 96, "block_size": 4} | settings))


tokens = st.lists(st.integers(0, VOCAB), min_size=1, max_size=20)
steps = st.lists(st.tuples(st.dictionaries(st.integers(0, 2), tokens, min_size=1), st.integers(0, 3)), max_size=5)


@settings(max_examples=25, deadline=None)
@given(steps=steps, budget=st.integers(3, 40), released=st.integers(0, 2))
def test_drafts_are_what_the_model_says_from_scratch(
    model: CausalLM, steps: list[tuple[dict[int, list[int]], int]], budget: int, released: int
) -> None:
    proposer = make_proposer(model, max_num_batched_tokens=budget)
    known: dict[int, list[int]] = {}
    for i, (news, k) in enumerate(steps):
        if i == 2:
            proposer.release(released)
            known.pop(released, None)
        for slot, new in news.items():
            known[slot] = known.get(slot, []) + new
        draft = proposer.propose(confirm(news), k)
        for b, slot in enumerate(news):
            expected = greedy(model, known[slot], min(k, max(0, 96 - len(known[slot]))))
            assert draft.tokens_BK[b, : draft.lengths_B[b]].tolist() == expected


def test_the_context_limit_shortens_drafts(model: CausalLM) -> None:
    proposer = make_proposer(model, max_model_len=12)
    assert proposer.propose(confirm({0: [5] * 10}), 4).lengths_B.tolist() == [2]
    assert proposer.propose(confirm({0: [5]}), 4).lengths_B.tolist() == [1]
    assert proposer.propose(confirm({0: [5]}), 4).lengths_B.tolist() == [0]


def test_released_pages_are_used_again(model: CausalLM) -> None:
    proposer = make_proposer(model, max_num_seqs=1, max_model_len=32)
    for _ in range(5):
        assert proposer.propose(confirm({0: list(range(24))}), 3).lengths_B.tolist() == [3]
        proposer.release(0)
    proposer.release(0)


def test_without_a_free_page_there_is_no_draft(model: CausalLM) -> None:
    proposer = make_proposer(model, max_num_seqs=1, max_model_len=32)
    draft = proposer.propose(confirm({0: list(range(24)), 1: list(range(9))}), 3)
    assert draft.lengths_B.tolist() == [3, 0]
    assert draft.tokens_BK[0].tolist() == greedy(model, list(range(24)), 3)


def test_probabilities_are_those_the_tokens_were_drawn_from(model: CausalLM) -> None:
    text, num_samples = [3, 1, 4, 1, 5], 400
    proposer = make_proposer(model, max_num_seqs=num_samples, max_model_len=16, probabilistic=True)
    draft = proposer.propose(confirm(dict.fromkeys(range(num_samples), text), temperature=2.0), 2)
    assert draft.probs_BKV is not None
    law = (next_logits(model, text) / 2).softmax(0).float()
    torch.testing.assert_close(draft.probs_BKV[:, 0], law.expand(num_samples, -1))
    likely = int(law.argmax())
    share = (draft.tokens_BK[:, 0] == likely).float().mean().item()
    assert share == pytest.approx(law[likely].item(), abs=4 * (0.25 / num_samples) ** 0.5)
    second = (next_logits(model, [*text, int(draft.tokens_BK[0, 0])]) / 2).softmax(0).float()
    torch.testing.assert_close(draft.probs_BKV[0, 1], second)


def test_a_greedy_request_gets_certain_drafts_beside_sampled_ones(model: CausalLM) -> None:
    proposer = make_proposer(model, probabilistic=True)
    draft = proposer.propose(confirm({0: [9, 8, 7]}), 2)
    assert draft.probs_BKV is not None
    assert draft.tokens_BK[0].tolist() == greedy(model, [9, 8, 7], 2)
    assert draft.probs_BKV[0].gather(1, draft.tokens_BK[0].unsqueeze(1)).flatten().tolist() == [1.0, 1.0]
