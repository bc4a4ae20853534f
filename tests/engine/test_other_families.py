"""Targets that depart from Llama by more than biases: the words are those of transformers under every method."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.every_method import METHODS, make_config
from tests.support.tiny_models import FAMILIES, write_family

from draftwise import LLM, SamplingParams
from draftwise.core import InvalidSetup

DEVICE = os.environ.get("DRAFTWISE_TEST_DEVICE", "cpu")
PROMPTS = ["abcabcabcabcabc", "the cat sat on the mat, the cat sat on the", "x"]
PARAMS = SamplingParams(temperature=0, max_tokens=24)


def generate(target: Path, spec: dict[str, Any] | None = None) -> list[list[int]]:
    room = {} if DEVICE == "cpu" else {"kv_cache_memory_bytes": 32 * 2**20}
    llm = LLM(str(target), speculative_config=spec, dtype="float32", device=DEVICE, **room)
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS)]


@pytest.fixture(scope="module", params=FAMILIES)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("models") / request.param, request.param)


@pytest.fixture(scope="module")
def plain(target: Path) -> list[list[int]]:
    return generate(target)


def test_greedy_words_are_those_of_transformers(target: Path, plain: list[list[int]]) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    for prompt, ours in zip(PROMPTS, plain, strict=True):
        ids = torch.tensor([tokenizer.encode(prompt)])
        theirs = model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)[0, ids.shape[1] :].tolist()
        assert ours == theirs


@pytest.mark.parametrize("method", METHODS)
def test_speculation_changes_no_word(
    method: str, target: Path, tiny_draft: Path, plain: list[list[int]], tmp_path: Path
) -> None:
    spec = make_config(method, target, tiny_draft, tmp_path / "drafter")
    if method == "mtp" and target.name == "qwen3_moe":  # whose modules have experts too
        with pytest.raises(InvalidSetup, match="Qwen3MoeForCausalLM is not supported for this method"):
            generate(target, spec)
    else:
        assert generate(target, spec) == plain
