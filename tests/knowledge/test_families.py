"""The table of published drafters is consistent, sourced, and in step with the other tables."""

import re

import pytest

from draftwise.knowledge.models import read_models
from draftwise.knowledge.published_drafters import PublishedDrafter, find_native, find_published_drafters
from draftwise.knowledge.vllm import history, releases

EVERY = find_published_drafters(name for model in read_models() for name in model.names)


def test_most_known_models_have_a_drafter_or_modules() -> None:
    targets = {target for row in EVERY for target in row.targets}
    served = [m for m in read_models() if targets & set(m.names) or find_native(m.config["model_type"])]
    assert len(served) > len(read_models()) / 2


@pytest.mark.parametrize("row", EVERY, ids=lambda row: row.model)
def test_a_row_is_complete(row: PublishedDrafter) -> None:
    assert history("methods", row.method)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", row.checked)
    assert row.source.startswith("https://")
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", row.model)
    assert row.model not in row.targets
    assert row.format == "plain" or "speculator" in row.model or row.model.startswith("RedHatAI/")
    assert row.num_speculative_tokens is None or 1 <= row.num_speculative_tokens <= 16


def test_a_drafter_stands_once_for_each_target() -> None:
    pairs = [(row.model, target) for row in EVERY for target in row.targets]
    assert len(pairs) == len(set(pairs))


def test_case_of_a_name_does_not_matter() -> None:
    assert find_published_drafters(["qwen/QWEN3-8b"]) == find_published_drafters(["Qwen/Qwen3-8B"]) != ()
    assert find_published_drafters(["nobody/nothing"]) == ()


def test_families_with_modules_are_families_that_vllm_remaps() -> None:
    newest = releases()[-1].table("mtp_remap")
    for model in read_models():
        if find_native(model.config["model_type"]):
            assert {model.config["model_type"], *model.config["architectures"]} & set(newest)
    assert find_native("llama") is None
