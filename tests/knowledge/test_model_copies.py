"""A copy is recognized by its name, as a copy of the right model, and what its name does not say is not known."""

import pytest

from draftwise.knowledge.model_copies import UNKNOWN, find_copy, find_names
from draftwise.knowledge.models import find_model, read_models, read_names
from draftwise.knowledge.stored import read_data


@pytest.mark.parametrize(
    ("name", "base", "method"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", "Qwen/Qwen3-Next-80B-A3B-Instruct", "fp8"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "meta-llama/Llama-3.1-8B-Instruct", "modelopt"),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "deepseek-ai/DeepSeek-R1-0528", "modelopt"),
        ("RedHatAI/Qwen3-32B-FP8-dynamic", "Qwen/Qwen3-32B", "compressed-tensors"),
        (
            "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8",
            "meta-llama/Meta-Llama-3.1-8B-Instruct",
            "compressed-tensors",
        ),
        (
            "neuralmagic/Mistral-7B-Instruct-v0.3-quantized.w4a16",
            "mistralai/Mistral-7B-Instruct-v0.3",
            "compressed-tensors",
        ),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "Qwen/Qwen3-8B", "bitsandbytes"),
        ("unsloth/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", None),
        ("bartowski/Qwen_Qwen3-8B-GGUF", "Qwen/Qwen3-8B", None),
        ("unsloth/Qwen3-8B-GGUF:Q4_K_M", "Qwen/Qwen3-8B", None),
        ("cyankiwi/Qwen3-Coder-30B-A3B-Instruct-AWQ-4bit", "Qwen/Qwen3-Coder-30B-A3B-Instruct", None),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-7B-Instruct", "gptq"),
        ("Intel/Qwen3-14B-int4-AutoRound", "Qwen/Qwen3-14B", None),
        ("someone/gpt-oss-20b-BF16", "openai/gpt-oss-20b", None),
        ("qwen/qwen3-next-80b-a3b-instruct-fp8", "Qwen/Qwen3-Next-80B-A3B-Instruct", "fp8"),
    ],
)
def test_a_copy_has_the_architecture_of_its_base_and_its_own_quantization(
    name: str, base: str, method: str | None
) -> None:
    copy = find_copy(name)
    assert copy is not None
    assert copy.base_name == base
    assert copy.config["architectures"] == copy.base.config["architectures"]
    declared = copy.config.get("quantization_config") or {}
    assert declared.get("quant_method") == method


@pytest.mark.parametrize(
    "name", ["someone/Unheard-Of-9B-FP8", "FP8", "-FP8", "x/-AWQ", "", "/", "a/b/c-FP8", "myorg/Qwen3-8B"]
)
def test_a_name_without_a_known_base_is_unknown(name: str) -> None:
    assert find_copy(name) is None


def test_no_known_model_is_taken_for_a_copy() -> None:
    for model in (*read_models(), *read_names()):
        assert all(find_copy(name) is None and find_names(name) for name in model.names)


def test_every_kind_of_ending_works_on_every_model() -> None:
    """An ending behind the name of any model names that model, or one whose name is longer."""
    endings = (
        "-FP8",
        "-NVFP4",
        "-AWQ",
        "-GPTQ-Int4",
        "-bnb-4bit",
        "-GGUF",
        "-FP8-dynamic",
        "-quantized.w4a16",
        "-w8a8",
    )
    whole = (each for each in read_models() if "quantization_config" not in each.config)
    for model in [each for each in whole if not each.id.endswith(endings)][::5]:
        for ending in endings:
            name = f"another-publisher/{model.id.rpartition('/')[2]}{ending}"
            copy = find_copy(name)
            assert copy is not None or find_model(model.id.rpartition("/")[2]) is None, name
            if copy is not None:
                assert copy.base is find_model(model.id.rpartition("/")[2])
                assert not copy.keeps_modules


def test_a_publisher_that_is_not_known_says_nothing_of_the_weights() -> None:
    for name in ("someone/Qwen3-8B-FP8", "someone/Qwen3-8B-AWQ", "someone/Qwen3-8B-w4a16"):
        copy = find_copy(name)
        assert copy is not None
        assert not copy.has_known_weights
        assert copy.config["quantization_config"] is UNKNOWN


def test_modules_are_counted_on_where_the_publisher_of_the_base_or_the_name_says_so() -> None:
    kept = {name: found.keeps_modules for name in (
        "zai-org/GLM-4.5-FP8", "someone/GLM-4.5-FP8", "someone/GLM-4.5-MTP-FP8", "nvidia/GLM-4.5-NVFP4"
    ) if (found := find_copy(name))}  # fmt: skip
    assert kept == {"zai-org/GLM-4.5-FP8": True, "someone/GLM-4.5-FP8": False, "someone/GLM-4.5-MTP-FP8": True, "nvidia/GLM-4.5-NVFP4": False}  # fmt: skip  # noqa: E501


def test_the_tables_name_enough_models_each_once_and_with_a_source() -> None:
    names = [name.lower() for model in (*read_models(), *read_names()) for name in model.names]
    assert len(names) == len(set(names)) >= 400
    assert all(row["source"] for row in (*read_data("model_names"), *read_data("model_configs")))
    kinds = read_data("model_copies")["kinds"]
    assert all(row["source"] and row["what"] for row in kinds)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B"),
        ("nvidia/GLM-5.2-NVFP4", "zai-org/GLM-5.2"),
        ("unsloth/Qwen3-8B-GGUF:Q4_K_M", "Qwen/Qwen3-8B"),
    ],
)
def test_what_is_published_for_the_base_is_found_for_a_copy_with_a_row_of_its_own(name: str, base: str) -> None:
    found = find_names(name)
    assert base in found
    row = find_model(name)
    assert row is None or row.id in found
    assert name not in find_names(base)
