"""What a proposer is notified of: every confirmed token, once and in order, however far the host is behind."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.every_method import make_config

from draftwise import LLM, SamplingParams
from draftwise.engine.attention.pass_rows import AttentionPlan
from draftwise.engine.proposers.proposer import Confirmed
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.step.confirm import DeviceConfirmations, _take

PROMPTS = [[7, 8, 9] * 4, [5] * 30, [6]]
SETTINGS = {"dtype": "float64", "device": "cpu", "max_num_batched_tokens": 16, "max_num_seqs": 2, "block_size": 4}


def notified(target: Path, method: str, lag: int) -> list[list[int]]:
    """Answer some prompts; return what the proposer was notified of, sequence by sequence."""
    spec: dict[str, Any] = {"method": method, "num_speculative_tokens": 2}
    spec |= {"prompt_lookup_min": 1, "prompt_lookup_max": 2} if method == "ngram" else {"model": str(target)}
    llm = LLM(str(target), speculative_config=spec, lag=lag, **SETTINGS)
    proposer, running, ended = llm.engine.proposer, dict[int, list[int]](), list[list[int]]()
    propose, release = proposer.propose, proposer.release

    def recorded(new: Confirmed, k: int) -> Draft:
        rows = new.spans.unpack(new.tokens_N)
        columns = (new.slots_B, new.spans.starts_B, new.spans.lengths_B)
        for b, (slot, start, length) in enumerate(zip(*(each.tolist() for each in columns), strict=True)):
            if slot < SETTINGS["max_num_seqs"]:  # else it is padding
                known = running.setdefault(slot, [])
                assert start == len(known), "each token once, in order"
                known += rows[b, :length].tolist()
        return propose(new, k)

    def forget(slot: int) -> None:
        ended.append(running.pop(slot, []))
        release(slot)

    proposer.propose, proposer.release = recorded, forget  # type: ignore[method-assign]
    params = SamplingParams(temperature=0, max_tokens=11, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params)
    texts = [[*output.prompt_token_ids, *output.outputs[0].token_ids] for output in outputs]
    ended += running.values()
    for known in ended:
        assert any(known[: len(text)] == text[: len(known)] for text in texts), "only what became final"
    return ended


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_every_confirmed_token_comes_once_and_in_order(method: str, lag: int, tiny_target: Path) -> None:
    lengths = sorted(map(len, notified(tiny_target, method, lag)))
    assert len(lengths) == len(PROMPTS)
    least = sorted(len(ids) + 11 - 3 for ids in PROMPTS)  # the last step's tokens may be nobody's any more
    assert all(length >= bound for length, bound in zip(lengths, least, strict=True))


def test_a_prompt_that_is_never_announced_is_noticed(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceConfirmations, "notify", lambda _: None)
    with pytest.raises(AssertionError, match="each token once"):
        notified(tiny_target, "draft_model", 0)


@pytest.mark.parametrize("method", ["draft_model", "pard", "eagle", "eagle3", "eagle3 draft vocabulary", "mtp"])
def test_of_prompts_a_drafter_only_stores_keys_and_values(
    method: str, tiny_target: Path, tiny_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts are those of a drafter that computes everything."""
    spec = make_config(method, tiny_target, tiny_draft, tmp_path / "drafter")
    prompts = [{"prompt_token_ids": [(3 * i * n + i) % 50 for i in range(70 + 9 * n)]} for n in range(3)]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    stores: list[bool] = []

    def answer() -> tuple[list[Any], list[Any]]:
        llm = LLM(str(tiny_target), speculative_config=spec, dtype="float64", device="cpu", max_model_len=160)
        propose, drafts = llm.engine.proposer.propose, list[Any]()

        def recorded(new: Confirmed, k: int) -> Draft:
            draft = propose(new, k)
            drafts.append((draft.lengths_B.tolist(), draft.tokens_BK.tolist()))
            return draft

        llm.engine.proposer.propose = recorded  # type: ignore[method-assign]
        return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)], drafts

    real = AttentionPlan.wanting_none

    def noted(plan: AttentionPlan) -> AttentionPlan:
        found = real(plan)
        stores.append(found.only_stores)
        return found

    monkeypatch.setattr(AttentionPlan, "wanting_none", noted)
    found = answer()
    assert any(stores)
    monkeypatch.setattr(AttentionPlan, "wanting_none", lambda plan: plan)
    assert answer() == found


def test_states_in_one_piece_are_not_copied() -> None:
    features = torch.randn(9, 2)
    assert _take(features, [3, 4, 5]).data_ptr() == features[3].data_ptr()
    for rows in ([3, 4, 5], [8], [0, 2, 3]):
        assert torch.equal(_take(features, rows), features[rows])
