"""A replay equals serving: the bundled model writes answers with every method, and replaying them gives its steps.

Serving is watched with the engine's own drafts and decisions; forced decoding must give the same steps and the same
draft tokens, and the torch-free and dense replays, walked over, the same lengths at every k.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.combinations import EVERY_CASE, taking_turns

from draftwise import LLM, SamplingParams
from draftwise.core import SpecConfig
from draftwise.engine.replayers import DenseReplayer, ForcedReplayer, ForcedStep, force
from draftwise.engine.step.launched import Outcome
from draftwise.replaying import Anchors, walk
from draftwise.replaying.replaying import to_anchors
from draftwise.replaying.served_drafts import NgramReplayer, SuffixReplayer
from draftwise.replaying.transcripts import Replayer, Transcript
from draftwise.workloads import load_workloads

BUNDLE = Path(__file__).parents[3] / "bundle"
PROMPTS, ANSWER = 4, 14
TEMPERATURES = (0.0, 1.0)
HEADS = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "dflash", "p_eagle")
KMAX = {"medusa": 3, "mlp_speculator": 3, "mtp": 3}


def make_spec(name: str, k: int | None = None, **options: Any) -> dict[str, Any]:
    """Return the config of a bundled head, or of a method of text."""
    k = k or KMAX.get(name, 5)
    if name not in HEADS:
        return {"method": name, "num_speculative_tokens": k, **options}
    parallel = {"method": "eagle3", "parallel_drafting": True} if name == "p_eagle" else {"method": name}
    return {**parallel, "model": str(BUNDLE / name), "num_speculative_tokens": k} | options


@cache
def make_llm(name: str, k: int | None = None, max_num_seqs: int = PROMPTS, **options: Any) -> LLM:
    spec = make_spec(name, k, **options)
    return LLM(
        str(BUNDLE / "target"),
        speculative_config=spec,
        dtype="float32",
        device="cpu",
        max_num_seqs=max_num_seqs,
        max_model_len=768,
        enable_prefix_caching=False,
    )


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Two prompts to continue and two to repeat, in tokens."""
    tokenizer = make_llm("ngram").get_tokenizer()
    (code,), (rewrite,) = load_workloads("code#n=2"), load_workloads("rewrite#n=2")
    texts = [
        prompt.text or tokenizer.apply_chat_template(prompt.messages) for prompt in (*code.prompts, *rewrite.prompts)
    ]
    return tuple(tuple(tokenizer.encode(text, False)[-64:]) for text in texts)


@cache
def served(name: str, temperature: float) -> tuple[list[Transcript], list[list[ForcedStep]]]:
    """Return what the engine of a method answers, and the steps that it took."""
    return serve(make_llm(name), temperature)


def serve(llm: LLM, temperature: float) -> tuple[list[Transcript], list[list[ForcedStep]]]:
    """Return what an engine answers, and the steps that it took."""
    steps: dict[str, list[ForcedStep]] = {}

    def note(outcome: Outcome) -> None:
        found = steps.setdefault(outcome.sequence.request.request_id, [])
        if token := outcome.sequence.num_output:
            found.append(ForcedStep(token=token, drafted=tuple(outcome.drafted), accepted=len(outcome.emitted) - 1))

    llm.engine.on_outcome = note
    params = SamplingParams(temperature=temperature, max_tokens=ANSWER, seed=3)
    outputs = llm.generate([list(ids) for ids in prompts()], params)
    llm.engine.on_outcome = None
    transcripts = [
        Transcript(
            id=output.request_id,
            prompt_ids=ids,
            answer_ids=tuple(output.outputs[0].token_ids),
            limit=ANSWER,
            temperature=temperature,
        )
        for output, ids in zip(outputs, prompts(), strict=True)
    ]
    return transcripts, [steps[output.request_id] for output in outputs]


def replay(replayer: Replayer, requests: Sequence[Transcript]) -> Anchors:
    rows = {each.id: each.by_k for each in replayer.replay(requests)}
    (anchors,) = to_anchors(SpecConfig(method="any", num_speculative_tokens=9), requests, rows)
    return anchors


def shape(requests: Sequence[Transcript], steps: Sequence[Sequence[ForcedStep]]) -> list[tuple[int, int, int, int]]:
    """Return (request, token, drafted, accepted inside the answer) of every step."""
    return [
        (place, step.token, len(step.drafted), min(step.accepted, len(request.answer_ids) - step.token))
        for place, (request, taken) in enumerate(zip(requests, steps, strict=True))
        for step in taken
    ]


def walked(anchors: Anchors, k: int) -> list[tuple[int, int, int, int]]:
    found = walk(anchors, k)
    accepted_S = found.survive_SK.sum(1).astype(int)
    columns = (found.request_S, found.token_S, found.drafted_S, accepted_S)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(("k", "temperature"), taking_turns([1, 3, 5, 8], TEMPERATURES))
def test_ngram_from_text_is_what_was_served(k: int, temperature: float) -> None:
    options = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
    requests, steps = serve(make_llm("ngram", k, **options), temperature)
    anchors = replay(NgramReplayer(k=8, shortest=2, longest=4), requests)
    assert walked(anchors, k) == shape(requests, steps)
    assert sum(accepted for *_, accepted in shape(requests, steps)) > 0


@pytest.mark.parametrize(
    ("asked", "temperature"), taking_turns([(1, 1), (3, 1), (5, 1), (8, 1), (5, PROMPTS)], TEMPERATURES)
)
def test_suffix_from_text_is_what_was_served(asked: tuple[int, int], temperature: float) -> None:
    k, in_flight = asked
    # An engine of its own: it remembers what it answered.
    llm = make_llm.__wrapped__("suffix", k, in_flight)
    requests, steps = serve(llm, temperature)
    anchors = replay(SuffixReplayer(ks=(k,), options={}, in_flight=in_flight), requests)
    assert walked(anchors, k) == shape(requests, steps)
    assert sum(accepted for *_, accepted in shape(requests, steps)) > 0


OF_HEADS = taking_turns(HEADS, TEMPERATURES)
"""Heads, greedy or sampled: the tests of one share its engine."""


@pytest.mark.parametrize(("name", "temperature"), [*OF_HEADS, *taking_turns(["ngram", "ngram_gpu"], TEMPERATURES)])
def test_forced_decoding_is_what_was_served(name: str, temperature: float) -> None:
    llm = make_llm(name)
    k = KMAX.get(name, 5)
    requests, steps = served(name, temperature)
    assert force(llm.engine, requests, k) == steps
    if EVERY_CASE or name in ("eagle3", "ngram"):  # a replayer is what it forces, whatever drafts
        assert walked(replay(ForcedReplayer(llm.engine, (k,)), requests), k) == shape(requests, steps)
    assert sum(step.accepted for taken in steps for step in taken) > 0


def test_forced_decoding_of_suffix_is_what_was_served() -> None:
    llm = make_llm.__wrapped__("suffix")
    requests, steps = serve(llm, 0.0)
    assert force(make_llm.__wrapped__("suffix").engine, requests, 5) == steps


@pytest.mark.parametrize(("name", "temperature"), OF_HEADS)
def test_dense_replay_gives_the_steps_of_forced_decoding_at_every_k(name: str, temperature: float) -> None:
    llm = make_llm(name)
    requests, steps = served(name, temperature)
    ks = tuple(range(1, KMAX.get(name, 5) + 1))
    anchors = replay(DenseReplayer(llm.engine, ks), requests)
    assert anchors.ks == ks
    for drafts in anchors.drafts.values():
        assert drafts.confidence_NK is not None
        inside_NK = np.arange(drafts.confidence_NK.shape[1]) < drafts.drafted_N[:, None]
        assert ((drafts.confidence_NK > 0) == inside_NK).all()
    assert walked(anchors, ks[-1]) == shape(requests, steps)
    if temperature == 0:
        assert walked(anchors, 1) == shape(requests, force(llm.engine, requests, 1))


def test_dense_replay_does_not_depend_on_batches_and_pieces() -> None:
    llm = make_llm("eagle3")
    requests, _ = serve(llm, 0.0)
    small = LLM(
        str(BUNDLE / "target"),
        speculative_config=make_spec("eagle3"),
        dtype="float32",
        device="cpu",
        max_num_seqs=2,
        max_num_batched_tokens=37,
        max_model_len=384,
        num_gpu_blocks_override=30,
    )
    whole, parts = (replay(DenseReplayer(engine, (5,)), requests).drafts[5] for engine in (llm.engine, small.engine))
    assert np.array_equal(whole.accepted_N, parts.accepted_N)  # type: ignore[arg-type]
    assert np.array_equal(whole.drafted_N, parts.drafted_N)


def test_a_drafter_that_is_the_target_always_stands() -> None:
    """Of p and q alike the chance is min(1, q / p) = 1, though a draw would often name another token."""
    llm = make_llm("draft_model", 3, draft_sample_method="probabilistic", model=str(BUNDLE / "target"))
    requests, _ = serve(make_llm("ngram"), 1.0)
    chances = replay(DenseReplayer(llm.engine, (3,)), requests).drafts[3].chances_NK
    assert chances is not None
    for begin, request in zip(replay_offsets(requests), requests, strict=True):
        for token in range(1, len(request.answer_ids)):
            known = min(3, len(request.answer_ids) - token, ANSWER - token - 1)
            assert chances[begin + token, :known] == pytest.approx(1, abs=1e-3)
            assert (chances[begin + token, known:] == 0).all()


def test_chances_of_sampled_drafts_are_those_of_both_models_log_probabilities() -> None:
    llm = make_llm("draft_model", 3, draft_sample_method="probabilistic")
    requests, _ = serve(make_llm("ngram"), 1.0)
    chances = replay(DenseReplayer(llm.engine, (3,)), requests).drafts[3].chances_NK
    assert chances is not None
    q, p = (score(model, requests) for model in ("draft_model", "target"))
    for place, (begin, request) in enumerate(zip(replay_offsets(requests), requests, strict=True)):
        ratio = np.minimum(1, np.exp(q[place] - p[place]))
        for token in range(1, len(request.answer_ids) - 3):
            assert chances[begin + token] == pytest.approx(ratio[token : token + 3], abs=1e-3)


def test_a_drafter_that_is_the_target_is_as_sure_as_the_target() -> None:
    llm = make_llm("draft_model", 3, model=str(BUNDLE / "target"))
    requests, _ = serve(make_llm("ngram"), 0.0)
    confidence = replay(DenseReplayer(llm.engine, (3,)), requests).drafts[3].confidence_NK
    assert confidence is not None
    logprobs = score("target", requests)
    for begin, request, of_answer in zip(replay_offsets(requests), requests, logprobs, strict=True):
        for token in range(1, len(request.answer_ids) - 3):
            assert confidence[begin + token] == pytest.approx(np.exp(of_answer[token : token + 3]), abs=2e-3)


def replay_offsets(requests: Sequence[Transcript]) -> list[int]:
    """Return where each answer begins in the arrays of a replay."""
    return np.cumsum([0, *(len(request.answer_ids) for request in requests[:-1])]).tolist()


def score(model: str, requests: Sequence[Transcript]) -> list[np.ndarray]:
    """Return the log-probability of each answer token by a model that reads the whole text as a prompt."""
    llm = LLM(str(BUNDLE / model), dtype="float32", device="cpu", max_model_len=768)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    outputs = llm.generate([[*request.prompt_ids, *request.answer_ids] for request in requests], params)
    found = []
    for request, output in zip(requests, outputs, strict=True):
        assert output.prompt_logprobs is not None
        ranked = output.prompt_logprobs[len(request.prompt_ids) :]
        pairs = zip(request.answer_ids, ranked, strict=True)
        found.append(np.array([each[token].logprob for token, each in pairs if each is not None]))
    return found
