"""The shapes of the target and of the draft model, and how they are built and saved."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

END_OF_TEXT_ID, PAD_ID, END_ID = 0, 1, 4
SHAPES = {
    "target": {
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 1536,
    },
    "draft_model": {
        "hidden_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "intermediate_size": 640,
    },
}


def build_model(name: str) -> LlamaForCausalLM:
    """Return a freshly initialised float32 model of one of SHAPES."""
    config = LlamaConfig(
        **SHAPES[name],
        head_dim=64,
        vocab_size=4096,
        max_position_embeddings=2048,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=[END_OF_TEXT_ID, END_ID],
        pad_token_id=PAD_ID,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def save_model(model: LlamaForCausalLM, folder: Path) -> None:
    """Write a bfloat16 checkpoint in shards under 15 MB."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16)
    copy.config.dtype = torch.bfloat16
    copy.config.use_cache = True
    copy.generation_config = GenerationConfig(
        eos_token_id=[END_OF_TEXT_ID, END_ID], pad_token_id=PAD_ID, do_sample=False
    )
    copy.save_pretrained(folder, max_shard_size="14MB")


def load_model(folder: Path, device: str, dtype: torch.dtype) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").to(device)
