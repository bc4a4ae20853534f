"""`size` knows what it does not know: no number for a drafter of unknown memory, and a warning for code of your own."""

from dataclasses import replace

import pytest

from draftwise.core import InvalidSetup, Setup, SpecConfig
from draftwise.knowledge import methods
from draftwise.knowledge.methods import methods_where
from draftwise.plan.size import Sizing, size

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def size_with(**spec: object) -> Sizing:
    config = SpecConfig.keep({"num_speculative_tokens": 3, **spec})
    return size(Setup(target=LLAMA, engine="vllm", engine_version="0.32.0", spec=config), gpu="H200")


def test_an_unlisted_method_is_not_taken_for_a_draft_model() -> None:
    with pytest.raises(InvalidSetup, match="does not know the method 'warp'") as refused:
        size_with(method="warp", model="some/drafter")
    assert [each.code for each in refused.value.findings] == ["method-memory-unknown"]


def test_a_method_without_a_layout_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {name: replace(each, layout="") for name, each in methods_where().items()}
    monkeypatch.setattr(methods, "_by_name", lambda: rows)
    with pytest.raises(InvalidSetup, match="Which tensors a drafter of medusa has is unknown"):
        size_with(method="medusa", model="some/heads")
    assert size_with(method="ngram").budget.drafter == 0


def test_every_drafter_of_the_table_has_a_layout() -> None:
    assert all(method.layout for method in methods_where(has_weights=True).values())


def test_your_own_proposer_is_said_to_be_left_out() -> None:
    found = size_with(method="custom_class", model="package.module.Class")
    assert "drafter-not-counted" in {each.code for each in found.findings}
