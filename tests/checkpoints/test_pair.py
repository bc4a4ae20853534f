"""Each fault of a pair gives its own finding and no other; the bundled drafters have none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.version import Version
from tests.support.crafted import (
    BUNDLE,
    Tensors,
    copy_changed,
    look,
    tensors_of,
    write_checkpoint,
    write_safetensors,
    write_vocabulary,
)

from draftwise import checkpoints
from draftwise.checkpoints.inspect import inspect_checkpoint
from draftwise.checkpoints.pair import Pair, find_mtp_findings, find_pair_findings, inspect_pair
from draftwise.core import InvalidSetup, Severity
from draftwise.verbs.inspect import InspectResult

TARGET = BUNDLE / "target"
Config = dict[str, Any]


def write_out(pair: Pair) -> Any:
    return InspectResult(sides=(pair.drafter, pair.target), pair=pair, findings=pair.findings).to_dict()


@pytest.mark.parametrize(
    ("name", "method", "parallel", "aux_layers"),
    [
        ("draft_model", "draft_model", False, None),
        ("eagle", "eagle", False, None),
        ("eagle3", "eagle3", False, (2, 5, 8)),
        ("p_eagle", "eagle3", True, (2, 4, 7)),
        ("dflash", "dflash", True, (2, 4, 7)),
        ("medusa", "medusa", False, None),
        ("mlp_speculator", "mlp_speculator", False, None),
        ("mtp", "mtp", False, None),
    ],
)
def test_bundled_drafters_are_known_and_fit(
    name: str, method: str, parallel: bool, aux_layers: tuple[int, ...] | None
) -> None:
    pair = inspect_pair(BUNDLE / name, TARGET)
    drafter = pair.drafter.drafter
    layers = None if drafter.aux_layers is None else drafter.aux_layers.ids
    assert (drafter.method, drafter.parallel, layers, drafter.layout) == (method, parallel, aux_layers, "plain")
    assert {finding.code for finding in pair.findings} == ({"mtp-modules-alone"} if name == "mtp" else set())
    assert pair.fits
    json.dumps(write_out(pair))


def test_the_bundled_target_is_clean() -> None:
    found = inspect_checkpoint(TARGET)
    assert found.findings == ()
    assert found.num_parameters == 26_223_104
    assert (found.mtp, found.quantization) == (None, None)


def test_a_damaged_file_of_modelopt_is_said(tmp_path: Path) -> None:
    folder = copy_changed(TARGET, tmp_path / "target")
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    assert str(inspect_checkpoint(folder).quantization) == "modelopt, 8 bits"
    (folder / "hf_quant_config.json").write_text("{")
    found = inspect_checkpoint(folder)
    assert [finding.code for finding in found.findings] == ["not-json"]
    assert found.findings[0].where.endswith("hf_quant_config.json")
    assert found.quantization is None


def drop(*names: str) -> Callable[[Tensors], object]:
    return lambda tensors: [tensors.pop(name) for name in names]


def put(name: str, dtype: str, *shape: int) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: (dtype, shape)})


def say(**keys: Any) -> Callable[[Config], object]:
    return lambda config: config.update(keys)


def prefix(tensors: Tensors) -> None:
    renamed = {f"model.{name}": entry for name, entry in tensors.items()}
    tensors.clear()
    tensors.update(renamed)


TENSOR_FAULTS = [
    ("eagle", drop("fc.weight"), "tensors-missing"),
    ("eagle", put("norm.weight", "BF16", 512), "tensors-unknown"),
    ("eagle", put("lm_head.weight", "BF16", 4096, 512), "tensors-unknown"),
    ("eagle", put("fc.bias", "BF16", 512), "biases-dropped"),
    ("p_eagle", put("d2t", "F32", 3072), None),
    ("eagle", put("fc.weight", "BF16", 512, 512), "tensor-shapes"),
    ("eagle", prefix, "tensors-prefixed"),
    ("p_eagle", drop("d2t"), "tensors-missing"),
    ("p_eagle", drop("lm_head.weight"), "tensors-missing"),
    ("eagle3", drop("layers.0.self_attn.q_proj.weight", "norm.weight"), "tensors-missing"),
    ("eagle3", put("layers.0.self_attn.q_proj.weight", "BF16", 512, 512), "tensor-shapes"),
    ("eagle3", put("layers.2.mlp.up_proj.weight", "BF16", 1024, 512), "tensors-unknown"),
    ("p_eagle", put("d2t", "BF16", 3072), "vocabulary-map-type"),
    ("p_eagle", put("d2t", "I64", 3000), "tensor-shapes"),
    ("p_eagle", put("t2d", "BOOL", 5000), "vocabulary-map-size"),
    ("p_eagle", drop("mask_hidden"), "tensors-missing-refused"),
    ("p_eagle", put("mask_hidden", "BF16", 1536), None),
    ("dflash", drop("layers.2.self_attn.k_norm.weight"), "tensors-missing"),
    ("dflash", put("mask_hidden", "BF16", 1536), "tensors-unknown"),
    ("dflash", put("embed_tokens.weight", "BF16", 4096, 512), None),
    ("medusa", drop("blocks.1.layers.0.weight"), "tensors-missing-refused"),
    ("medusa", drop("lm_heads.0.weight"), "tensors-missing"),
    ("medusa", put("anything", "BF16", 3), None),
    ("mlp_speculator", drop("speculator.proj.1.weight"), "tensors-missing-refused"),
    ("mtp", drop("model.mtp_layers.0.self_attn.q_proj.bias"), "tensors-missing-refused"),
    ("draft_model", drop("model.norm.weight"), "tensors-missing-refused"),
    ("draft_model", put("model.layers.3.input_layernorm.weight", "BF16", 256), "tensors-unknown"),
    ("draft_model", put("model.embed_tokens.weight", "BF16", 4000, 256), "tensor-shapes"),
    ("draft_model", put("lm_head.weight", "BF16", 4096, 256), None),
]


@pytest.mark.parametrize(("name", "change", "code"), TENSOR_FAULTS)
def test_a_fault_of_the_tensors(
    tmp_path: Path, name: str, change: Callable[[Tensors], object], code: str | None
) -> None:
    folder = copy_changed(BUNDLE / name, tmp_path / name, tensors=change)
    assert look(folder) == ({code} if code else set())


CONFIG_FAULTS = [
    ("eagle3", say(target_hidden_size=256), {"hidden-size-differs", "tensor-shapes"}),
    ("eagle3", say(eagle_aux_hidden_state_layer_ids=[2, 4, 9]), {"layer-ids-out-of-range"}),
    ("eagle3", say(eagle_aux_hidden_state_layer_ids=[2, 4, 8]), set()),
    ("eagle3", say(eagle_aux_hidden_state_layer_ids=[0, 4, 4]), {"layer-ids-count"}),
    ("eagle3", say(num_hidden_layers=3), {"tensors-missing"}),
    ("eagle3", say(attention_bias=True), {"tensors-missing"}),
    ("eagle3", say(vocab_size=5000), {"head-vocabulary-differs"}),
    ("p_eagle", lambda config: config.pop("ptd_token_id"), {"mask-token-missing"}),
    ("p_eagle", say(ptd_token_id=4096), {"mask-token-out-of-range"}),
    ("dflash", say(dflash_config={"mask_token_id": 1, "target_layer_ids": [1, 3, 8]}), {"layer-ids-out-of-range"}),
    ("dflash", say(dflash_config={"target_layer_ids": [1, 3, 6]}), {"mask-token-missing"}),
    ("medusa", say(num_heads=5), {"tensors-missing-refused"}),
    ("medusa", say(hidden_size=256), {"hidden-size-differs", "tensor-shapes"}),
    ("mlp_speculator", say(emb_dim=256), {"hidden-size-differs", "tensor-shapes"}),
    ("draft_model", say(vocab_size=4224), {"vocabulary-sizes-differ", "tensor-shapes"}),
    ("draft_model", say(max_position_embeddings=1024), {"draft-context-shorter"}),
]


@pytest.mark.parametrize(("name", "change", "expected"), CONFIG_FAULTS)
def test_a_fault_of_the_config(
    tmp_path: Path, name: str, change: Callable[[Config], object], expected: set[str]
) -> None:
    assert look(copy_changed(BUNDLE / name, tmp_path / name, config=change)) == expected


def test_a_quantized_head_is_complete_by_the_names_of_its_layers(tmp_path: Path) -> None:
    def quantize(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            _, (rows, columns) = tensors.pop(name)
            stem = name.removesuffix(".weight")
            tensors[f"{stem}.qweight"] = ("I32", (columns // 8, rows))
            tensors[f"{stem}.scales"] = ("BF16", (columns // 128, rows))
            tensors[f"{stem}.qzeros"] = ("I32", (columns // 128, rows // 8))

    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    folder = copy_changed(
        BUNDLE / "eagle3", tmp_path / "eagle3", config=say(quantization_config=quantization), tensors=quantize
    )
    assert look(folder) == set()
    found = inspect_checkpoint(folder)
    assert str(found.quantization) == "gptq, 4 bits, group 128"
    assert found.num_parameters == inspect_checkpoint(BUNDLE / "eagle3").num_parameters
    shutil.rmtree(folder)
    dropped = copy_changed(
        BUNDLE / "eagle3",
        folder,
        config=say(quantization_config=quantization),
        tensors=lambda t: [quantize(t), t.pop("layers.0.mlp.up_proj.qweight"), t.pop("layers.0.mlp.up_proj.scales"),
                           t.pop("layers.0.mlp.up_proj.qzeros")],
    )  # fmt: skip
    assert look(dropped) == {"tensors-missing"}


class TestTokenizers:
    @pytest.fixture
    def drafter(self, tmp_path: Path) -> Path:
        return copy_changed(BUNDLE / "draft_model", tmp_path / "draft_model")

    def rewrite(self, drafter: Path, change: Callable[[Any], object]) -> set[str]:
        content = json.loads((drafter / "tokenizer.json").read_text())
        change(content)
        (drafter / "tokenizer.json").write_text(json.dumps(content))
        return look(drafter, least=Severity.INFO)

    def test_two_ids_swapped(self, drafter: Path) -> None:
        def swap(content: Any) -> None:
            vocab = content["model"]["vocab"]
            one, two = (next(token for token, i in vocab.items() if i == wanted) for wanted in (300, 301))
            vocab[one], vocab[two] = 301, 300

        assert self.rewrite(drafter, swap) == {"tokenizers-differ"}
        (finding,) = inspect_pair(drafter, TARGET).findings
        assert "2 of 4,096 token ids" in finding.message
        assert "id 300 is" in finding.message

    def test_a_control_token_renamed(self, drafter: Path) -> None:
        def rename(content: Any) -> None:
            content["added_tokens"][2]["content"] = "<|human|>"
            content["model"]["vocab"].pop("<|user|>", None)

        assert self.rewrite(drafter, rename) == {"control-tokens-differ"}

    def test_another_normalizer(self, drafter: Path) -> None:
        assert self.rewrite(drafter, lambda c: c.update(normalizer={"type": "NFC"})) == {"text-split-differs"}

    def test_another_end_token(self, drafter: Path) -> None:
        for name in ("config.json", "generation_config.json"):
            content = json.loads((drafter / name).read_text()) | {"eos_token_id": 7}
            (drafter / name).write_text(json.dumps(content))
        (drafter / "tokenizer_config.json").write_text("{}")
        assert look(drafter, least=Severity.INFO) == {"named-tokens-differ"}

    def test_none_to_compare(self, drafter: Path) -> None:
        (drafter / "tokenizer.json").unlink()
        assert look(drafter) == {"tokenizers-not-compared"}

    def test_a_damaged_one_is_a_finding_beside_the_others(self, drafter: Path) -> None:
        (drafter / "tokenizer.json").write_text("{")
        assert look(drafter) == {"not-json", "tokenizers-not-compared"}

    def test_only_the_padding_differs(self, tmp_path: Path) -> None:
        def pad(tensors: Tensors) -> None:
            tensors["model.embed_tokens.weight"] = ("BF16", (4224, 256))

        folder = copy_changed(BUNDLE / "draft_model", tmp_path / "padded", config=say(vocab_size=4224), tensors=pad)
        assert look(folder) == {"vocabulary-sizes-differ"}
        (finding,) = find_pair_findings(folder, TARGET)
        assert "resize_token_embeddings(4224)" in finding.fix
        assert find_pair_findings(folder, TARGET, version=Version("0.14.1")) == ()


class TestBaseModel:
    @pytest.fixture
    def head(self, tmp_path: Path) -> Path:
        folder = copy_changed(BUNDLE / "eagle", tmp_path / "eagle")
        (folder / "draftwise.json").unlink()
        return folder

    def named_target(self, tmp_path: Path, name: str) -> Path:
        return copy_changed(TARGET, tmp_path / name)

    @pytest.mark.parametrize(
        ("base", "name", "code"),
        [
            ("org/Some-8B-Instruct", "Some-8B-Instruct", None),
            ("org/Some-8B-Instruct", "some-8b-instruct-FP8", None),
            ("org/Some-8B-Instruct", "Some-8B-Instruct.Q4_K_M.gguf", None),
            ("org/Some-8B-Instruct", "Some-8B", "base-model-unconfirmed"),
            ("org/Some-8B", "model", "base-model-unconfirmed"),
        ],
    )
    def test_the_model_card_names_it(self, tmp_path: Path, head: Path, base: str, name: str, code: str | None) -> None:
        (head / "README.md").write_text(f"---\nlicense: mit\nbase_model:\n- {base}\n---\n# A head\n")
        found = look(head, self.named_target(tmp_path, name), least=Severity.INFO)
        assert found == ({code} if code else set())

    def test_the_target_says_that_it_is_another(self, tmp_path: Path, head: Path) -> None:
        (head / "README.md").write_text("---\nbase_model: org/Some-8B\n---\n")
        cached = tmp_path / "models--org--Other-8B" / "snapshots" / ("0" * 40)
        copy_changed(TARGET, cached)
        assert look(head, cached) == {"base-model-differs"}

    def test_the_recorded_tokenizer_is_another(self, tmp_path: Path) -> None:
        target = self.named_target(tmp_path, "target")
        content = json.loads((target / "tokenizer.json").read_text())
        content["added_tokens"][2]["content"] = "<|human|>"
        (target / "tokenizer.json").write_text(json.dumps(content))
        assert look(BUNDLE / "eagle", target) == {"recorded-tokenizer-differs"}


class TestMtp:
    """A small target with modules in DeepSeek's layout and in MiMo's."""

    def target(self, tmp_path: Path, modules: int, *, stated: int | None) -> Path:
        def add(tensors: Tensors) -> None:
            for layer in range(8, 8 + modules):
                names = ("enorm.weight", "hnorm.weight", "self_attn.q_proj.weight")
                tensors.update({f"model.layers.{layer}.{name}": ("BF16", (512,)) for name in names})
                tensors[f"model.layers.{layer}.eh_proj.weight"] = ("BF16", (512, 1024))

        keys = {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe"}
        keys |= {} if stated is None else {"num_nextn_predict_layers": stated}
        return copy_changed(TARGET, tmp_path / "glm", config=say(**keys), tensors=add)

    def test_all_there(self, tmp_path: Path) -> None:
        folder = self.target(tmp_path, 2, stated=2)
        found = inspect_checkpoint(folder)
        assert found.findings == ()
        assert found.n_predict == 2
        assert found.mtp is not None
        assert found.mtp.present == (0, 1)
        assert find_mtp_findings(folder) == ()

    @pytest.mark.parametrize(("there", "said"), [(0, "no tensor of such a module"), (1, "only 1 of these modules")])
    def test_lost(self, tmp_path: Path, there: int, said: str) -> None:
        folder = self.target(tmp_path, there, stated=2)
        (finding,) = inspect_checkpoint(folder).findings
        assert (finding.code, finding.severity) == ("mtp-modules-lost", Severity.WARNING)
        assert said in finding.message
        (finding,) = find_mtp_findings(folder, places=("after the layers",))
        assert (finding.code, finding.severity) == ("mtp-tensors-missing", Severity.ERROR)

    def test_incomplete(self, tmp_path: Path) -> None:
        folder = self.target(tmp_path, 1, stated=1)
        tensors = tensors_of(folder)
        del tensors["model.layers.8.eh_proj.weight"]
        write_safetensors(folder / "model.safetensors", tensors)
        (finding,) = find_mtp_findings(folder)
        assert "model.layers.8.eh_proj" in finding.message

    def test_not_stated(self, tmp_path: Path) -> None:
        (finding,) = inspect_checkpoint(self.target(tmp_path, 1, stated=None)).findings
        assert finding.code == "mtp-modules-unstated"

    def test_what_is_nowhere_is_missing_if_the_places_are_known_and_else_unseen(self, tmp_path: Path) -> None:
        for folder in (TARGET, self.target(tmp_path, 0, stated=1)):
            assert [each.code for each in find_mtp_findings(folder)] == ["mtp-modules-unseen"]
            assert [each.code for each in find_mtp_findings(folder, places=("mtp",))] == ["mtp-tensors-missing"]


class TestAdvice:
    """What makes no difference to whether a pair runs."""

    def test_sizes(self, tmp_path: Path) -> None:
        assert look(TARGET, TARGET) == {"drafter-not-smaller"}
        shallow = copy_changed(TARGET, tmp_path / "shallow", config=say(num_hidden_layers=4), tensors=_keep_four_layers)
        assert look(shallow, least=Severity.INFO) == {"size-ratio"}

    def test_precision(self, tmp_path: Path) -> None:
        four = {
            "quant_method": "compressed-tensors",
            "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32}}},
        }
        target = copy_changed(TARGET, tmp_path / "four", config=say(quantization_config=four))
        found = look(BUNDLE / "draft_model", target, least=Severity.INFO)
        assert found == {"target-four-bits", "drafter-unquantized"}
        assert look(BUNDLE / "eagle", target, least=Severity.INFO) == {"target-four-bits"}
        eight = copy_changed(TARGET, tmp_path / "eight", config=say(quantization_config={"quant_method": "fp8"}))
        assert look(BUNDLE / "draft_model", eight, least=Severity.INFO) == {"drafter-unquantized"}
        coarse = copy_changed(BUNDLE / "draft_model", tmp_path / "coarse", config=say(quantization_config=four))
        assert "drafter-coarser-than-target" in look(coarse, eight, least=Severity.INFO)
        assert "drafter-coarser-than-target" not in look(coarse, target, least=Severity.INFO)

    def test_a_draft_model_for_parallel_drafting(self, tmp_path: Path) -> None:
        folder = copy_changed(BUNDLE / "draft_model", tmp_path / "pard", config=say(pard_token=7))
        assert look(folder, least=Severity.INFO) == {"parallel-drafting-trained"}


class TestReleases:
    """What holds in some releases only."""

    def test_layer_ids_were_not_read_at_first(self) -> None:
        def found(version: str) -> list[str]:
            return [finding.code for finding in find_pair_findings(BUNDLE / "eagle3", TARGET, version=Version(version))]

        assert found("0.11.0") == ["layer-ids-ignored"]
        assert found("0.11.1") == []

    def test_biases_were_refused_at_first(self, tmp_path: Path) -> None:
        folder = copy_changed(BUNDLE / "eagle", tmp_path / "eagle", tensors=put("fc.bias", "BF16", 512))
        (early,) = find_pair_findings(folder, TARGET, version=Version("0.24.0"))
        (late,) = find_pair_findings(folder, TARGET, version=Version("0.25.0"))
        assert (early.code, late.code) == ("biases-refused", "biases-dropped")

    def test_four_layers_need_a_late_release(self, tmp_path: Path) -> None:
        keys = say(eagle_aux_hidden_state_layer_ids=[1, 3, 5, 7], num_aux_hidden_states=4)
        folder = copy_changed(
            BUNDLE / "eagle3", tmp_path / "four", config=keys, tensors=put("fc.weight", "BF16", 512, 4 * 512)
        )
        early, late = (find_pair_findings(folder, TARGET, version=Version(v)) for v in ("0.21.0", "0.22.0"))
        assert [finding.code for finding in early] == ["layer-ids-three"]
        assert late == ()

    def test_layers_that_are_not_named(self, tmp_path: Path) -> None:
        folder = copy_changed(
            BUNDLE / "eagle3", tmp_path / "eagle3", config=lambda c: c.pop("eagle_aux_hidden_state_layer_ids")
        )
        (finding,) = find_pair_findings(folder, TARGET)
        assert (finding.code, "[2, 4, 5]" in finding.message) == ("layer-ids-unstated", True)
        shallow = copy_changed(TARGET, tmp_path / "shallow", config=say(num_hidden_layers=4), tensors=_keep_four_layers)
        assert look(folder, shallow) == {"layer-ids-collapse"}


def _keep_four_layers(tensors: Tensors) -> None:
    for name in [name for name in tensors if any(f".layers.{i}." in name for i in range(4, 8))]:
        del tensors[name]


def test_faults_of_both_sides_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write_checkpoint(tmp_path / "b", {}, {})
    (tmp_path / "b" / "model.safetensors").write_bytes(b"")
    with pytest.raises(InvalidSetup) as raised:
        inspect_pair(tmp_path / "b", tmp_path / "a")
    assert [finding.code for finding in raised.value.findings] == ["no-weights", "no-config-json", "damaged-weights"]
    assert find_pair_findings(tmp_path / "b", tmp_path / "a") == raised.value.findings


def test_every_rule_of_the_area_is_emitted_somewhere() -> None:
    rows = json.loads(files("draftwise.knowledge").joinpath("data/rules/checkpoint.json").read_text())
    folder = Path(checkpoints.__file__).parent
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    assert [row["code"] for row in rows if f'"{row["code"]}"' not in source] == []


def test_a_directory_without_weights_is_no_fault_of_a_setup(tmp_path: Path) -> None:
    shutil.copy(BUNDLE / "eagle3" / "config.json", tmp_path)
    (finding,) = find_pair_findings(tmp_path, TARGET)
    assert (finding.code, finding.severity) == ("weights-not-inspected", Severity.INFO)
    assert find_mtp_findings(tmp_path)[0].code == "weights-not-inspected"
    with pytest.raises(InvalidSetup):
        inspect_pair(tmp_path, TARGET)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**40) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = sorted(
    {key for path in BUNDLE.glob("*/config.json") for key in json.loads(path.read_text())}
    | {"quantization_config", "eagle_config", "text_config", "speculators_config", "transformer_layer_config",
       "speculators_model_type", "draft_vocab_size", "mtp_config", "target_layer_ids", "markov_rank"}
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["eagle3", "dflash", "medusa", "mlp_speculator", "mtp", "draft_model", "eagle"]),
    config=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4),
    architecture=st.sampled_from(["", "LlamaForCausalLM", "Qwen3DSparkModel", "EagleX", "Qwen3ForCausalLM"]),
)
def test_no_config_makes_it_stumble(tmp_path: Path, name: str, config: Config, architecture: str) -> None:
    folder = tmp_path / name
    if not folder.exists():
        copy_changed(BUNDLE / name, folder)
    changed = json.loads((BUNDLE / name / "config.json").read_text()) | config
    if architecture:
        changed["architectures"] = [architecture]
    (folder / "config.json").write_text(json.dumps(changed))
    try:
        pair = inspect_pair(folder, TARGET)
        other = inspect_pair(BUNDLE / "eagle3", folder)
    except InvalidSetup:
        return
    json.dumps([write_out(pair), write_out(other)])


def test_one_vocabulary_as_prefix_of_the_other_is_no_fault(tmp_path: Path) -> None:
    folder = copy_changed(BUNDLE / "draft_model", tmp_path / "draft_model")
    content = json.loads((folder / "tokenizer.json").read_text())
    added = {row["content"]: row["id"] for row in content["added_tokens"]}
    kept = {token: i for token, i in content["model"]["vocab"].items() if i < 4000}
    write_vocabulary(folder, kept, added, merges=content["model"]["merges"], pre_tokenizer=content["pre_tokenizer"])
    pair = inspect_pair(folder, TARGET)
    assert pair.tokenizers is not None
    assert pair.tokenizers.verdict == "prefix"
    assert pair.findings == ()


@pytest.mark.parametrize("head", ["eagle3", "eagle", "medusa", "mlp_speculator", "mtp", "dflash"])
@pytest.mark.parametrize("drafter", ["medusa", "draft_model"])
def test_nothing_drafts_for_a_head(drafter: str, head: str) -> None:
    found = inspect_pair(BUNDLE / drafter, BUNDLE / head)
    assert "target-is-head" in {each.code for each in found.findings}
    assert not found.fits
