"""Sampled output of the whole engine under speculation has the target's distribution."""

import os
import shutil
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats
from tests.support.combinations import EVERY_CASE, taking_turns
from tests.support.every_method import WITH_MODEL, make_config

from draftwise import LLM, SamplingParams
from draftwise.engine.sampling import verify

DEVICE = os.environ.get("DRAFTWISE_TEST_DEVICE", "cpu")
DTYPE = "float64" if DEVICE == "cpu" else "float32"
"""The kernels that pick tokens on a GPU do not take double precision."""
PROMPT = [65, 66, 65, 66, 65, 66]
MISTAKES = ("accepts too little", "replaces by a draw from p") if DEVICE == "cpu" else ()
"""Planted in plain torch, which a GPU has kernels for."""
TOP_K, NUM_SAMPLES = 3, 2000 if EVERY_CASE else 1000


def exact_distribution(llm: LLM) -> dict[tuple[int, int], float]:
    """Return the probability of each pair of first tokens, from the target's own logits."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=TOP_K)

    def next_distribution(ids: list[int]) -> dict[int, float]:
        (output,) = llm.generate({"prompt_token_ids": ids}, params)
        top = {token: entry.logprob for token, entry in output.outputs[0].logprobs[0].items() if entry.rank <= TOP_K}
        probs = torch.tensor(list(top.values()), dtype=torch.float64).softmax(0).tolist()
        return dict(zip(top, probs, strict=True))

    first = next_distribution(PROMPT)
    second = {token: next_distribution([*PROMPT, token]) for token in first}
    return {
        (a, b): first[a] * second[a][b] for a, b in product(first, range(llm.engine.shape.vocab_size)) if b in second[a]
    }


SITUATIONS: dict[str, dict[str, Any]] = {
    "plenty": {"kv_cache_memory_bytes": 64 * 2**20},
    "preempted": {"block_size": 4, "num_gpu_blocks_override": 192, "enable_prefix_caching": False},
}


SETTINGS: dict[str, Any] = {"dtype": DTYPE, "device": DEVICE, "max_model_len": 64}


@pytest.fixture(scope="module")
def distribution(tiny_target: Path) -> dict[tuple[int, int], float]:
    """The target's own probabilities of the first two tokens."""
    return exact_distribution(LLM(str(tiny_target), **SETTINGS, **SITUATIONS["plenty"]))


CASES = taking_turns([*((name, "probabilistic") for name in WITH_MODEL), ("draft_model", "greedy")], [*SITUATIONS])


@pytest.mark.parametrize(("name", "drafts", "situation"), [(*case, situation) for case, situation in CASES])
def test_pairs_of_tokens_follow_the_targets_distribution(
    name: str,
    drafts: str,
    situation: str,
    distribution: dict[tuple[int, int], float],
    tiny_target: Path,
    tiny_draft: Path,
    tmp_path: Path,
) -> None:
    spec = make_config(name, tiny_target, tiny_draft, tmp_path / "drafter") | {"draft_sample_method": drafts}
    llm = LLM(str(tiny_target), speculative_config=spec, max_num_seqs=256, **SETTINGS, **SITUATIONS[situation])
    seen = sample_pairs(llm)
    assert set(seen) <= set(distribution)
    assert llm.engine.stats().spec.num_drafts > NUM_SAMPLES / (2 if situation == "plenty" else 10)
    assert (llm.engine.stats().num_preemptions > 0) == (situation == "preempted")
    assert compare(seen, distribution) > 1e-4
    assert compare(seen, dict.fromkeys(distribution, 1 / len(distribution))) < 1e-4


@pytest.mark.parametrize("mistake", [None, "by block", *MISTAKES])
def test_a_drafter_that_is_surer_than_the_target_shows_every_mistake(
    mistake: str | None,
    distribution: dict[tuple[int, int], float],
    tiny_target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Random drafters name other tokens than the target, which are rejected by any rule; this one names the same."""
    surer = shutil.copytree(tiny_target, tmp_path / "surer") / "model.safetensors"
    tensors = load_file(surer)
    save_file(tensors | {"model.norm.weight": 4 * tensors["model.norm.weight"]}, surer, metadata={"format": "pt"})
    rejects = verify._reject
    if mistake == "accepts too little":
        uniform = verify._Counters.uniform
        monkeypatch.setattr(verify._Counters, "uniform", lambda *args: uniform(*args) / 0.8)
    elif mistake in MISTAKES:
        monkeypatch.setattr(
            verify, "_reject", lambda p, q, *rest: (rejects(p, q, *rest)[0], rejects(p, 0 * q, *rest)[1])
        )
    spec = {"method": "draft_model", "model": str(surer.parent), "num_speculative_tokens": 3}
    spec |= {"draft_sample_method": "probabilistic"}
    spec |= {"rejection_sample_method": "block"} if mistake == "by block" else {}  # no mistake at all
    llm = LLM(str(tiny_target), speculative_config=spec, max_num_seqs=256, **SETTINGS, **SITUATIONS["plenty"])
    seen = sample_pairs(llm)
    counted = llm.engine.stats().spec
    assert 0.3 < counted.num_accepted_tokens / counted.num_draft_tokens < 0.9
    assert (compare(seen, distribution) > 1e-4) == (mistake not in MISTAKES)


def sample_pairs(llm: LLM) -> Counter[tuple[int, ...]]:
    """Return how often each pair of first tokens was sampled."""
    params = SamplingParams(temperature=1.0, top_k=TOP_K, max_tokens=4, n=NUM_SAMPLES, seed=1)
    (output,) = llm.generate({"prompt_token_ids": PROMPT}, params)
    return Counter(tuple(completion.token_ids[:2]) for completion in output.outputs)


def compare(seen: Counter[tuple[int, ...]], expected: dict[tuple[int, int], float]) -> float:
    """Return how likely samples as far off as these are."""
    outcome = stats.chisquare([seen[pair] for pair in expected], [NUM_SAMPLES * p for p in expected.values()])
    return float(outcome.pvalue)
