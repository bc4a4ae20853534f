"""The tensors that a config asks for are those that transformers makes, and the formats of one drafter are one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.crafted import BUNDLE, Tensors, copy_changed, look, tensors_of, write_checkpoint

from draftwise.checkpoints.config_values import TargetSizes
from draftwise.checkpoints.expected_tensors import expect_tensors
from draftwise.checkpoints.inspect import inspect_checkpoint
from draftwise.checkpoints.pair import inspect_pair
from draftwise.checkpoints.recognize import from_plain, recognize
from draftwise.core import Severity

TARGET = BUNDLE / "target"
SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96,
}  # fmt: skip


@pytest.mark.engine
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("family", "extra"),
    [
        ("Llama", {}),
        ("Llama", {"attention_bias": True, "mlp_bias": True}),
        ("Mistral", {}),
        ("Qwen2", {}),
        ("Qwen3", {}),
        ("Qwen3", {"attention_bias": True}),
    ],
)
def test_models_hold_what_transformers_makes(family: str, extra: dict[str, Any], tied: bool) -> None:
    import torch
    import transformers

    config = getattr(transformers, f"{family}Config")(**SMALL, **extra, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    made = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    settings = json.loads(config.to_json_string(use_diff=False)) | {"architectures": [f"{family}ForCausalLM"]}
    expected = expect_tensors(recognize(settings, made))
    assert expected is not None
    assert {**expected.required, **expected.optional} == made
    assert ("lm_head.weight" in expected.required) != tied


@pytest.mark.parametrize("name", ["eagle3", "p_eagle", "dflash"])
def test_the_speculators_format_is_the_same_drafter(tmp_path: Path, name: str) -> None:
    plain = json.loads((BUNDLE / name / "config.json").read_text())
    tensors = tensors_of(BUNDLE / name) | {"embed_tokens.weight": ("BF16", (4096, 512))}
    folder = write_checkpoint(tmp_path / name, from_plain(plain, verifier="org/Model-8B", k=3), tensors)
    pair, before = inspect_pair(folder, TARGET), inspect_pair(BUNDLE / name, TARGET)
    now, then = pair.drafter.drafter, before.drafter.drafter
    assert now.layout == "speculators"
    assert (now.method, now.parallel, now.mask_token_id) == (then.method, then.parallel, then.mask_token_id)
    assert now.aux_layers is not None
    assert then.aux_layers is not None
    assert now.aux_layers.ids == then.aux_layers.ids
    assert pair.drafter.dimensions == before.drafter.dimensions
    assert [finding.code for finding in pair.findings] == ["base-model-unconfirmed"]
    assert "org/Model-8B" in pair.findings[0].message


def test_layers_count_by_their_input_in_the_speculators_format(tmp_path: Path) -> None:
    plain = json.loads((BUNDLE / "dflash" / "config.json").read_text())
    config = from_plain(plain, verifier="target", k=3)
    for highest, fits in ((8, True), (9, False)):
        config["aux_hidden_state_layer_ids"] = [2, 4, highest]
        folder = write_checkpoint(tmp_path / str(highest), config, tensors_of(BUNDLE / "dflash"))
        assert look(folder) == (set() if fits else {"layer-ids-out-of-range"})


def test_a_plain_layer_id_one_too_high_is_explained(tmp_path: Path) -> None:
    folder = copy_changed(
        BUNDLE / "dflash", tmp_path / "dflash", config=lambda c: c["dflash_config"].update(target_layer_ids=[2, 4, 8])
    )
    (finding,) = inspect_pair(folder, TARGET).findings
    assert "look one too high" in finding.message


def test_old_and_new_medusa_names_are_one(tmp_path: Path) -> None:
    tensors: Tensors = {}
    for i in range(4):
        tensors[f"{i}.0.linear.weight"] = ("BF16", (512, 512))
        tensors[f"{i}.0.linear.bias"] = ("BF16", (512,))
        tensors[f"{i}.1.weight"] = ("BF16", (4096, 512))
    config = {"medusa_num_heads": 4, "medusa_num_layers": 1, "hidden_size": 512, "base_model_name_or_path": "org/M-7B"}
    folder = write_checkpoint(tmp_path / "medusa", config, tensors)
    pair = inspect_pair(folder, TARGET)
    assert (pair.drafter.drafter.method, pair.drafter.num_heads) == ("medusa", 4)
    assert [finding.code for finding in pair.findings] == ["base-model-unconfirmed"]
    del tensors["3.1.weight"]
    write_checkpoint(folder, config, tensors)
    assert look(folder) == {"tensors-missing"}


def test_an_eagle3_head_under_a_plain_name_is_known_by_its_tensors(tmp_path: Path) -> None:
    def rename(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("layers.0.")]:
            tensors[name.replace("layers.0.", "midlayer.")] = tensors.pop(name)

    for name, method in (("eagle3", "eagle3"), ("eagle", "eagle")):
        folder = copy_changed(
            BUNDLE / name,
            tmp_path / name,
            config=lambda c: c.update(architectures=["LlamaForCausalLM"]),
            tensors=rename if name == "eagle3" else lambda _: None,
        )
        assert inspect_checkpoint(folder).drafter.method == method
        assert look(folder) == set()


class TestDSpark:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        plain = json.loads((BUNDLE / "dflash" / "config.json").read_text())
        plain |= {"architectures": ["Qwen3DSparkModel"], "markov_rank": 16, "enable_confidence_head": True}
        tensors = tensors_of(BUNDLE / "dflash")
        tensors["markov_head.markov_w1.weight"] = tensors["markov_head.markov_w2.weight"] = ("BF16", (4096, 16))
        tensors["confidence_head.proj.weight"], tensors["confidence_head.proj.bias"] = ("F32", (1, 512)), ("F32", (1,))
        return write_checkpoint(tmp_path / "dspark", plain, tensors)

    def test_complete(self, folder: Path) -> None:
        assert inspect_checkpoint(folder).drafter.method == "dspark"
        assert look(folder, least=Severity.INFO) == set()

    def test_without_its_markov_head(self, folder: Path, tmp_path: Path) -> None:
        broken = copy_changed(folder, tmp_path / "b", tensors=lambda t: t.pop("markov_head.markov_w2.weight"))
        assert look(broken) == {"tensors-missing"}

    def test_a_padded_vocabulary_needs_no_map(self) -> None:
        config = json.loads((BUNDLE / "dflash" / "config.json").read_text())
        config |= {"architectures": ["Qwen3DSparkModel"], "markov_rank": 16, "vocab_size": 4224}
        target = TargetSizes(hidden_size=512, vocab_size=4096, num_layers=8)
        expected = expect_tensors(recognize(config, []), target)
        assert expected is not None
        assert "d2t" not in expected.required
        config["draft_vocab_size"] = 3000
        expected = expect_tensors(recognize(config, []), target)
        assert expected is not None
        assert expected.required["d2t"] == (3000,)


def test_mtp_modules_joined_with_their_target(tmp_path: Path) -> None:
    config = json.loads((BUNDLE / "mtp" / "config.json").read_text()) | {"tie_word_embeddings": True}
    biases: Tensors = {}
    for i in range(8):
        for name, size in (("q", 512), ("k", 128), ("v", 128)):
            biases[f"model.layers.{i}.self_attn.{name}_proj.bias"] = ("BF16", (size,))
    tensors = tensors_of(TARGET) | tensors_of(BUNDLE / "mtp") | biases
    found = inspect_checkpoint(write_checkpoint(tmp_path / "joined", config, tensors))
    assert found.findings == ()
    assert (found.drafter.method, found.n_predict) == ("draft_model", 1)
    del tensors["model.mtp_layers.0.input_proj.weight"]
    (finding,) = inspect_checkpoint(write_checkpoint(tmp_path / "joined", config, tensors)).findings
    assert (finding.code, "input_proj" in finding.message) == ("mtp-modules-lost", True)


def test_an_unknown_head_is_not_called_complete(tmp_path: Path) -> None:
    folder = copy_changed(
        BUNDLE / "eagle", tmp_path / "eagle", config=lambda c: c.update(architectures=["EagleCohereForCausalLM"])
    )
    assert look(folder, least=Severity.INFO) == {"tensors-unchecked"}
