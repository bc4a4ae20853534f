"""Tiny random checkpoints that the whole suite shares; what writes them is imported when one is asked for."""

import json
from pathlib import Path
from typing import Any

import pytest


def write_tokenizer(folder: Path) -> int:
    """Write a byte-level tokenizer with a chat template; return its vocabulary size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}<|assistant|>"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer.get_vocab_size()


def write_checkpoint(folder: Path, *, seed: int, num_layers: int = 2, hidden_size: int = 64) -> Path:
    """Write a random Llama whose greedy text wanders (large weights) instead of repeating one token."""
    import torch
    import transformers

    folder.mkdir()
    vocab_size = write_tokenizer(folder)
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 16,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=256,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "gemma3_text": {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]},
    "granite": {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.3,
        "attention_multiplier": 0.1,
        "logits_scaling": 3.0,
        "tie_word_embeddings": True,
    },
}
FAMILIES = tuple(_FAMILIES)
"""Families that `write_family` knows: a mixture of two of eight experts, windows and further norms, and multipliers."""


def write_family(folder: Path, family: str) -> Path:
    """Write a random two-layer model of another family, with the same tokenizer."""
    import torch
    import transformers

    folder.mkdir()
    vocab_size = write_tokenizer(folder)
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.3,
        eos_token_id=256,
        **_FAMILIES[family],
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer random Llama with a byte tokenizer."""
    return write_checkpoint(tmp_path_factory.mktemp("models") / "target", seed=1)


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A one-layer random Llama with the same tokenizer."""
    return write_checkpoint(tmp_path_factory.mktemp("models") / "draft", seed=2, num_layers=1, hidden_size=32)
