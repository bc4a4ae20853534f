"""Writes random EAGLE, EAGLE-3 and MTP heads, laid out as vLLM 0.32 reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


def write_eagle(
    folder: Path,
    target_config: Mapping[str, Any],
    seed: int = 0,
    *,
    num_layers: int = 1,
    own_embedding: bool = False,
    **settings: Any,
) -> Path:
    """Write an EAGLE head for a target of this config.json; return its folder. `settings` go into config.json."""
    config = _head_config(target_config, "LlamaForCausalLM", num_hidden_layers=num_layers) | settings
    hidden = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, 2 * hidden)}
    for i in range(num_layers):
        shapes |= _layer_shapes(config, f"layers.{i}.", input_norm=i > 0)
    tensors = _random(shapes, seed)
    if own_embedding:
        tensors |= _random({"embed_tokens.weight": (config["vocab_size"], hidden)}, seed + 1)
    return _write(folder, config, tensors)


def write_eagle3(
    folder: Path,
    target_config: Mapping[str, Any],
    seed: int = 0,
    *,
    aux_layers: tuple[int, ...] = (0, 1, 2),
    num_layers: int = 1,
    draft_vocab_size: int | None = None,
    parallel: bool = False,
    own_embedding: bool = False,
    own_head: bool = False,
    first_layer: str = "midlayer.",
    **settings: Any,
) -> Path:
    """Write an EAGLE-3 head for a target of this config.json; return its folder.

    Args:
        folder: made if need be.
        target_config: gives hidden size and vocabulary.
        seed: of the weights.
        aux_layers: `eagle_aux_hidden_state_layer_ids`; empty: config.json names none and the fc has room for three.
        num_layers: decoder layers.
        draft_vocab_size: tokens that it can name, spread over the target's by d2t; brings its own head.
        parallel: make it a P-EAGLE head, with a mask.
        own_embedding: whether it has one beside the target's.
        own_head: likewise.
        first_layer: prefix of the first layer's tensors.
        settings: further config.json fields.
    """
    config = _head_config(target_config, "LlamaForCausalLMEagle3", num_hidden_layers=num_layers) | settings
    if aux_layers:
        config = {"eagle_aux_hidden_state_layer_ids": list(aux_layers)} | config
    hidden, vocab_size, width = config["hidden_size"], config["vocab_size"], target_config["hidden_size"]
    num_aux_layers = len(set(aux_layers)) or 3
    shapes = _eagle3_shapes(config, num_aux_layers, width, num_layers, first_layer)
    if own_embedding:
        shapes["embed_tokens.weight"] = (vocab_size, hidden)
    if own_head or draft_vocab_size:
        shapes["lm_head.weight"] = (draft_vocab_size or vocab_size, hidden)
    tensors = _random(shapes, seed)
    if draft_vocab_size:
        config["draft_vocab_size"] = draft_vocab_size
        ids = torch.randperm(vocab_size, generator=_generator(seed + 1))[:draft_vocab_size].sort().values
        tensors["d2t"] = ids - torch.arange(draft_vocab_size)
        tensors["t2d"] = torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, ids, True)
    if parallel:
        config["ptd_token_id"] = vocab_size - 1
        tensors["mask_hidden"] = torch.randn(1, 1, num_aux_layers * width, generator=_generator(seed + 2))
    return _write(folder, config, tensors)


def write_mtp(
    folder: Path,
    target_config: Mapping[str, Any],
    seed: int = 0,
    *,
    n_predict: int = 1,
    target: Path | None = None,
    **settings: Any,
) -> Path:
    """Write MiMo's multi-token prediction modules for a target of this config.json; return their folder.

    Args:
        folder: made if need be.
        target_config: the modules' config.json is this one too.
        seed: of the weights.
        n_predict: modules.
        target: a checkpoint of a Llama or Qwen2 to write beside them, as a MiMo checkpoint; None: modules only.
        settings: further config.json fields.
    """
    config = dict(target_config) | {"num_nextn_predict_layers": n_predict} | settings
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    hidden = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(n_predict):
        prefix = f"model.mtp_layers.{i}."
        shapes |= _layer_shapes(config, prefix) | _bias_shapes(config, prefix)
        shapes[f"{prefix}input_proj.weight"] = (hidden, 2 * hidden)
        shapes |= {f"{prefix}{name}_layernorm.weight": (hidden,) for name in ("token", "hidden", "final")}
    tensors = _random(shapes, seed)
    if target is None:
        return _write(folder, config, tensors)
    config |= {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2"}
    for i in range(config["num_hidden_layers"]):
        biases = _bias_shapes(config, f"model.layers.{i}.")
        tensors |= {name: torch.zeros(shape) for name, shape in biases.items()}
    _write(folder, config, tensors | load_file(target / "model.safetensors"))
    for file in target.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, folder)
    return folder


def _head_config(target_config: Mapping[str, Any], architecture: str, **settings: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": target_config["hidden_size"],
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": target_config["vocab_size"],
        "max_position_embeddings": target_config["max_position_embeddings"],  # vLLM drafts no further
        "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0,
        **settings,
    }


def _eagle3_shapes(
    config: Mapping[str, Any], num_aux_layers: int, width: int, num_layers: int, first_layer: str
) -> dict[str, tuple[int, ...]]:
    hidden = config["hidden_size"]
    options = {**config, **(config.get("eagle_config") or {})}
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (hidden,), f"{first_layer}hidden_norm.weight": (hidden,)}
    if options.get("use_aux_hidden_state", True):
        shapes["fc.weight"] = (hidden, num_aux_layers * width)
        if options.get("norm_before_fc"):
            shapes["input_norm.weight"] = (num_aux_layers * width,)
        if config.get("fc_norm"):
            shapes |= {f"fc_norm.{i}.weight": (width,) for i in range(num_aux_layers)}
    shapes |= _layer_shapes(config, first_layer, num_in=2 * hidden)
    for i in range(1, num_layers):
        shapes |= _layer_shapes(config, f"layers.{i}.")
    return shapes


def _layer_shapes(
    config: Mapping[str, Any], prefix: str, *, num_in: int | None = None, input_norm: bool = True
) -> dict[str, tuple[int, ...]]:
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_size, kv_size = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    shapes: dict[str, tuple[int, ...]] = {
        f"{attention}q_proj.weight": (q_size, num_in or hidden),
        f"{attention}k_proj.weight": (kv_size, num_in or hidden),
        f"{attention}v_proj.weight": (kv_size, num_in or hidden),
        f"{attention}o_proj.weight": (hidden, q_size),
        f"{mlp}gate_proj.weight": (inner, hidden),
        f"{mlp}up_proj.weight": (inner, hidden),
        f"{mlp}down_proj.weight": (hidden, inner),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
    }
    if input_norm:
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
    if any("Qwen3" in name for name in config["architectures"]):
        shapes |= {f"{attention}{name}_norm.weight": (size,) for name in "qk"}
    if config.get("attention_bias"):
        shapes |= _bias_shapes(config, prefix) | {f"{attention}o_proj.bias": (hidden,)}
    return shapes


def _bias_shapes(config: Mapping[str, Any], prefix: str) -> dict[str, tuple[int, ...]]:
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"], "v": config["num_key_value_heads"]}
    return {f"{prefix}self_attn.{name}_proj.bias": (count * size,) for name, count in heads.items()}


def _random(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Return tensors large enough that each of them matters."""
    generator = _generator(seed)
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        is_norm = name.endswith("norm.weight") or name.startswith("fc_norm.")
        tensors[name] = 1 + 0.3 * noise if is_norm else noise * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3)
    return tensors


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(dict(tensors), folder / "model.safetensors")
    return folder
