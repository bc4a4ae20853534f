"""`size` knows what it does not know: no number for a drafter of unknown memory, and a warning for code of your own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from draftwise.core import InvalidSetup, Setup, SpecConfig
from draftwise.knowledge import methods
from draftwise.knowledge.methods import methods_where
from draftwise.plan.size import Sizing, size
from draftwise.plan.size.drafter_parts import describe_drafter

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


SETUP = Setup(target=LLAMA, engine="vllm", engine_version="0.32.0")


def size_with(**spec: object) -> Sizing:
    return size(replace(SETUP, spec=SpecConfig.keep({"num_speculative_tokens": 3, **spec})), gpu="H200")


def test_an_unlisted_method_is_not_taken_for_a_draft_model() -> None:
    with pytest.raises(InvalidSetup, match="does not know the method 'warp'") as refused:
        describe_drafter("warp", 3, {}, None)
    assert [each.code for each in refused.value.findings] == ["method-memory-unknown"]


@pytest.mark.parametrize("method", ["warp", "dflash", "eagel3", 5])
def test_a_method_that_the_release_does_not_have_has_no_number(method: object) -> None:
    with pytest.raises(InvalidSetup, match=r"is not a method of vLLM 0\.19\.1") as refused:
        size(replace(SETUP, engine_version="0.19.1", spec=SpecConfig.keep({"method": method})), gpu="H200")
    assert [each.code for each in refused.value.findings] == ["unknown-method"]


def test_a_method_without_a_layout_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {name: replace(each, layout="") for name, each in methods_where().items()}
    monkeypatch.setattr(methods, "_by_name", lambda: rows)
    with pytest.raises(InvalidSetup, match="The tensors of a medusa drafter are unknown"):
        size_with(method="medusa", model="some/heads")
    assert size_with(method="ngram").budget.drafter == 0


def test_every_drafter_of_the_table_has_a_layout() -> None:
    assert all(method.layout for method in methods_where(has_weights=True).values())


def test_your_own_proposer_has_no_number() -> None:
    with pytest.raises(InvalidSetup, match="Memory unknown: your own proposer class"):
        size_with(method="custom_class", model="package.module.Class")


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["NobodysForCausalLM"]},
        {"architectures": ["Qwen3NextForCausalLM"], "layer_types": ["linear_attention"] * 32},
        {"architectures": []},
    ],
)
def test_layers_that_were_not_compared_with_vllm_have_no_number(tmp_path: Path, config: dict[str, object]) -> None:
    known = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(known | config))
    with pytest.raises(InvalidSetup) as refused:
        size(Setup(target=str(tmp_path), engine="vllm", engine_version="0.33.0"), gpu="H200")
    assert "memory-unknown" in {each.code for each in refused.value.findings}


def test_weights_of_an_unknown_family_have_no_number(tmp_path: Path) -> None:
    config = {
        "architectures": ["PersimmonForCausalLM"], "model_type": "persimmon", "hidden_size": 768,
        "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 50272,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidSetup, match="Memory unknown: the weights of persimmon"):
        size(Setup(target=str(tmp_path), engine="vllm", engine_version="0.33.0"), gpu="H200")


@pytest.mark.parametrize(
    "flags",
    [
        {"decode_context_parallel_size": 2, "tensor_parallel_size": 8}, {"kv_cache_memory_bytes": 1 << 30},
        {"num_gpu_blocks_override": 100}, {"dtype": "float32"}, {"cpu_offload_gb": 10},
    ],
)  # fmt: skip
def test_flags_whose_memory_is_not_counted_give_no_number(flags: dict[str, object]) -> None:
    with pytest.raises(InvalidSetup, match="Memory unknown: the effect of --"):
        size(Setup(target=LLAMA, engine="vllm", engine_version="0.33.0", args=flags), gpu="H200")
