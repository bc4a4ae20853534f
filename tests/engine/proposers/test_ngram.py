import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.lookup_cases import Confirming, drafts, look_up, repetitive_texts

from draftwise.engine.proposers.ngram import NgramProposer


def propose_all(proposer: NgramProposer, text: list[int], num_prompt: int, sizes: list[int], k: int) -> list[list[int]]:
    """Feed a text in pieces and return [tokens so far, draft] after each."""
    out, at, confirming = [], 0, Confirming()
    for size in [*sizes, len(text)]:
        piece = text[at : at + size]
        if piece:
            at += len(piece)
            out.append([at, drafts(proposer.propose(confirming.confirm({0: piece}, {0: num_prompt}), k))[0]])
    return out


@settings(max_examples=300, deadline=None)
@given(
    text=repetitive_texts(),
    sizes=st.lists(st.integers(1, 4), max_size=30),
    shortest=st.integers(1, 4),
    extra=st.integers(0, 4),
    k=st.integers(0, 6),
    max_model_len=st.integers(1, 70),
)
def test_drafts_are_those_of_the_definition(text, sizes, shortest, extra, k, max_model_len):
    longest = shortest + extra
    proposer = NgramProposer(
        prompt_lookup_min=shortest, prompt_lookup_max=longest, max_num_seqs=1, max_model_len=max_model_len
    )
    for size, draft in propose_all(proposer, text, 0, sizes, k):
        assert draft == look_up(text[:size], shortest, longest, k, max_model_len)


@settings(max_examples=300, deadline=None)
@given(text=repetitive_texts(), shortest=st.integers(1, 4), extra=st.integers(0, 3), max_model_len=st.integers(1, 70))
def test_drafts_are_those_of_vllm(text, shortest, extra, max_model_len):
    vllm = pytest.importorskip("vllm.v1.spec_decode.ngram_proposer", reason="the oracle needs vLLM 0.32")
    import numpy as np

    theirs = vllm._find_longest_matched_ngram_and_propose_tokens(
        origin_tokens=np.array(text, np.int32),
        min_ngram=shortest,
        max_ngram=shortest + extra,
        max_model_len=max_model_len,
        k=5,
    )
    ours = NgramProposer(
        prompt_lookup_min=shortest, prompt_lookup_max=shortest + extra, max_num_seqs=1, max_model_len=max_model_len
    )
    assert propose_all(ours, text, 0, [], 5)[-1][1] == theirs.tolist()


def test_the_earliest_occurrence_wins_not_the_latest():
    proposer = NgramProposer(prompt_lookup_min=2, prompt_lookup_max=3, max_num_seqs=1, max_model_len=100)
    text = [1, 2, 7, 7, 1, 2, 8, 8, 1, 2]
    assert propose_all(proposer, text, 0, [], 3)[-1][1] == [7, 7, 1]


def test_a_suffix_shorter_than_the_range_drafts_nothing():
    proposer = NgramProposer(prompt_lookup_min=5, prompt_lookup_max=5, max_num_seqs=1, max_model_len=100)
    assert propose_all(proposer, [1, 2, 3, 4, 9, 1, 2, 3, 4], 0, [], 3)[-1][1] == []
    proposer.release(0)
    assert propose_all(proposer, [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5], 0, [], 3)[-1][1] == [9, 1, 2]


def test_an_unfinished_prompt_gets_no_draft():
    proposer = NgramProposer(prompt_lookup_min=1, prompt_lookup_max=1, max_num_seqs=1, max_model_len=100)
    assert propose_all(proposer, [5, 6, 5, 6, 5], 4, [2, 2, 1], 2) == [[2, []], [4, []], [5, [6, 5]]]


def test_release_starts_the_slot_afresh_and_leaves_the_others():
    proposer, confirming = (
        NgramProposer(prompt_lookup_min=1, prompt_lookup_max=1, max_num_seqs=2, max_model_len=100),
        Confirming(),
    )
    proposer.propose(confirming.confirm({0: [5, 6], 1: [5, 7]}, {0: 1, 1: 1}), 1)
    proposer.release(0)
    confirming.release(0)
    assert drafts(proposer.propose(confirming.confirm({0: [3, 5], 1: [5]}, {0: 1, 1: 1}), 1)) == [[], [7]]


def test_no_more_is_drafted_than_is_wanted():
    proposer, confirming = (
        NgramProposer(prompt_lookup_min=1, prompt_lookup_max=1, max_num_seqs=3, max_model_len=100),
        Confirming(),
    )
    rows = {slot: [5, 6, 7, 5] for slot in range(3)}
    new = confirming.confirm(rows, dict.fromkeys(range(3), 1), {0: 0, 1: 2, 2: 9})
    assert drafts(proposer.propose(new, 3)) == [[], [6, 7], [6, 7, 5]]
