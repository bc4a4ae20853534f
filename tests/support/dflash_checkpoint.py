"""Writes random DFlash drafters, laid out as vLLM 0.32 reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from draftwise.checkpoints.recognize import from_plain


def write_dflash(
    folder: Path,
    target_config: Mapping[str, Any],
    seed: int = 0,
    *,
    num_layers: int = 2,
    target_layer_ids: tuple[int, ...] = (0, 1),
    hidden_size: int | None = None,
    draft_vocab_size: int | None = None,
    own_embedding: bool = False,
    own_head: bool = False,
    speculators: bool = False,
    verifier: str = "target",
    **settings: Any,
) -> Path:
    """Write a drafter for a target of this config.json; return its folder.

    Args:
        folder: made if need be.
        target_config: gives hidden size, vocabulary and longest context.
        seed: of the weights.
        num_layers: decoder layers.
        target_layer_ids: auxiliary layers, counted from zero as plain configs do.
        hidden_size: the drafter's own; None: the target's. Another one brings its own embedding and head.
        draft_vocab_size: tokens that it can name, spread over the target's by d2t; brings its own head.
        own_embedding: whether it has one beside the target's.
        own_head: likewise.
        speculators: write config.json in the speculators library's format.
        verifier: name of the target there.
        settings: further config.json fields; `dflash_config` is merged.
    """
    width = hidden_size or target_config["hidden_size"]
    vocab_size = target_config["vocab_size"]
    own = {"mask_token_id": vocab_size - 1, "target_layer_ids": list(target_layer_ids)}
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": width,
        "intermediate_size": 3 * width // 2,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": vocab_size,
        "max_position_embeddings": target_config.get("max_position_embeddings", 2048),
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "block_size": 8,
        **settings,
        "dflash_config": {**own, **settings.get("dflash_config", {})},
    }
    if width != target_config["hidden_size"]:
        config["target_hidden_size"] = target_config["hidden_size"]
        own_embedding = own_head = True
    if draft_vocab_size is not None:
        config["draft_vocab_size"] = draft_vocab_size
    tensors = _decoder(config, len(set(target_layer_ids)) * target_config["hidden_size"], seed)
    if own_embedding:
        tensors["embed_tokens.weight"] = torch.randn(vocab_size, width, generator=_generator(seed + 1))
    if own_head or draft_vocab_size is not None:
        rows = draft_vocab_size or vocab_size
        tensors["lm_head.weight"] = torch.randn(rows, width, generator=_generator(seed + 2)) * width**-0.5
    if draft_vocab_size is not None:
        ids = torch.randperm(vocab_size, generator=_generator(seed + 3))[:draft_vocab_size].sort().values
        tensors["d2t"] = ids - torch.arange(draft_vocab_size)
        tensors["t2d"] = torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    folder.mkdir(parents=True, exist_ok=True)
    written = from_plain(config, verifier=verifier, k=7) if speculators else config
    (folder / "config.json").write_text(json.dumps(written, indent=2))
    save_file(tensors, folder / "model.safetensors")
    return folder


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _decoder(config: Mapping[str, Any], num_features: int, seed: int) -> dict[str, Tensor]:
    """Return the tensors of everything between embedding and head, large enough that all of them matter."""
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_size, kv_size = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, num_features)}
    shapes |= {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for i in range(config["num_hidden_layers"]):
        attention, mlp = f"layers.{i}.self_attn.", f"layers.{i}.mlp."
        products: dict[str, tuple[int, ...]] = {
            "q_proj": (q_size, hidden),
            "k_proj": (kv_size, hidden),
            "v_proj": (kv_size, hidden),
        }
        products["o_proj"] = (hidden, q_size)
        for name, shape in products.items():
            shapes[f"{attention}{name}.weight"] = shape
            if config.get("attention_bias"):
                shapes[f"{attention}{name}.bias"] = shape[:1]
        shapes |= {f"{attention}q_norm.weight": (size,), f"{attention}k_norm.weight": (size,)}
        shapes |= {f"{mlp}gate_proj.weight": (inner, hidden), f"{mlp}up_proj.weight": (inner, hidden)}
        shapes[f"{mlp}down_proj.weight"] = (hidden, inner)
        shapes |= {f"layers.{i}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    generator = _generator(seed)
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        is_norm = name.endswith("norm.weight")
        tensors[name] = 1 + 0.3 * noise if is_norm else noise * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3)
    return tensors
