"""Sampling parameters act as in real vLLM, and a draft token counts exactly as an output token does."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.core import InvalidSetup
from draftwise.engine.sampling import logits as logits_of
from draftwise.engine.sampling.bad_words import encode_bad_words
from draftwise.engine.sampling.logits import Penalties, SamplingRow, TokenCounts, check_params
from draftwise.engine.sampling.params import SamplingParams
from draftwise.engine.sampling.tempering import Tempering, temper_and_truncate

GOLDEN = json.loads((Path(__file__).parent / "vllm_golden.json").read_text())
DEVICE = torch.device(os.environ.get("DRAFTWISE_TEST_DEVICE", "cpu"))
VOCAB = 12
NO_DRAFT = torch.empty(1, 0, dtype=torch.long)


@dataclass(frozen=True, kw_only=True)
class Row(SamplingRow):
    """With what penalties count beside the output."""

    prompt_ids: Sequence[int] = ()


def count(rows: Sequence[Row], logits: torch.Tensor) -> Penalties | None:
    """The rows' penalties, whose tokens are counted in slots of another order, of which some are used again."""
    vocab_size, slots = logits.shape[-1], range(len(rows), 0, -1)
    counts = TokenCounts(len(rows) + 1, vocab_size, logits.device)
    counts.enter([1], [range(vocab_size)], [[0, 0]])
    for slot, row in zip(slots, rows, strict=True):
        if row.params.penalizes:
            counts.enter([slot], [row.prompt_ids], [row.output_ids])
    return Penalties.of([row.params for row in rows], slots, counts, logits.device)


def adjust(logits: torch.Tensor, rows: Sequence[Row], draft: torch.Tensor) -> torch.Tensor:
    return logits_of.adjust(logits, rows, draft, count(rows, logits))


def temper(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    return temper_and_truncate(logits, Tempering.of([row.params for row in rows], logits.device))


def process_logits(logits: torch.Tensor, rows: Sequence[Row], draft: torch.Tensor) -> torch.Tensor:
    """All that happens to logits before a token is drawn from them."""
    return temper(adjust(logits, rows, draft), rows)


def row_of(case: dict[str, Any], num_drafted: int = 0) -> Row:
    """The case's row, its last `num_drafted` output tokens left to the draft."""
    given = dict(case["params"])
    bad_words = given.pop("bad_words", [])
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    return Row(
        params=SamplingParams(max_tokens=64, stop_token_ids=case["stop_token_ids"], **given),
        prompt_ids=case["prompt"],
        output_ids=case["output"][: len(case["output"]) - num_drafted],
        end_ids=case["end_ids"],
        bad_words=bad_words,
    )


@pytest.mark.parametrize("num_drafted", [0, 1, 2])
def test_one_batch_equals_vllm_at_every_row(num_drafted: int) -> None:
    """Row s with s drafted tokens is vLLM's row with those tokens output, whatever the other rows hold."""
    rows = [row_of(case, num_drafted) for case in GOLDEN]
    logits = torch.randn(len(GOLDEN), 3, VOCAB)
    logits[:, num_drafted] = torch.tensor([case["logits"] for case in GOLDEN])
    drafts = [case["output"][len(case["output"]) - num_drafted :] for case in GOLDEN]
    draft = torch.tensor([[*tokens, 0, 0][:2] for tokens in drafts])
    adjusted = adjust(logits, rows, draft)
    final = temper(adjusted, rows)
    torch.testing.assert_close(
        adjusted[:, num_drafted], torch.tensor([case["adjusted"] for case in GOLDEN]), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        final[:, num_drafted], torch.tensor([case["final"] for case in GOLDEN]), atol=1e-5, rtol=1e-5
    )


tokens = st.integers(0, VOCAB - 1)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, -1, 1, 3, 50]),
    top_p=st.sampled_from([1.0, 0.9, 0.4]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.6]),
    logit_bias=st.none() | st.dictionaries(tokens, st.floats(-3, 3), max_size=3),
    stop_token_ids=st.lists(tokens, max_size=2),
    min_tokens=st.integers(0, 8),
    max_tokens=st.none(),
)
row = st.builds(
    Row,
    params=params,
    prompt_ids=st.lists(tokens, max_size=6),
    output_ids=st.lists(tokens, max_size=6),
    end_ids=st.frozensets(tokens, max_size=2),
    bad_words=st.lists(st.lists(tokens, min_size=1, max_size=4), max_size=4),
)
batch = st.integers(0, 3).flatmap(
    lambda k: st.lists(st.tuples(row, st.lists(tokens, min_size=k, max_size=k)), min_size=1, max_size=4)
)


@settings(max_examples=150, deadline=None)
@given(batch, st.integers(0, 2**31))
def test_a_row_is_what_it_would_be_alone_and_without_a_draft(batch: list[tuple[Row, list[int]]], seed: int) -> None:
    k = len(batch[0][1])
    raw = torch.randn(len(batch), k + 1, VOCAB, generator=torch.Generator().manual_seed(seed))
    before = raw.clone()
    together = process_logits(
        raw, [row for row, _ in batch], torch.tensor([d for _, d in batch]).view(len(batch), k).long()
    )
    assert torch.equal(raw, before), "the argument was changed"
    for b, (row, draft) in enumerate(batch):
        for s in range(k + 1):
            grown = Row(
                params=row.params,
                prompt_ids=row.prompt_ids,
                output_ids=[*row.output_ids, *draft[:s]],
                end_ids=row.end_ids,
                bad_words=row.bad_words,
            )
            alone = process_logits(raw[b : b + 1, s : s + 1], [grown], NO_DRAFT)
            assert torch.equal(together[b, s], alone[0, 0])


def one(params: SamplingParams, values: list[float], **row: Any) -> list[float]:
    """Process a single row of logits."""
    return process_logits(torch.tensor([[values]]), [Row(params=params, **row)], NO_DRAFT)[0, 0].tolist()


def test_nothing_asked_for_costs_nothing() -> None:
    raw = torch.randn(3, 2, VOCAB).bfloat16()
    draft = torch.zeros(3, 1, dtype=torch.long)
    greedy = Row(params=SamplingParams(temperature=0, top_p=0.1, top_k=2, min_p=0.5))
    assert process_logits(raw, [greedy] * 3, draft) is raw
    plain = torch.randn(3, 2, VOCAB)
    assert torch.equal(process_logits(plain, [Row(params=SamplingParams())] * 3, draft), plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_half_precision_is_widened_and_double_kept(dtype: torch.dtype) -> None:
    rows = [Row(params=SamplingParams(temperature=0.7, presence_penalty=1), output_ids=[1])]
    got = process_logits(torch.randn(1, 1, VOCAB).to(dtype), rows, NO_DRAFT)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_truncation_keeps_ties_of_the_last_token() -> None:
    assert one(SamplingParams(top_k=2), [1.0, 3.0, 1.0, 0.0]) == [1.0, 3.0, 1.0, -torch.inf]
    assert one(SamplingParams(top_p=0.6), [0.0, 0.0, 0.0]) == [0.0, 0.0, 0.0]


def test_top_p_of_one_keeps_the_whole_tail_beside_a_truncated_row() -> None:
    values = [30.0, *([0.0] * 50)]
    rows = [Row(params=SamplingParams(top_k=51)), Row(params=SamplingParams(top_p=0.5))]
    got = process_logits(torch.tensor([[values], [values]]), rows, torch.empty(2, 0, dtype=torch.long))
    assert got[0].isfinite().all()
    assert got[1].isfinite().sum() == 1


def test_min_p_of_one_and_top_k_beyond_the_vocabulary() -> None:
    assert one(SamplingParams(min_p=1.0), [1.0, 2.0, 2.0]) == [-torch.inf, 2.0, 2.0]
    assert one(SamplingParams(top_k=99), [1.0, 2.0]) == [1.0, 2.0]


def test_tiny_temperatures_stay_finite() -> None:
    assert all(abs(x) < 1e6 for x in one(SamplingParams(temperature=1e-30), [10.0, -10.0]))


def test_emitted_tokens_count_from_the_next_step_on() -> None:
    penalised = SamplingParams(temperature=0, frequency_penalty=0.5, repetition_penalty=2)
    rows = [Row(params=SamplingParams(temperature=0)), Row(params=penalised, prompt_ids=[3], output_ids=[7])]
    logits, draft = torch.ones(2, 1, VOCAB), torch.empty(2, 0, dtype=torch.long)
    penalties = count(rows, logits)
    assert penalties is not None
    penalties.count(torch.tensor([[5, 5, 5], [7, 1, -1]]))
    got = logits_of.adjust(logits, rows, draft, penalties)[:, 0].tolist()
    assert got == [[1.0] * VOCAB, [{3: 0.5, 7: -0.5, 1: 0.0}.get(token, 1.0) for token in range(VOCAB)]]


def test_min_tokens_ends_inside_a_draft() -> None:
    params = SamplingParams(temperature=0, min_tokens=3, stop_token_ids=[1], ignore_eos=True)
    rows = [Row(params=params, output_ids=[5], end_ids={0})]
    got = process_logits(torch.zeros(1, 4, 3), rows, torch.zeros(1, 3, dtype=torch.long))
    assert got[0].isinf().tolist() == [[True, True, False]] * 2 + [[False] * 3] * 2


def test_bad_word_completed_by_draft_tokens() -> None:
    row = Row(params=SamplingParams(temperature=0), output_ids=[7, 4], bad_words=[(4, 5, 6)])
    got = process_logits(torch.zeros(1, 3, VOCAB), [row], torch.tensor([[5, 9]]))
    assert got.isinf().nonzero().tolist() == [[0, 1, 6]]


def test_bad_words_are_encoded_as_vllm_does() -> None:
    vocabulary = {"a": [1], " a": [2], "bc": [3, 4], " bc": [5, 6], "d": [7], " d": [8, 7], "e": [9], " e": [9, 1]}
    got = encode_bad_words([" a", "bc", "d", "e"], vocabulary.__getitem__)
    assert got == ((1,), (2,), (3, 4), (5, 6), (7,), (9,))
    with pytest.raises(InvalidSetup, match="encodes to no token"):
        encode_bad_words(["x"], lambda _: [])


def test_many_unknown_ids_make_a_short_message() -> None:
    (finding,) = check_params(SamplingParams(stop_token_ids=[*range(VOCAB, VOCAB + 10_000), 10**5000]), VOCAB)
    assert "and 9993 more are not token ids" in finding.message
    assert len(finding.message) < 200


def test_unknown_ids_are_found_at_once() -> None:
    params = SamplingParams(logit_bias={5: 1.0, 12: 1.0, -1: 2.0}, stop_token_ids=[11, 40])
    findings = check_params(params, VOCAB)
    assert [(f.where, f.code) for f in findings] == [
        ("logit_bias", "unknown-token"),
        ("stop_token_ids", "unknown-token"),
    ]
    assert "12, -1" in findings[0].message
    assert check_params(SamplingParams(logit_bias={11: 1.0}), VOCAB) == []


def test_what_needs_no_adjusting_is_not_adjusted() -> None:
    raw, draft = torch.randn(1, 3, VOCAB), torch.zeros(1, 2, dtype=torch.long)
    for case in GOLDEN:
        row = row_of(case)
        if not row.params.needs_adjusting and not row.bad_words:
            assert adjust(raw, [row], draft) is raw
    needing = (
        {"bad_words": ["x"]},
        {"min_tokens": 2},
        {"logit_bias": {3: 1.0}},
        {"repetition_penalty": 1.2},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
    )
    assert all(SamplingParams(**given).needs_adjusting for given in needing)
    assert not SamplingParams(temperature=0.3, top_k=4, top_p=0.5, min_p=0.1, logprobs=2, seed=3).needs_adjusting


@pytest.mark.skipif(DEVICE.type != "cuda", reason="a CPU cannot be waited for")
def test_adjusting_does_not_wait_for_the_device() -> None:
    rows = [row_of(case) for case in GOLDEN]
    logits, draft = torch.randn(len(rows), 3, VOCAB), torch.zeros(len(rows), 2, dtype=torch.long)
    expected, on_device = process_logits(logits, rows, draft), (logits.to(DEVICE), draft.to(DEVICE))
    process_logits(on_device[0], rows, on_device[1])  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = process_logits(on_device[0], rows, on_device[1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(got.cpu(), expected)
