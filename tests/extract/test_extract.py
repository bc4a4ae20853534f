from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from draftwise.extract import (
    choices,
    config_checks,
    engine,
    gpu_limits,
    model_registry,
    mtp_remap,
    server_surface,
    speculative,
)
from draftwise.extract.dataclass_fields import fields_of, type_text
from draftwise.extract.expressions import UNKNOWN, evaluate, literal, written
from draftwise.extract.tree import NotFound, Tree
from draftwise.extract.vllm_flags import _added

Wheel = Callable[..., Path]


def _tree(wheel: Wheel, files: dict[str, str]) -> Tree:
    return Tree(wheel("1.0", files) / "1.0", "1.0")


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


SPECULATIVE = """
    from typing import Literal, get_args
    from vllm.config.utils import config
    from vllm.other import Backend
    MTPModelTypes = Literal["deepseek_mtp", "mtp"]
    SpeculativeMethod = Literal["ngram", MTPModelTypes, "eagle"]

    @config
    class SpeculativeConfig:
        num_speculative_tokens: int = Field(default=None, gt=0)
        method: SpeculativeMethod | None = None
        backend: "Optional[Backend]" = None
        kind: ClassVar[str] = "x"
        sizes: list[int] = field(default_factory=lambda: [1, 2 * 4])
        by_scheme: dict[str, MTPModelTypes] | None = None
        resolved: bool = field(default=False, init=False)
        _private: int = 0

        @staticmethod
        def hf_config_override(hf_config):
            if hf_config.model_type in ("deepseek_v3", "deepseek_v32"):
                hf_config.model_type = "deepseek_mtp"
            if hf_config.model_type == "deepseek_mtp":
                n_predict = getattr(hf_config, "num_nextn_predict_layers", None)
                hf_config.update({"n_predict": n_predict, "architectures": ["DeepSeekMTPModel"]})
            if hf_config.architectures[0] == "MiMoForCausalLM":
                hf_config.model_type = "mimo_mtp"
                hf_config.update({"n_predict": 2, "architectures": ["MiMoMTPModel"]})
            if hf_config.model_type == "hybrid" and hasattr(hf_config, "layers") and hf_config.layers > 0:
                hf_config.model_type = "hybrid_mtp"
            if "exa" in hf_config.model_type:
                hf_config.model_type = "exa_mtp"
            return hf_config

        def __post_init__(self):
            if self.method in ("eagle", "eagle3"):
                pass
            elif "eagle-" in self.draft_model_config.model.lower():
                self.method = "eagle"
            elif "dspark" in self.draft_model_config.model.lower() or (
                "DSpark" in self.draft_model_config.architectures
                and self.draft_model_config.hf_config.model_type == "qwen3"
            ):
                self.method = "dspark"
            elif self.draft_model_config.hf_config.model_type in get_args(MTPModelTypes):
                self.method = "mtp"

        def _verify_args(self):
            eagle3_target_supported = ["llama", "qwen"]
"""
FILES = {
    "vllm/config/speculative.py": SPECULATIVE,
    "vllm/config/utils.py": 'def config(cls):\n    return dataclass(cls, config=ConfigDict(extra="forbid"))\n',
    "vllm/other.py": "import enum\nclass Backend(enum.Enum):\n    FLASH = enum.auto()\n    TRITON = enum.auto()\n",
}


def test_methods_carry_the_alias_that_lists_them(wheel: Wheel) -> None:
    table = speculative.methods(_tree(wheel, FILES))
    assert {name: row["group"] for name, (row, _) in table.items()} == {
        "ngram": "SpeculativeMethod",
        "eagle": "SpeculativeMethod",
        "deepseek_mtp": "MTPModelTypes",
        "mtp": "MTPModelTypes",
    }
    assert table["mtp"][1] == "vllm/config/speculative.py: MTPModelTypes"


def test_fields_have_type_default_bounds_and_choices(wheel: Wheel) -> None:
    table = {name: row for name, (row, _) in speculative.spec_fields(_tree(wheel, FILES)).items()}
    assert table == {
        "num_speculative_tokens": {"type": "int", "default": None, "gt": 0},
        "method": {
            "type": "SpeculativeMethod | None",
            "default": None,
            "choices": ["ngram", "deepseek_mtp", "mtp", "eagle"],
        },
        "backend": {"type": "Backend | None", "default": None, "choices": ["FLASH", "TRITON"]},
        "sizes": {"type": "list[int]", "default": [1, 8]},
        "by_scheme": {"type": "dict[str, MTPModelTypes] | None", "default": None, "choices": ["deepseek_mtp", "mtp"]},
    }


def test_unknown_keys_are_rejected_where_the_shared_decorator_forbids_them(wheel: Wheel) -> None:
    arguments = {"vllm/engine/arg_utils.py": "class EngineArgs:\n    def create_speculative_config(self): pass\n"}
    tree = _tree(wheel, FILES | arguments)
    assert speculative.spec_rules(tree)["unknown_keys"][0] == "rejected"
    assert speculative.spec_rules(tree)["dashes_in_keys"][0] == "rejected"
    plain = FILES | arguments | {"vllm/config/utils.py": "def config(cls):\n    return cls\n"}
    assert speculative.spec_rules(_tree(wheel, plain))["unknown_keys"][0] == "ignored"


def test_the_remap_is_followed_through_all_its_steps(wheel: Wheel) -> None:
    table = {name: row for name, (row, _) in mtp_remap.mtp_remap(_tree(wheel, FILES)).items()}
    assert table["deepseek_v32"] == {
        "by": "model_type",
        "model_type": "deepseek_mtp",
        "architectures": ["DeepSeekMTPModel"],
        "n_predict": "num_nextn_predict_layers",
        "n_predict_default": None,
    }
    assert table["MiMoForCausalLM"]["by"] == "architecture"
    assert table["MiMoForCausalLM"]["n_predict"] == 2
    assert table["hybrid"] == {"by": "model_type", "model_type": "hybrid_mtp", "requires": ["layers"]}
    assert table["exa"] == {"by": "part_of_model_type", "model_type": "exa_mtp"}


def test_inference_keeps_alternatives_and_order(wheel: Wheel) -> None:
    table = {name: row for name, (row, _) in speculative.method_inference(_tree(wheel, FILES)).items()}
    assert table == {
        "eagle": [{"name": "eagle-"}],
        "dspark": [{"name": "dspark"}, {"architecture": "DSpark", "model_type": "qwen3"}],
        "mtp": [{"model_type_in": "MTPModelTypes"}],
        "order": ["eagle", "dspark", "mtp"],
    }


def test_targets_of_eagle3(wheel: Wheel) -> None:
    assert set(speculative.aux_targets(_tree(wheel, FILES))) == {"llama", "qwen"}


def test_interfaces_are_found_through_files_aliases_and_factories(wheel: Wheel) -> None:
    package = "vllm/model_executor/models"
    tree = _tree(
        wheel,
        {
            f"{package}/interfaces.py": """
                class SupportsPP(Protocol):
                    supports_pp: ClassVar[Literal[True]] = True
                class SupportsEagleBase(Protocol): ...
                class SupportsEagle3(SupportsEagleBase, Protocol):
                    supports_eagle3: ClassVar[Literal[True]] = True
            """,
            f"{package}/llama.py": """
                from .interfaces import SupportsEagle3
                class LlamaForCausalLM(nn.Module, SupportsEagle3): ...
            """,
            f"{package}/other.py": """
                from vllm.model_executor.models.llama import LlamaForCausalLM as Base
                class OtherForCausalLM(Base):
                    supports_pp = True
                    def forward(self, input_ids, intermediate_tensors=None): ...
                class HeadForCausalLM(OtherForCausalLM):
                    def forward(self, input_ids, hidden_states): ...
                Classifier = as_classifier(OtherForCausalLM)
            """,
            f"{package}/registry.py": """
                _TEXT_GENERATION_MODELS = {
                    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
                    "Other": ("other", "OtherForCausalLM"),
                    "Head": ("other", "HeadForCausalLM"),
                }
                _EMBEDDING_MODELS = {
                    "OtherClassifier": ("other", "Classifier"),
                    **{k: (mod, arch) for k, (mod, arch) in _TEXT_GENERATION_MODELS.items()
                       if arch == "LlamaForCausalLM"},
                }
                _VLLM_MODELS = {**_TEXT_GENERATION_MODELS, **_EMBEDDING_MODELS}
            """,
        },
    )
    table = {name: row for name, (row, _) in model_registry.architectures(tree).items()}
    assert table["LlamaForCausalLM"]["interfaces"] == ["SupportsEagle3"]
    assert table["LlamaForCausalLM"]["group"] == "text_generation"
    assert table["Head"]["interfaces"] == ["SupportsEagle3"], "its forward takes nothing from an earlier stage"
    assert table["Other"]["interfaces"] == table["OtherClassifier"]["interfaces"] == ["SupportsEagle3", "SupportsPP"]


def test_a_class_that_is_gone_is_not_a_silent_gap(wheel: Wheel) -> None:
    registry = '_A_MODELS = {"X": ("x", "X")}\n_VLLM_MODELS = {**_A_MODELS}\n'
    tree = _tree(
        wheel,
        {"vllm/model_executor/models/registry.py": registry, "vllm/model_executor/models/x.py": "class Y: ...\n"},
    )
    with pytest.raises(NotFound, match="no class X"):
        model_registry.architectures(tree)


def test_config_types_are_read_from_every_way_of_writing_the_registry(wheel: Wheel) -> None:
    path = "vllm/transformers_utils/config.py"
    old = """
        _MORE = {"mllama": MllamaConfig}
        _CONFIG_REGISTRY = {"dbrx": DbrxConfig, **_MORE}
    """
    lazy = '_CONFIG_REGISTRY = LazyConfigDict(beam="BeamConfig", **{"deepseek_v41": "V41Config", "o-c-r": "OCR"})'
    assert {name: cls for name, (cls, _) in model_registry.config_model_types(_tree(wheel, {path: old})).items()} == {
        "dbrx": "DbrxConfig",
        "mllama": "MllamaConfig",
    }
    assert {name: cls for name, (cls, _) in model_registry.config_model_types(_tree(wheel, {path: lazy})).items()} == {
        "beam": "BeamConfig",
        "deepseek_v41": "V41Config",
        "o-c-r": "OCR",
    }
    with pytest.raises(NotFound, match="_CONFIG_REGISTRY is not read"):
        model_registry.config_model_types(_tree(wheel, {path: "_CONFIG_REGISTRY = LazyConfigDict(**more())"}))


def test_quantization_methods_that_live_on_a_quantized_checkpoint(wheel: Wheel) -> None:
    layers = "vllm/model_executor/layers/quantization"
    tree = _tree(
        wheel,
        {
            "vllm/config/quantization.py": '_ONLINE_SHORTHANDS = {"mxfp8": args()}\n',
            f"{layers}/__init__.py": """
                QuantizationMethods = Literal["awq", "fp8", "quark", "mxfp8", "new"]
                DEPRECATED_QUANTIZATION_METHODS = ["quark", "gone"]
                def get_quantization_config(name):
                    from .all import AwqConfig, Fp8Config, QuarkConfig
                    if current_platform.is_cuda():
                        from .all import CudaConfig
                        new = CudaConfig
                    method_to_config: dict[str, type] = {
                        "awq": AwqConfig, "fp8": Fp8Config, "quark": QuarkConfig, "mxfp8": AwqConfig, "new": new,
                    }
                    return method_to_config[name]
            """,
            f"{layers}/all.py": """
                class QuantizationConfig:
                    def override_quantization_method(cls, config, asked): return None
                class Fp8Config(QuantizationConfig):
                    def __init__(self, bits=8): ...
                    def get_min_capability(cls): return 75
                    def get_config_filenames(): return []
                class AwqConfig(Fp8Config):
                    def override_quantization_method(cls, config, asked): return "awq"
                    def get_config_filenames(): return ["quant_config.json"]
                class QuarkConfig(Fp8Config):
                    def __init__(self, layers, bits=8): ...
                    def get_min_capability(cls): raise NotImplementedError
                class CudaConfig(Fp8Config): ...
            """,
        },
    )
    table = {name: row for name, (row, _) in choices.quantization_methods(tree).items()}
    assert {name for name, row in table.items() if row["needs_checkpoint"]} == {"awq", "quark"}
    assert {name for name, row in table.items() if row["deprecated"]} == {"quark"}
    assert {name for name, row in table.items() if row["overrides"]} == {"awq", "mxfp8"}
    assert {name: row["capability"] for name, row in table.items()} == {
        "awq": 75, "fp8": 75, "quark": None, "mxfp8": 75, "new": 75,
    }  # fmt: skip


def test_backends_and_schemes_say_which_gpus_they_take(wheel: Wheel) -> None:
    schemes = "vllm/model_executor/layers/quantization/compressed_tensors"
    files = {
        "vllm/v1/attention/backends/registry.py": """
            class AttentionBackendEnum(Enum):
                ONE = "vllm.one.One"
                TWO = "vllm.one.Two"
        """,
        "vllm/one.py": """
            class AttentionBackend:
                def supports_kv_cache_dtype(cls, kind): ...
                def supports_compute_capability(cls, capability): return True
            class One(AttentionBackend):
                supported_kv_cache_dtypes: list = ["auto", "fp8"]
                def supports_compute_capability(cls, capability):
                    return capability >= DeviceCapability(8, 0) and capability.major in [8, 9]
            class Two(One):
                supported_kv_cache_dtypes: list = ["nvfp4"]
                def supports_kv_cache_dtype(cls, kind): return current_platform.is_device_capability_family(100)
                def supports_compute_capability(cls, capability): return asks(capability)
        """,
        f"{schemes}/compressed_tensors.py": """
            class CompressedTensorsConfig:
                def _is_fp8_w4a8_sm90(cls, weights): return cls.check(90, match_exact=True)
        """,
        f"{schemes}/schemes/w4.py": """
            class CompressedTensorsW4A8Fp8:
                def get_min_capability(cls): return 90
            class CompressedTensorsWNA16:
                def get_min_capability(cls): return 75
        """,
    }
    tree = _tree(wheel, files)
    rows = {name: row for name, (row, _) in gpu_limits.cache_backends(tree).items()}
    assert (rows["ONE"]["kinds"], rows["ONE"]["capabilities"]) == (["auto", "fp8"], [80, 86, 89, 90])
    assert (rows["ONE"]["decides"], rows["TWO"]["decides"]) == (False, True)
    assert (rows["TWO"]["capabilities"], rows["TWO"]["nvfp4"]) == (None, [100])
    assert {name: row for name, (row, _) in gpu_limits.weight_schemes(tree).items()} == {
        "W4A8Fp8": {"capability": 90, "only": True},
        "WNA16": {"capability": 75, "only": False},
    }


def test_variables_are_those_of_the_list_and_those_that_other_files_read(wheel: Wheel) -> None:
    files = {
        "vllm/envs.py": 'environment_variables: dict = {"VLLM_A": lambda: os.getenv("VLLM_A")}\n',
        "vllm/b.py": 'NAME = "VLLM_C"\nos.getenv(NAME)\nos.environ["VLLM_SET"] = "1"\nos.environ.get("VLLM_B", "")\n',
        "vllm/hpu_worker.py": 'os.getenv("VLLM_HPU_X")\n',
    }
    assert {*server_surface.env(_tree(wheel, files))} == {"VLLM_A", "VLLM_B", "VLLM_C"}


def test_flags_follow_fields_and_plain_arguments(wheel: Wheel) -> None:
    tree = _tree(
        wheel,
        {
            "vllm/engine/arg_utils.py": """
                from typing import Literal
                @config
                class C:
                    size: int = 3
                    on: bool | None = None
                    mode: Literal["a", "b"] = "b"
                    names: list[str] | None = None
                    extra: dict = field(default_factory=dict)
                def add_cli_args(parser):
                    kwargs = get_kwargs(C)
                    kwargs["mode"]["choices"].remove("a")
                    parser.add_argument("--size", "-s", **kwargs["size"])
                    parser.add_argument("--on", **{**kwargs["on"], "default": False})
                    parser.add_argument("--mode", **kwargs["mode"])
                    parser.add_argument("--names", **kwargs["names"])
                    parser.add_argument("--extra", **kwargs["extra"])
                    parser.add_argument("--quiet", action="store_true")
            """
        },
    )
    module = tree.get("vllm/engine/arg_utils.py")
    rows = {names[0]: row for names, row in _added(module, module.get_function("add_cli_args"))}
    assert rows["--size"] == {"kind": "value", "type": "int", "default": 3}
    assert rows["--on"] == {"kind": "switch", "type": "bool | None", "default": False, "negatable": True}
    assert rows["--mode"]["choices"] == ["b"]
    assert rows["--names"]["kind"] == "list"
    assert rows["--extra"] == {"kind": "json", "type": "dict", "default": {}}
    assert rows["--quiet"] == {"kind": "switch", "type": "bool", "default": False}


def test_a_check_that_is_called_after_the_fields_are_set_is_named(wheel: Wheel) -> None:
    tree = _tree(
        wheel,
        {
            "vllm/config/made.py": """
                @config
                class MadeConfig:
                    size: int = 3
                    def verify_size(self):
                        if self.size > 3:
                            raise ValueError("too large")
            """,
            "vllm/engine/arg_utils.py": """
                import copy
                from vllm.config.made import MadeConfig
                @dataclass
                class EngineArgs:
                    size: int = 3
                    made_config: MadeConfig = get_field(C, "made")
                    other_config: MadeConfig = get_field(C, "other")
                    @staticmethod
                    def add_cli_args(parser):
                        pass
                    def create_engine_config(self):
                        made_config = copy.deepcopy(self.made_config)
                        made_config.size = self.size
                        made_config.verify_size()
                        other_config = copy.deepcopy(self.other_config)
                        other_config.size = self.size
            """,
        },
    )
    ((_, (row, _)),) = config_checks.config_arguments(tree).items()
    assert row == {"value": "size", "when": "True", "assigned": True, "validated": "verify_size"}


def test_sampling_parameters_under_speculation(wheel: Wheel) -> None:
    tree = _tree(
        wheel,
        {
            "vllm/sampling_params.py": """
                class SamplingParams:
                    min_p: float = 0.0
                    min_tokens: int = 0
                    temperature: float = 1.0
                    _hidden: int = 0
                    def _validate_spec_decode(self, speculative_config):
                        if self.min_p > _EPS:
                            raise ValueError("min_p is not yet supported with speculative decoding.")
            """,
            "vllm/v1/sample/logits_processor/__init__.py": """
                def build():
                    logger.warning("min_p and min_tokens parameters won't work with speculative decoding.")
            """,
        },
    )
    table = {name: effect for name, (effect, _) in server_surface.sampling_params(tree).items()}
    assert table == {"min_p": "rejected", "min_tokens": "ignored", "temperature": "supported"}


def test_batch_sizes_by_device(wheel: Wheel) -> None:
    tree = _tree(
        wheel,
        {
            "vllm/engine/arg_utils.py": """
                class EngineArgs:
                    def get_batch_defaults(cls, world_size):
                        if device_memory >= 70 * GiB_bytes and "a100" not in device_name:
                            default_max_num_seqs = {UsageContext.LLM_CLASS: 1024}
                        else:
                            default_max_num_seqs = {UsageContext.LLM_CLASS: 256}
                        if current_platform.is_cpu():
                            default_max_num_seqs = {UsageContext.OPENAI_API_SERVER: 128 * world_size}
            """
        },
    )
    assert {key: row for key, (row, _) in engine.batch_defaults(tree).items()} == {
        "gpu>=70": {"not_named": ["a100"], "max_num_seqs": {"offline": 1024}},
        "gpu": {"max_num_seqs": {"offline": 256}},
        "cpu": {"per_gpu": True, "max_num_seqs": {"server": 128}},
    }


def test_values_are_worked_out_across_modules_or_said_to_be_unknown(wheel: Wheel) -> None:
    tree = _tree(
        wheel,
        {
            "vllm/a.py": """
                from typing import TYPE_CHECKING
                from .b import *
                import vllm.b as b
                if TYPE_CHECKING:
                    from vllm.b import Names
                    class Stand: ...
                else:
                    Names = str
                    Stand = b.Real
                KIB = 2 ** 10
            """,
            "vllm/b.py": """
                Names = Literal["x", Literal["y"]]
                LIMIT = 3
                class Real:
                    size: int = Field(default=LIMIT, ge=1)
            """,
        },
    )
    module = tree.get("vllm/a.py")
    values = [
        evaluate(module, _expression(text)) for text in ("4 * KIB", "b.Real.size", "[*get_args(Names), not LIMIT]")
    ]
    assert values == [4096, 3, ["x", "y", False]]
    assert literal(module, _expression("Names")) == ["x", "y"]
    assert evaluate(module, _expression("os.environ['X']")) is UNKNOWN
    assert written(module, _expression("compute()")) == {"expression": "compute()"}
    resolved = tree.resolve(module, "Stand")
    assert resolved is not None
    assert ast.unparse(resolved[1]) == "b.Real"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new"),
    [("Optional[int]", "int | None"), ("Union[str, Optional[X]]", "str | X | None"), ("me_quant.Methods", "Methods")],
)
def test_types_are_written_in_one_spelling(old: str, new: str) -> None:
    assert type_text(_expression(old)) == new


def test_fields_of_a_base_come_first(wheel: Wheel) -> None:
    source = "@config\nclass A:\n    a: int = 1\n@config\nclass B(A):\n    b: int = 2\n    a: int = 5\n"
    module = _tree(wheel, {"vllm/c.py": source}).get("vllm/c.py")
    found = fields_of(module, module.get_class("B"))
    assert [(field.name, field.default, field.owner) for field in found.values()] == [("a", 5, "B"), ("b", 2, "B")]
