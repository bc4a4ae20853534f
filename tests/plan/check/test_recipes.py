"""The speculative setups of vLLM's own recipes: none is accepted of which something is not known.

`recipes.json` has what each recipe passes to `vllm serve`, from https://github.com/vllm-project/recipes (8959cf64,
2026-08-21): the model, the arguments, and the place in the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftwise.core import Effect, Ruling
from draftwise.knowledge.model_copies import find_copy
from draftwise.knowledge.models import find_model
from draftwise.plan.check import judge
from draftwise.setups.read import read_words
from draftwise.verbs.judgements import Judgement

RECIPES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "recipes.json").read_text("utf-8"))
REFUSED = {
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "hybrid-needs-chunked-prefill"),
    ("deepseek-ai/DeepSeek-V4-Flash-0731", "unknown-choice"),
}
"""What 0.33.0 refuses of them: chunked prefill switched off for a hybrid, and a backend of another image."""


def judged(recipe: dict[str, Any]) -> Judgement:
    return Judgement.of(
        judge(read_words(["vllm", "serve", recipe["target"], *recipe["args"]], engine_version="0.33.0"))
    )


def test_the_setups_are_those_of_the_recipes() -> None:
    assert len(RECIPES) == 71
    assert len({each["file"] for each in RECIPES}) == 56


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda each: f"{each['file']}:{each['place']}")
def test_a_recipe_is_accepted_only_where_its_models_are_known(recipe: dict[str, Any]) -> None:
    found = judged(recipe)
    refusals = {each.code for each in found.findings if isinstance(each, Ruling) and each.effect is Effect.REJECTED}
    assert refusals == {code for target, code in REFUSED if target == recipe["target"]} & refusals, "a recipe runs"
    copy = find_copy(recipe["target"])
    base = find_model(recipe["target"]) if copy is None else copy.base
    if base is None or base.is_partial:
        assert str(found.verdict) in ("not judged", "rejected")
        assert any(each.code in ("target-not-here", "target-partly-known") for each in found.findings)


def test_what_a_release_refuses_of_the_recipes_is_refused() -> None:
    seen = {(each["target"], finding.code) for each in RECIPES for finding in judged(each).findings}
    assert seen >= REFUSED
