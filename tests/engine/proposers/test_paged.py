"""Drafting token by token gives what the drafter would say by itself, however its work is batched and interrupted."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.confirming import confirm, plan

from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models import CausalLM, load_model
from draftwise.engine.models.draft_head import Mask
from draftwise.engine.proposers.draft_model import DraftModel
from draftwise.engine.proposers.paged import ChainProposer
from draftwise.engine.proposers.proposer import Confirmed

VOCAB = 200
BLOCK = 4
NUM_PAGES = 32
"""Of each slot: its pages are scattered over the pool, as they are in a real one."""


@pytest.fixture(scope="module")
def model(tiny_draft: Path) -> CausalLM:
    return load_model(tiny_draft, dtype="float64", device="cpu")


class Confirming:
    """Confirms tokens slot by slot, as the engine does, and remembers them."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}

    def confirm(
        self,
        new_tokens: dict[int, list[int]],
        k: int,
        *,
        temperature: float = 0.0,
        width: int | None = None,
        **limits: int,
    ) -> Confirmed:
        starts = [len(self.tokens.get(slot, [])) for slot in new_tokens]
        for slot, row in new_tokens.items():
            self.tokens[slot] = self.tokens.get(slot, []) + row
        return confirm(
            list(new_tokens.values()),
            starts=starts,
            limits=[limits.get(f"slot{slot}", k) for slot in new_tokens],
            slots=list(new_tokens),
            pages=[range(slot, slot + 400 * NUM_PAGES, 400) for slot in new_tokens],
            scratch=400 * NUM_PAGES,
            temperature=temperature,
            seeds=[slot + 7 for slot in new_tokens],
            width=width,
        )


def next_logits(model: CausalLM, tokens: list[int]) -> torch.Tensor:
    """Return the logits after `tokens`, computed in one pass from nothing."""
    pages = list(range(-(-len(tokens) // 16)))
    kv = PagedKV(model.shape, num_pages=len(pages), block_size=16, dtype=model.dtype, device=model.device)
    rows = plan([0], [len(tokens)], [pages], block_size=16, scratch=len(pages))
    with torch.inference_mode():
        hidden, _ = model(torch.tensor(tokens), rows.positions_N, kv, rows)
        return model.logits(hidden[-1:])[0]


def greedy(model: CausalLM, tokens: list[int], k: int) -> list[int]:
    tokens = list(tokens)
    for _ in range(k):
        tokens.append(int(next_logits(model, tokens).argmax()))
    return tokens[len(tokens) - k :]


def make_proposer(model: CausalLM, *, max_model_len: int = 96, **settings: bool) -> ChainProposer:
    proposer = ChainProposer(DraftModel(model), max_model_len=max_model_len, **settings)
    proposer.allocate(num_pages=400 * NUM_PAGES, block_size=BLOCK)
    return proposer


tokens = st.lists(st.integers(0, VOCAB), min_size=1, max_size=20)
steps = st.lists(
    st.tuples(st.dictionaries(st.integers(0, 2), tokens, min_size=1), st.integers(0, 3), st.integers(0, 3)), max_size=5
)


@settings(max_examples=25, deadline=None)
@given(steps=steps, restarted=st.integers(0, 2))
def test_drafts_are_what_the_model_says_from_scratch(
    model: CausalLM, steps: list[tuple[dict[int, list[int]], int, int]], restarted: int
) -> None:
    proposer, confirming = make_proposer(model), Confirming()
    for i, (new_tokens, k, limit) in enumerate(steps):
        if i == 2:
            proposer.release(restarted)
            confirming.tokens.pop(restarted, None)
        draft = proposer.propose(confirming.confirm(new_tokens, k, slot1=limit), k)
        for b, slot in enumerate(new_tokens):
            known, wanted = confirming.tokens[slot], min(k, limit) if slot == 1 else k
            expected = greedy(model, known, min(wanted, max(0, 97 - len(known))))
            assert draft.tokens_BK[b, : draft.lengths_B[b]].tolist() == expected


def test_the_context_limit_shortens_drafts(model: CausalLM) -> None:
    proposer, confirming = make_proposer(model, max_model_len=12), Confirming()
    assert proposer.propose(confirming.confirm({0: [5] * 10}, 4), 4).lengths_B.tolist() == [3]
    assert proposer.propose(confirming.confirm({0: [5] * 2}, 4), 4).lengths_B.tolist() == [1]
    assert proposer.propose(confirming.confirm({0: [5], 1: [6]}, 4), 4).lengths_B.tolist() == [0, 4]


def test_probabilities_are_those_the_tokens_were_drawn_from(model: CausalLM) -> None:
    text, num_samples = [3, 1, 4, 1, 5], 400
    proposer = make_proposer(model, max_model_len=16, probabilistic=True)
    draft = proposer.propose(Confirming().confirm(dict.fromkeys(range(num_samples), text), 2, temperature=2.0), 2)
    assert draft.probs_BKV is not None
    distribution = (next_logits(model, text) / 2).softmax(0).float()
    torch.testing.assert_close(draft.probs_BKV[:, 0], distribution.expand(num_samples, -1))
    likely = int(distribution.argmax())
    share = (draft.tokens_BK[:, 0] == likely).float().mean().item()
    assert share == pytest.approx(distribution[likely].item(), abs=4 * (0.25 / num_samples) ** 0.5)
    second = (next_logits(model, [*text, int(draft.tokens_BK[0, 0])]) / 2).softmax(0).float()
    torch.testing.assert_close(draft.probs_BKV[0, 1], second)


def test_a_greedy_request_gets_certain_drafts_beside_sampled_ones(model: CausalLM) -> None:
    proposer = make_proposer(model, probabilistic=True)
    draft = proposer.propose(Confirming().confirm({0: [9, 8, 7]}, 2), 2)
    assert draft.probs_BKV is not None
    assert draft.tokens_BK[0].tolist() == greedy(model, [9, 8, 7], 2)
    assert draft.probs_BKV[0].gather(1, draft.tokens_BK[0].unsqueeze(1)).flatten().tolist() == [1.0, 1.0]


def test_in_parallel_each_draft_token_but_the_first_comes_from_a_mask(model: CausalLM) -> None:
    drafter = DraftModel(model)
    drafter.mask = Mask(token_id=77)
    proposer = ChainProposer(drafter, max_model_len=96, parallel=True)
    proposer.allocate(num_pages=400 * NUM_PAGES, block_size=BLOCK)
    confirming = Confirming()
    for new_tokens in ({0: [1, 2, 3], 1: [9, 8]}, {1: [4]}, {0: [5, 6], 1: [7, 7]}):
        draft = proposer.propose(confirming.confirm(new_tokens, 3, slot1=2), 3)
        for b, slot in enumerate(new_tokens):
            known = confirming.tokens[slot]
            expected = [int(next_logits(model, known + [77] * masks).argmax()) for masks in range(2 if slot else 3)]
            assert draft.tokens_BK[b, : draft.lengths_B[b]].tolist() == expected
