"""Model directories for the oracle: config.json files and nothing else, each with what one rule of vLLM looks at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftwise.knowledge.model_copies import UNKNOWN
from draftwise.knowledge.models import read_models

__all__ = [
    "DECODERS",
    "DRAFTERS",
    "MODELS",
    "PUBLISHED",
    "SHAPES_OF_TYPES",
    "TARGETS",
    "Config",
    "write_models",
    "write_names",
]

Config = Mapping[str, Any]

_VOCABULARY = 2000
_CONTEXT = 2048


def _dense(model_type: str, architecture: str, **changes: Any) -> Config:
    """Return a tiny dense decoder, small enough to read and divisible by two and by four GPUs."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": _VOCABULARY,
        "max_position_embeddings": _CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    } | changes


_LLAMA = _dense("llama", "LlamaForCausalLM")
_HEAD = _dense("llama", "LlamaForCausalLM", num_hidden_layers=1)
_MOE = {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
        "first_k_dense_replace": 1, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
        "norm_topk_prob": True}  # fmt: skip
_MLA = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
_DEEPSEEK = _dense(
    "deepseek_v3", "DeepseekV3ForCausalLM", **_MOE, **_MLA, topk_method="noaux_tc", scoring_func="sigmoid",
    num_nextn_predict_layers=1,
)  # fmt: skip
_QWEN3_NEXT = _dense(
    "qwen3_next", "Qwen3NextForCausalLM", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128,
    shared_expert_intermediate_size=128, decoder_sparse_step=1, full_attention_interval=4, linear_conv_kernel_dim=4,
    linear_key_head_dim=64, linear_value_head_dim=64, linear_num_key_heads=4, linear_num_value_heads=8,
    mlp_only_layers=[], partial_rotary_factor=0.25, num_nextn_predict_layers=1,
)  # fmt: skip
_GEMMA3 = _dense(
    "gemma3_text", "Gemma3ForCausalLM", sliding_window=512, query_pre_attn_scalar=64,
    hidden_activation="gelu_pytorch_tanh", sliding_window_pattern=2, rope_local_base_freq=10000.0,
)  # fmt: skip
DECODERS: Config = _dense("", "")
"""The keys that every tiny decoder has."""

SHAPES_OF_TYPES: Mapping[str, Config] = {"deepseek_v3": {**_MOE, **_MLA}, "glm4_moe": _MOE, "qwen3_next": _QWEN3_NEXT}
"""What a model type needs beside `DECODERS`."""


def _speculators(kind: str, verifier: str = "llama", tokens: int = 3, **changes: Any) -> Config:
    """Return a checkpoint as the speculators library writes it."""
    return {
        "architectures": [f"{kind.capitalize()}Speculator"],
        "speculators_model_type": kind,
        "speculators_version": "0.3.0",
        "draft_vocab_size": 1000,
        "norm_before_residual": True,
        "target_hidden_size": None,
        "transformer_layer_config": dict(_HEAD),
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": verifier},
        },
        "torch_dtype": "bfloat16",
    } | changes


TARGETS: Mapping[str, Config] = {
    "llama": _LLAMA,
    "llama-rope": _dense("llama", "LlamaForCausalLM", max_position_embeddings=8192),
    "llama-fp8": {**_LLAMA, "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}},
    "qwen2": _dense("qwen2", "Qwen2ForCausalLM"),
    "qwen3": _dense("qwen3", "Qwen3ForCausalLM"),
    "mistral": _dense("mistral", "MistralForCausalLM"),
    "gemma2": _dense(
        "gemma2", "Gemma2ForCausalLM", sliding_window=512, query_pre_attn_scalar=64,
        hidden_activation="gelu_pytorch_tanh"
    ),
    "gemma3": _GEMMA3,
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 256, "n_layer": 2, "n_head": 4,
        "n_positions": 1024, "n_ctx": 1024, "vocab_size": _VOCABULARY, "torch_dtype": "bfloat16",
    },
    "opt": {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 256, "num_hidden_layers": 2,
        "ffn_dim": 512,
        "num_attention_heads": 4, "max_position_embeddings": _CONTEXT, "vocab_size": _VOCABULARY,
        "torch_dtype": "float16",
        "do_layer_norm_before": True, "word_embed_proj_dim": 256,
    },
    "deepseek": _DEEPSEEK,
    "deepseek-2": {**_DEEPSEEK, "num_nextn_predict_layers": 2},
    "deepseek-no-mtp": {key: value for key, value in _DEEPSEEK.items() if key != "num_nextn_predict_layers"},
    "mimo": _dense(
        "mimo", "MiMoForCausalLM", num_nextn_predict_layers=1, auto_map={"AutoConfig": "configuration_mimo.MiMoConfig"}
    ),
    "glm4-moe": _dense(
        "glm4_moe", "Glm4MoeForCausalLM", **_MOE, num_nextn_predict_layers=1, use_qk_norm=True,
        partial_rotary_factor=0.5
    ),
    "qwen3-next": _QWEN3_NEXT,
    "qwen3-next-fp8": {**_QWEN3_NEXT, "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}},
    "ernie": _dense(
        "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", moe_num_experts=8, moe_k=2, moe_intermediate_size=128,
        moe_layer_start_index=1, moe_layer_interval=1, moe_num_shared_experts=1, num_nextn_predict_layers=1,
        use_bias=False,
    ),
    "gpt-oss": _dense(
        "gpt_oss", "GptOssForCausalLM", num_local_experts=8, num_experts_per_tok=2, sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
    "mixtral": _dense("mixtral", "MixtralForCausalLM", num_local_experts=8, num_experts_per_tok=2),
    "phi3": _dense("phi3", "Phi3ForCausalLM", pad_token_id=0),
    "minicpm": _dense(
        "minicpm", "MiniCPMForCausalLM", scale_emb=12, dim_model_base=256, scale_depth=1.4,
        auto_map={"AutoConfig": "configuration_minicpm.MiniCPMConfig"},
    ),
    "deepseek-v32": {**_DEEPSEEK, "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32",
                     "index_topk": 64, "index_n_heads": 4, "index_head_dim": 64},
    "longcat": _dense(
        "longcat_flash", "LongcatFlashForCausalLM", **_MLA, n_routed_experts=8, moe_topk=2, expert_ffn_hidden_size=128,
        ffn_hidden_size=512, num_layers=2, zero_expert_num=2, zero_expert_type="identity", routed_scaling_factor=1.0,
        num_nextn_predict_layers=1, attention_method="MLA",
    ),
    "exaone-moe": _dense(
        "exaone_moe", "ExaoneMoEForCausalLM", num_experts=8, num_experts_per_tok=2, num_shared_experts=1,
        moe_intermediate_size=128, first_k_dense_replace=1, n_group=1, topk_group=1, num_nextn_predict_layers=1,
        sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 2, is_moe_layer=[False, True, True,
                                                                                                   True],
    ),
    "glm4-moe-lite": _dense(
        "glm4_moe_lite", "Glm4MoeLiteForCausalLM", **_MOE, **_MLA, num_nextn_predict_layers=1
    ),
    "qwen3-5": _dense(
        "qwen3_5_text", "Qwen3_5ForCausalLM", full_attention_interval=4, linear_conv_kernel_dim=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64, linear_num_key_heads=4, linear_num_value_heads=8, mtp_num_hidden_layers=1,
        partial_rotary_factor=0.25,
    ),
    "gemma3-vision": {
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
        "image_token_index": 5, "boi_token_index": 6, "eoi_token_index": 7, "mm_tokens_per_image": 4,
        "text_config": dict(_GEMMA3),
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 128, "image_size": 56,
                          "intermediate_size": 256,
                          "num_attention_heads": 2, "num_hidden_layers": 2, "patch_size": 14},
    },
    "speculators-eagle3": _speculators("eagle3"),
    "speculators-peagle": _speculators("peagle", mask_token_id=7),
    "speculators-dflash": _speculators("dflash", mask_token_id=7, aux_hidden_state_layer_ids=[1, 2, 3], block_size=8),
    "speculators-eagle3-qwen3": _speculators(
        "eagle3", "qwen3", 5, transformer_layer_config={**_HEAD, "model_type": "qwen3",
                                                        "architectures": ["Qwen3ForCausalLM"]}
    ),
}  # fmt: skip
"""Models that can be served, by the directory's name."""

_MEDUSA = {"architectures": ["MedusaModel"], "medusa_num_heads": 3, "medusa_num_layers": 1, "hidden_size": 256,
           "vocab_size": _VOCABULARY, "truncated_vocab_size": None, "torch_dtype": "bfloat16"}  # fmt: skip
_EAGLE3 = _dense("llama", "LlamaForCausalLMEagle3", num_hidden_layers=1, draft_vocab_size=1000)
_DFLASH = _dense(
    "qwen3", "DFlashDraftModel", block_size=8, num_target_layers=4,
    dflash_config={"mask_token_id": 7, "target_layer_ids": [0, 1, 2]},
)  # fmt: skip
_DSPARK = _dense(
    "qwen3", "Qwen3DSparkModel", block_size=7, target_layer_ids=[0, 1, 2], mask_token_id=7, markov_rank=16,
    markov_head_type="vanilla", num_target_layers=4,
)  # fmt: skip

DRAFTERS: Mapping[str, Config | None] = {
    "small-llama": _dense("llama", "LlamaForCausalLM", num_hidden_layers=1),
    "small-qwen2": _dense("qwen2", "Qwen2ForCausalLM", num_hidden_layers=1),
    "small-qwen3": _dense("qwen3", "Qwen3ForCausalLM", num_hidden_layers=1),
    "small-llama-other-vocabulary": _dense("llama", "LlamaForCausalLM", num_hidden_layers=1, vocab_size=1024),
    "small-llama-short": _dense("llama", "LlamaForCausalLM", num_hidden_layers=1, max_position_embeddings=512),
    "small-llama-long": _dense("llama", "LlamaForCausalLM", num_hidden_layers=1, max_position_embeddings=16384),
    "small-llama-fp8": {**_HEAD, "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}},
    "Qwen2.5-0.5B": _dense("qwen2", "Qwen2ForCausalLM", num_hidden_layers=1),
    "small.llama": _HEAD,
    "my-eagle-llama": _HEAD,
    "eagle3-named-llama": _HEAD,
    "dflash-named-llama": _HEAD,
    "dspark-named-llama": _HEAD,
    "org/EAGLE-LLaMA3-Instruct-8B": _HEAD,
    "org/EAGLE3-LLaMA3.1-Instruct-8B": _EAGLE3,
    "org/Qwen3-8B_eagle3": _dense("llama", "LlamaForCausalLMEagle3", num_hidden_layers=1, draft_vocab_size=1000),
    "head-without-hint": _EAGLE3,
    "eagle-head-own-architecture": _dense("llama", "EagleLlamaForCausalLM", num_hidden_layers=1),
    "head-eagle-type": {"architectures": ["EAGLE"], "model_type": "eagle", "model": dict(_HEAD)},
    "head-eagle3-llama-own-architecture": _dense("llama", "Eagle3LlamaForCausalLM", num_hidden_layers=1),
    "head-eagle3-short": {**_EAGLE3, "max_position_embeddings": 512},
    "head-eagle3-unregistered": _dense("gpt2", "GPT2LMHeadModel", num_hidden_layers=1),
    "peagle-head-eagle3": {**_EAGLE3, "ptd_token_id": 7, "pard_token": 7},
    "pard-llama": _dense("llama", "LlamaForCausalLM", num_hidden_layers=1, pard_token=7),
    "medusa-typed": {**_MEDUSA, "model_type": "medusa"},
    "medusa-untyped": _MEDUSA,
    "mlp": {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator", "n_predict": 3,
            "n_candidates": 5, "top_k_tokens_per_head": [5, 4, 3], "emb_dim": 256, "inner_dim": 256,
            "vocab_size": _VOCABULARY, "torch_dtype": "bfloat16"},
    "org/Qwen3-8B-DFlash-b16": _DFLASH,
    "block-drafter": _DFLASH,
    "org/dspark_qwen3_8b_block7": _DSPARK,
    "semi-block-drafter": _DSPARK,
    "spec-eagle3": _speculators("eagle3"),
    "spec-peagle": _speculators("peagle", mask_token_id=7),
    "spec-dflash": _speculators("dflash", mask_token_id=7, aux_hidden_state_layer_ids=[1, 2, 3], block_size=8),
    "spec-dflash2": _speculators("dflash2", mask_token_id=7, aux_hidden_state_layer_ids=[1, 2, 3], block_size=8),
    "spec-dspark": _speculators(
        "dspark", mask_token_id=7, aux_hidden_state_layer_ids=[1, 2, 3], block_size=7, markov_rank=16
    ),
    "spec-unknown": _speculators("hydra"),
    "no-config": None,
    "no-architectures": {key: value for key, value in _HEAD.items() if key != "architectures"},
}  # fmt: skip
"""Drafters, by the directory's name; None is a directory without config.json. vLLM reads methods off some names."""

PUBLISHED: Mapping[str, str] = {
    "facebook/opt-6.7b": "opt",
    "facebook/opt-125m": "opt",
    "meta-llama/Meta-Llama-3-8B-Instruct": "llama",
    "meta-llama/Meta-Llama-3.1-70B-Instruct": "llama",
    "meta-llama/Llama-3.1-8B-Instruct": "llama",
    "meta-llama/Llama-3.3-70B-Instruct": "llama",
    "meta-llama/Llama-3.2-1B-Instruct": "small-llama",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2",
    "Qwen/Qwen2.5-0.5B-Instruct": "small-qwen2",
    "Qwen/Qwen3-8B": "qwen3",
    "Qwen/Qwen3-4B-Thinking-2507": "qwen3",
    "Qwen/Qwen3-0.6B": "small-qwen3",
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "qwen3-next",
    "deepseek-ai/DeepSeek-V3": "deepseek",
    "deepseek-ai/DeepSeek-R1": "deepseek",
    "XiaomiMiMo/MiMo-7B-Base": "mimo",
    "zai-org/GLM-4.5-Air": "glm4-moe",
    "baidu/ERNIE-4.5-21B-A3B-PT": "ernie",
    "yuhuili/EAGLE-LLaMA3-Instruct-8B": "my-eagle-llama",
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": "org/EAGLE3-LLaMA3.1-Instruct-8B",
    "AngelSlim/Qwen3-8B_eagle3": "org/Qwen3-8B_eagle3",
    "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3": "spec-eagle3",
    "RedHatAI/Qwen3-8B-speculator.eagle3": "speculators-eagle3-qwen3",
    "ibm-ai-platform/llama3-70b-accelerator": "mlp",
    "FasterDecoding/medusa-vicuna-7b-v1.3": "medusa-untyped",
    "abhigoyal/vllm-medusa-llama-68m-random": "medusa-typed",
    "amd/PARD-Llama-3.2-1B": "pard-llama",
    "amazon/Llama-3.1-8B-Instruct-P-EAGLE": "peagle-head-eagle3",
    "z-lab/Qwen3-8B-DFlash-b16": "org/Qwen3-8B-DFlash-b16",
    "deepseek-ai/dspark_qwen3_8b_block7": "org/dspark_qwen3_8b_block7",
}
"""Names as guides and documentation write them, and the shape above that stands for each."""

MODELS: Mapping[str, Config | None] = {**TARGETS, **DRAFTERS}
MODELS = {**MODELS, **{name: MODELS[shape] for name, shape in PUBLISHED.items()}}

_REMOTE_CODE = """from transformers.models.{base}.configuration_{base} import {parent}


class {name}({parent}):
    model_type = "{model_type}"
"""
"""A configuration class that comes with the model, which --trust-remote-code lets in; `auto_map` names it."""

_PARENTS = {"mimo": ("qwen2", "Qwen2Config"), "minicpm": ("llama", "LlamaConfig")}


def write_names(folder: Path, *, swapped: bool = False) -> None:
    """Write the models that names stand for, as FOLDER/NAME/config.json: what the hub would give for a name.

    Args:
        folder: where they are written.
        swapped: gives each name the config of a model of another type.
    """
    known = {
        name: {key: value for key, value in model.config.items() if key != "auto_map" and value != UNKNOWN}
        for model in read_models()
        for name in model.names
    }
    configs = {name: config for name, config in {**MODELS, **known}.items() if config is not None}
    names = sorted(configs, key=lambda name: (str(configs[name].get("model_type")), name))
    given = dict(zip(names, [*names[len(names) // 2 :], *names[: len(names) // 2]], strict=True)) if swapped else {}
    write_models(folder, {name: configs[given.get(name, name)] for name in names})


def write_models(folder: Path, models: Mapping[str, Config | None] = MODELS) -> None:
    """Write every model as FOLDER/NAME/config.json; both sides run inside FOLDER, so that names stay as written."""
    for name, config in models.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        if config is not None:
            (folder / name / "config.json").write_text(json.dumps(dict(config), indent=1) + "\n", encoding="utf-8")
        if config is not None and "auto_map" in config:
            module, name_of_class = config["auto_map"]["AutoConfig"].split(".")
            base, parent = _PARENTS[config["model_type"]]
            code = _REMOTE_CODE.format(base=base, parent=parent, name=name_of_class, model_type=config["model_type"])
            (folder / name / f"{module}.py").write_text(code, encoding="utf-8")
