"""Shapes of published models by kind of cache: what the table of known models does not hold.

Each is the model's config.json as far as its layers depend on it; vocabularies and counts of experts are cut down where
no cache depends on them.
"""

from __future__ import annotations

from typing import Any

__all__ = ["SHAPES"]

_COMMON: dict[str, Any] = {"vocab_size": 32768, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5, "hidden_act": "silu"}
_GRANITE_H = {
    **_COMMON, "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "mamba_d_conv": 4,
    "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_d_head": 64, "mamba_chunk_size": 256,
    "num_experts_per_tok": 2, "num_local_experts": 4, "max_position_embeddings": 131072, "attention_bias": False,
    "position_embedding_type": "nope", "embedding_multiplier": 12, "logits_scaling": 16, "residual_multiplier": 0.22,
    "attention_multiplier": 0.0078125, "mamba_conv_bias": True, "mamba_proj_bias": False, "mamba_n_heads": 128,
}  # fmt: skip
_EVERY_TENTH = ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)]
_DEEPSEEK: dict[str, Any] = {
    **_COMMON, "hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 64, "num_key_value_heads": 64,
    "max_position_embeddings": 163840, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 4,
    "moe_intermediate_size": 256, "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_group": 1, "topk_group": 1,
    "topk_method": "noaux_tc", "norm_topk_prob": True, "scoring_func": "sigmoid", "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
_INDEXED = {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
_QWEN35: dict[str, Any] = {
    "max_position_embeddings": 262144, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_num_key_heads": 16, "full_attention_interval": 4, "head_dim": 256,
    "vocab_size": 32768, "mtp_num_hidden_layers": 1, "mamba_ssm_dtype": "float32",
}  # fmt: skip

SHAPES: dict[str, dict[str, Any]] = {
    "granite-4.0-h-small": {
        **_GRANITE_H, "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 768, "shared_intermediate_size": 1536, "layer_types": _EVERY_TENTH,
    },
    "granite-4.0-h-tiny": {
        **_GRANITE_H, "hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 12, "num_key_value_heads": 4,
        "intermediate_size": 512, "shared_intermediate_size": 1024, "mamba_n_heads": 48, "layer_types": _EVERY_TENTH,
    },
    "bamba-9b": {
        **_COMMON, "architectures": ["BambaForCausalLM"], "model_type": "bamba", "hidden_size": 4096,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "attn_layer_indices": [9, 18, 27], "mamba_d_conv": 4, "mamba_d_state": 128, "mamba_expand": 2,
        "mamba_n_groups": 1, "mamba_n_heads": 128, "mamba_d_head": 64, "max_position_embeddings": 262144,
        "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_proj_bias": False, "attn_rotary_emb": 64,
    },
    "falcon-h1-7b": {
        **_COMMON, "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "hidden_size": 3072,
        "num_hidden_layers": 44, "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128,
        "intermediate_size": 12288, "mamba_d_ssm": 3072, "mamba_n_heads": 24, "mamba_d_head": 128, "mamba_n_groups": 1,
        "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 256,
        "max_position_embeddings": 262144, "mamba_conv_bias": True, "mamba_proj_bias": False, "mamba_rms_norm": False,
        "mamba_norm_before_gate": False,
    },
    "jamba-mini-1.7": {
        **_COMMON, "architectures": ["JambaForCausalLM"], "model_type": "jamba", "hidden_size": 4096,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "attn_layer_offset": 4, "attn_layer_period": 8, "expert_layer_offset": 1, "expert_layer_period": 2,
        "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2,
        "mamba_dt_rank": 256, "max_position_embeddings": 262144,
    },
    "zamba2-7b": {
        **_COMMON, "architectures": ["Zamba2ForCausalLM"], "model_type": "zamba2", "hidden_size": 3584,
        "num_hidden_layers": 81, "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 14336,
        "mamba_d_state": 64, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 2, "n_mamba_heads": 112,
        "mamba_headdim": 64, "hybrid_layer_ids": [6, 11, 17, 23, 29, 35, 41, 47, 53, 59, 65, 71, 77],
        "max_position_embeddings": 4096, "num_mem_blocks": 2, "use_mem_rope": True, "adapter_rank": 128,
        "use_shared_attention_adapter": False, "attention_head_dim": 224, "attention_hidden_size": 7168,
    },
    "lfm2-1.2b": {
        **_COMMON, "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": 2048, "block_dim": 2048,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 12288,
        "block_ff_dim": 12288, "block_auto_adjust_ff_dim": True, "block_multiple_of": 256, "conv_L_cache": 3,
        "block_ffn_dim_multiplier": 1.0, "conv_bias": False, "conv_dim": 2048, "norm_eps": 1e-5,
        "max_position_embeddings": 128000, "layer_types": [
            "full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)
        ],
    },
    "lfm2-8b-a1b": {
        **_COMMON, "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "hidden_size": 2048,
        "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 7168,
        "moe_intermediate_size": 1792, "num_dense_layers": 2, "num_experts": 4, "num_experts_per_tok": 2,
        "conv_L_cache": 3, "conv_bias": False, "norm_eps": 1e-5, "max_position_embeddings": 128000,
        "use_expert_bias": True, "routed_scaling_factor": 1.0, "norm_topk_prob": True, "layer_types": [
            "full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)
        ],
    },
    "minimax-text-01": {
        **_COMMON, "architectures": ["MiniMaxText01ForCausalLM"], "model_type": "minimax", "hidden_size": 6144,
        "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 9216, "num_local_experts": 2, "num_experts_per_tok": 2, "block_size": 256,
        "max_position_embeddings": 1048576, "rotary_dim": 64, "shared_intermediate_size": 0,
        "attn_type_list": [int(layer % 8 == 7) for layer in range(80)], "postnorm": True, "layer_types": [
            "full_attention" if layer % 8 == 7 else "linear_attention" for layer in range(80)
        ], "layernorm_full_attention_alpha": 3.55, "layernorm_full_attention_beta": 1.0,
        "layernorm_linear_attention_alpha": 3.55, "layernorm_linear_attention_beta": 1.0,
        "layernorm_mlp_alpha": 3.55, "layernorm_mlp_beta": 1.0,
    },
    "kimi-linear-48b": {
        **_COMMON, "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "hidden_size": 2304,
        "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 72,
        "intermediate_size": 9216, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True, "num_experts": 4, "num_experts_per_token": 2,
        "num_shared_experts": 1, "moe_intermediate_size": 1024, "moe_layer_freq": 1, "first_k_dense_replace": 1,
        "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1,
        "routed_scaling_factor": 2.446, "use_grouped_topk": True, "model_max_length": 1048576,
        "max_position_embeddings": 1048576, "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
            "kda_layers": [layer for layer in range(1, 27) if layer % 4],
        },
    },
    "mamba-codestral-7b": {
        **_COMMON, "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": 4096, "expand": 2,
        "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64, "state_size": 128, "conv_kernel": 4, "n_groups": 8,
        "layer_norm_epsilon": 1e-5, "use_bias": False, "use_conv_bias": True, "chunk_size": 256, "rms_norm": True,
    },
    "falcon-mamba-7b": {
        **_COMMON, "architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba", "hidden_size": 4096,
        "num_hidden_layers": 64, "state_size": 16, "conv_kernel": 4, "expand": 2, "intermediate_size": 8192,
        "time_step_rank": 256, "layer_norm_epsilon": 1e-5, "use_bias": False, "use_conv_bias": True,
        "mixer_rms_eps": 1e-6,
    },
    "qwen3.5-9b": {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", **_COMMON, **_QWEN35, "hidden_size": 4096,
        "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 12288,
        "linear_num_value_heads": 32, "layer_types": [
            "full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(32)
        ],
    },
    "glm-5": {
        **_DEEPSEEK, **_INDEXED, "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa",
        "num_hidden_layers": 78, "index_n_heads": 32, "max_position_embeddings": 202752, "qk_nope_head_dim": 192,
        "v_head_dim": 256, "q_lora_rank": 2048,
    },
    "deepseek-v3.2-cut": {
        **_DEEPSEEK, **_INDEXED, "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32",
        "num_hidden_layers": 61,
    },
    "deepseek-v2-lite": {
        **_DEEPSEEK, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_hidden_layers": 27,
        "q_lora_rank": None, "num_attention_heads": 16, "num_key_value_heads": 16, "scoring_func": "softmax",
        "topk_method": "greedy", "num_nextn_predict_layers": 0, "n_group": None, "topk_group": None,
    },
    "kimi-k2": {
        **_DEEPSEEK, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 61,
        "max_position_embeddings": 131072,
    },
    "glm-4.7-flash": {
        **_DEEPSEEK, "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite",
        "num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20, "q_lora_rank": 768,
        "qk_nope_head_dim": 192, "v_head_dim": 256, "first_k_dense_replace": 1, "max_position_embeddings": 202752,
    },
    "longcat-flash": {
        **_DEEPSEEK, "architectures": ["LongcatFlashForCausalLM"], "model_type": "longcat_flash", "num_layers": 28,
        "num_hidden_layers": 56, "ffn_hidden_size": 2048, "expert_ffn_hidden_size": 256, "moe_topk": 4,
        "zero_expert_num": 4, "zero_expert_type": "identity", "mla_scale_q_lora": True, "mla_scale_kv_lora": True,
        "attention_method": "MLA", "router_bias": False,
    },
    "gemma-3n-e4b": {
        **_COMMON, "architectures": ["Gemma3nForCausalLM"], "model_type": "gemma3n_text", "hidden_size": 2048,
        "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
        "intermediate_size": [16384] * 35, "num_kv_shared_layers": 15, "sliding_window": 512, "vocab_size": 262400,
        "max_position_embeddings": 32768, "layer_types": [
            "full_attention" if layer % 5 == 4 else "sliding_attention" for layer in range(35)
        ],
    },
    "mimo-v2-flash": {
        **_COMMON, "architectures": ["MiMoV2FlashForCausalLM"], "model_type": "mimo_v2_flash", "hidden_size": 4096,
        "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128,
        "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128,
        "sliding_window": 128, "sliding_window_size": 128, "intermediate_size": 16384, "n_routed_experts": 8,
        "num_experts_per_tok": 4, "moe_intermediate_size": 2048, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "attention_bias": False, "layernorm_epsilon": 1e-5,
        "hybrid_layer_pattern": [0] + [0 if layer % 6 == 5 else 1 for layer in range(1, 48)],
        "moe_layer_freq": [0] + [1] * 47, "max_position_embeddings": 262144, "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False, "partial_rotary_factor": 0.334, "rope_theta": 5000000,
        "swa_rope_theta": 10000, "routed_scaling_factor": None, "n_shared_experts": None,
    },
    "step-3.5-flash": {
        **_COMMON, "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "hidden_size": 4096,
        "num_hidden_layers": 45, "num_attention_heads": 64, "num_attention_groups": 8, "head_dim": 128,
        "intermediate_size": 11264, "sliding_window": 512, "max_position_embeddings": 262144, "moe_num_experts": 8,
        "moe_top_k": 4, "moe_intermediate_size": 1280, "share_expert_dim": 1280, "num_nextn_predict_layers": 3,
        "attention_other_setting": {
            "attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128,
        }, "layer_types": ["full_attention" if layer % 4 == 0 else "sliding_attention" for layer in range(48)],
        "moe_layers_enum": ",".join(map(str, range(3, 45))), "use_head_wise_attn_gate": True,
    },
    "minimax-m2": {
        **_COMMON, "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "hidden_size": 3072,
        "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 1536, "num_local_experts": 8, "num_experts_per_tok": 4, "rotary_dim": 64,
        "max_position_embeddings": 196608, "use_qk_norm": True, "scoring_func": "sigmoid", "use_routing_bias": True,
    },
    "internlm3-8b": {
        **_COMMON, "architectures": ["InternLM3ForCausalLM"], "model_type": "internlm3", "hidden_size": 4096,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "intermediate_size": 10240, "max_position_embeddings": 32768, "bias": False, "qkv_bias": False,
    },
    "exaone-3.5-7.8b": {
        **_COMMON, "architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "hidden_size": 4096,
        "num_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "layer_norm_epsilon": 1e-5, "activation_function": "silu",
    },
    "olmo-3-7b": {
        **_COMMON, "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "hidden_size": 4096,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 11008,
        "sliding_window": 4096, "max_position_embeddings": 65536, "layer_types": [
            "full_attention" if layer % 4 == 3 else "sliding_attention" for layer in range(32)
        ],
    },
    "seed-oss-36b": {
        **_COMMON, "architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "hidden_size": 5120,
        "num_hidden_layers": 64, "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 27648, "max_position_embeddings": 524288, "attention_bias": True,
        "attention_out_bias": False,
    },
    "glm-4.6": {
        **_COMMON, "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 5120,
        "num_hidden_layers": 92, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 12288, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 4,
        "moe_intermediate_size": 1536, "first_k_dense_replace": 3, "n_group": 1, "topk_group": 1, "use_qk_norm": True,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1, "attention_bias": True,
        "max_position_embeddings": 202752, "partial_rotary_factor": 0.5,
    },
    "ling-mini-2.0": {
        **_COMMON, "architectures": ["BailingMoeV2ForCausalLM"], "model_type": "bailing_moe_v2", "hidden_size": 2048,
        "num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 5120, "num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 512,
        "num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "max_position_embeddings": 32768, "use_qk_norm": True, "score_function": "sigmoid", "use_bias": False,
        "moe_router_enable_expert_bias": True, "use_qkv_bias": False, "routed_scaling_factor": 2.5,
        "rope_theta": 600000, "tie_word_embeddings": False, "partial_rotary_factor": 0.5, "embedding_dropout": 0.0,
    },
}  # fmt: skip
