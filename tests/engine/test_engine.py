"""The engine as a whole: it says what transformers says, and speculation never changes a word."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwise import LLM, SamplingParams
from draftwise.core import InvalidSetup
from draftwise.engine.outputs import RequestOutput

DEVICE = os.environ.get("DRAFTWISE_TEST_DEVICE", "cpu")

PROMPTS = [
    "abcabcabcabcabc",
    "the cat sat on the mat, the cat sat on the",
    "x",
    "def f(x):\n    return x + 1\n\n\ndef g(x):\n    return x + 1\n" * 2,
    "0123456789" * 12,
]

METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "ngram_gpu": {"method": "ngram_gpu", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "suffix": {"method": "suffix", "num_speculative_tokens": 6, "suffix_decoding_min_token_prob": 0.0},
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 3},
    "self_draft": {"method": "draft_model", "num_speculative_tokens": 3},
}

SITUATIONS: dict[str, dict[str, Any]] = {
    "plenty": {},
    "no prefix cache": {"enable_prefix_caching": False},
    "chunked": {"max_num_batched_tokens": 16},
    "preempted": {"num_gpu_blocks_override": 14, "max_model_len": 208},
    "two at a time": {"max_num_seqs": 2, "block_size": 4},
}


def make_llm(target: Path, spec: dict[str, Any] | None = None, **settings: Any) -> LLM:
    return LLM(str(target), speculative_config=spec, **({"dtype": "float64", "device": DEVICE} | settings))


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def with_drafter(name: str, target: Path, draft: Path) -> dict[str, Any]:
    drafter = {"draft_model": draft, "self_draft": target}.get(name)
    return METHODS[name] | ({"model": str(drafter)} if drafter else {})


@pytest.fixture(scope="module")
def plain(tiny_target: Path) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=48)
    return tokens_of(make_llm(tiny_target).generate(PROMPTS, params))


def test_plain_greedy_equals_transformers(tiny_target: Path, plain: list[list[int]]) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.float64)
    llm = make_llm(tiny_target)
    for prompt, ours in zip(PROMPTS, plain, strict=True):
        ids = torch.tensor([llm.get_tokenizer().encode(prompt)])
        theirs = model.generate(ids, max_new_tokens=48, do_sample=False, pad_token_id=0)[0, ids.shape[1] :].tolist()
        assert ours == theirs


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("name", METHODS)
def test_speculation_never_changes_greedy_output(
    name: str, situation: str, tiny_target: Path, tiny_draft: Path, plain: list[list[int]]
) -> None:
    llm = make_llm(tiny_target, with_drafter(name, tiny_target, tiny_draft), **SITUATIONS[situation])
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=48))
    assert tokens_of(outputs) == plain
    stats = llm.engine.stats()
    assert stats.spec.num_drafts > 0, "the method must really have drafted"
    assert (stats.num_preemptions > 0) == (situation == "preempted")
    assert stats.kv_cache_usage == 0
    if name == "self_draft":
        assert stats.spec.acceptance_rate == 1.0, "a drafter equal to the target is always right"


@pytest.mark.parametrize("name", ["ngram", "suffix", "draft_model"])
def test_deterministic_drafts_keep_the_sampled_text_too(name: str, tiny_target: Path, tiny_draft: Path) -> None:
    params = SamplingParams(
        temperature=0.8,
        top_p=0.9,
        min_p=0.01,
        seed=5,
        max_tokens=40,
        presence_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={65: 2.0},
        bad_words=["zq"],
        min_tokens=4,
    )
    ours = make_llm(tiny_target, with_drafter(name, tiny_target, tiny_draft)).generate(PROMPTS, params)
    assert tokens_of(ours) == tokens_of(make_llm(tiny_target).generate(PROMPTS, params))


def test_same_seed_same_output_whatever_else_is_in_the_batch(tiny_target: Path) -> None:
    llm = make_llm(tiny_target)
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=24)
    alone = tokens_of(llm.generate(PROMPTS[1], params))
    together = tokens_of(llm.generate(PROMPTS, [replace(params, seed=i) if i != 1 else params for i in range(5)]))
    assert together[1] == alone[0]


def test_probabilistic_drafts_are_accepted_when_the_drafter_is_the_target(tiny_target: Path) -> None:
    spec = with_drafter("self_draft", tiny_target, tiny_target) | {"draft_sample_method": "probabilistic"}
    llm = make_llm(tiny_target, spec)
    llm.generate(PROMPTS, SamplingParams(temperature=1.0, seed=1, max_tokens=32))
    assert llm.engine.stats().spec.acceptance_rate == 1.0


def test_n_completions_differ_and_share_the_prompt(tiny_target: Path) -> None:
    llm = make_llm(tiny_target)
    (output,) = llm.generate(PROMPTS[3], SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=12))
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 3
    assert llm.engine.stats().prefix_cache_hits > 0


@pytest.mark.parametrize("spec", [None, "ngram"])
def test_stops(spec: str | None, tiny_target: Path, plain: list[list[int]]) -> None:
    llm = make_llm(tiny_target, METHODS[spec] if spec else None)
    text = llm.get_tokenizer().decode(plain[1])
    needle = text[10:13]
    params = SamplingParams(temperature=0, max_tokens=48, stop=[needle])
    (output,) = llm.generate(PROMPTS[1], params)
    assert output.outputs[0].text == text[: text.index(needle)]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", needle)
    stop_id = plain[1][7]
    (output,) = llm.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=48, stop_token_ids=[stop_id]))
    assert output.outputs[0].token_ids == plain[1][: plain[1].index(stop_id) + 1]
    assert output.outputs[0].stop_reason == stop_id
    (output,) = llm.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=5))
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (5, "length")


def test_context_limit_ends_a_completion(tiny_target: Path) -> None:
    llm = make_llm(tiny_target, METHODS["ngram"], max_model_len=64)
    (output,) = llm.generate("ab" * 30, SamplingParams(temperature=0, max_tokens=None))
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 64
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("spec", [None, "ngram"])
def test_logprobs_are_those_of_transformers(spec: str | None, tiny_target: Path) -> None:
    transformers = pytest.importorskip("transformers")
    llm = make_llm(tiny_target, METHODS[spec] if spec else None, max_num_batched_tokens=8)
    params = SamplingParams(temperature=0, max_tokens=10, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate(PROMPTS[0], params)
    ids = output.prompt_token_ids + output.outputs[0].token_ids
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.float64)
    expected = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
    found = (output.prompt_logprobs or [])[1:] + (output.outputs[0].logprobs or [])
    assert len(found) == len(ids) - 1
    for position, candidates in enumerate(found):
        token = ids[position + 1]
        assert candidates[token].logprob == pytest.approx(expected[position, token].item(), abs=1e-5)
        best = expected[position].argmax().item()
        assert candidates[best].rank == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_model_len": 4096}, "256 positions"),
        ({"kv_cache_memory_bytes": 1000}, "less than one sequence"),
        ({"max_nun_seqs": 4}, "Did you mean max_num_seqs"),
        ({"max_num_seqs": 0}, "must be positive"),
    ],
)
def test_impossible_settings_are_explained(settings: dict[str, Any], words: str, tiny_target: Path) -> None:
    with pytest.raises(InvalidSetup, match=words):
        make_llm(tiny_target, None, **settings)


def test_impossible_requests_are_explained(tiny_target: Path) -> None:
    llm = make_llm(tiny_target)
    for prompt, words in [([], "no tokens|no prompts"), ([9999], "token ids must lie"), ([65] * 256, "has 256 tokens")]:
        with pytest.raises(InvalidSetup, match=words):
            llm.generate({"prompt_token_ids": prompt}, SamplingParams())
    with pytest.raises(InvalidSetup, match="no prompts"):
        llm.generate([])
