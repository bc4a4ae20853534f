"""Joins MTP modules with the target they were trained for: the whole checkpoint that vLLM serves with method `mtp`.

Of vLLM's architectures with such modules, MiMo is the simplest: Qwen2, whose q, k and v have biases. A target without
biases is written with biases of zero.

Shape letters: P width of a projection.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwise.checkpoints.identity import IDENTITY_FILE, check_identity
from draftwise.core import InvalidSetup, ModelShape
from draftwise.engine.models.checkpoint import Checkpoint, write_tensors
from draftwise.engine.models.families import get_family
from draftwise.training.checkpoint import new_folder, read_tensor

__all__ = ["assemble_mtp", "check_expressible", "join_mtp", "write_shards"]

_SHARD_BYTES = 4 * 2**30
_COPIED = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("chat_template*", "generation_config.json"),
)
_BIASED = ("q_proj", "k_proj", "v_proj")


def check_expressible(config: Mapping[str, Any], *, where: str) -> None:
    """Make sure that a target can be written as a MiMo checkpoint with the same outputs.

    Raises:
        InvalidSetup: it cannot; all reasons are given.
    """
    family = get_family(config, where=where)
    shape = ModelShape.from_hf_config(config, where=where)
    window = config.get("sliding_window") is not None and (
        family.window_switch is None or bool(config.get(family.window_switch))
    )
    obstacles = {
        "its heads of q and k are normed": family.qk_norm,
        "its output projections have biases": family.qkv_bias is None and bool(config.get("attention_bias")),
        "its MLP has biases": bool(family.mlp_bias_key and config.get(family.mlp_bias_key)),
        "it attends in a sliding window": window,
        f"head_dim is {shape.head_dim}, not hidden_size / num_attention_heads": (
            shape.head_dim * shape.num_heads != shape.hidden_size
        ),
        f"its activation is {config.get('hidden_act')}": config.get("hidden_act", "silu") != "silu",
    }
    reasons = [reason for reason, holds in obstacles.items() if holds]
    if reasons:
        raise InvalidSetup.because(
            "not-expressible",
            f"The target cannot be written as vLLM's MiMo architecture, which MTP modules need: {'; '.join(reasons)}.",
            where=where,
            fix="Train another method: eagle3 works with every target.",
        )


def assemble_mtp(target_path: str | Path, modules_path: str | Path, out: str | Path) -> None:
    """Write the target with its MTP modules as one checkpoint.

    Args:
        target_path: the target's checkpoint.
        modules_path: the exported modules: `model.mtp_layers.*` only.
        out: a directory that does not exist; it is created once it is complete.

    Raises:
        InvalidSetup: the modules are for another target, the target cannot be expressed, or `out` exists.
    """
    with new_folder(Path(out)) as folder:
        join_mtp(target_path, modules_path, folder)


def join_mtp(target_path: str | Path, modules_path: str | Path, folder: Path) -> None:
    """Do the same in an existing folder."""
    target, modules = Checkpoint(target_path), Checkpoint(modules_path)
    check_expressible(target.config, where=str(target.path / "config.json"))
    check_identity(modules.path, target.path)
    write_shards(_tensors(target, modules), folder, _SHARD_BYTES)
    config = _join_configs(target, modules)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for source, patterns in ((target.path, _COPIED), (modules.path, (IDENTITY_FILE,))):
        for file in (file for pattern in patterns for file in source.glob(pattern)):
            shutil.copyfile(file, folder / file.name)


def _join_configs(target: Checkpoint, modules: Checkpoint) -> dict[str, Any]:
    return {
        **{
            key: value
            for key, value in target.config.items()
            if key not in ("torch_dtype", "attention_bias", "mlp_bias")
        },
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",  # vLLM uses the architecture; transformers has this type without remote code
        "rms_norm_eps": modules.config["rms_norm_eps"],
        "dtype": modules.config["dtype"],
        "use_sliding_window": False,
        "sliding_window": None,
        "num_nextn_predict_layers": modules.config["num_nextn_predict_layers"],
        **{key: modules.config[key] for key in ("rope_theta", "rope_parameters") if key in modules.config},
    }


def _tensors(target: Checkpoint, modules: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of the joint checkpoint, one in memory at a time."""
    for name in sorted(target.files):
        tensor = read_tensor(target, name)
        yield name, tensor
        stem = name.removesuffix(".weight")
        if stem.endswith(_BIASED) and stem + ".bias" not in target.files:
            yield stem + ".bias", torch.zeros(len(tensor), dtype=tensor.dtype)
    if "lm_head.weight" not in target.files:
        # vLLM needs the drafter's head in the file, even if the target's is tied to its embedding.
        yield "lm_head.weight", read_tensor(target, "model.embed_tokens.weight")
    for name in sorted(modules.files):
        yield name, read_tensor(modules, name)


def write_shards(tensors: Iterable[tuple[str, Tensor]], folder: Path, most_bytes: int) -> None:
    """Write tensors by name to files of at most so many bytes (a larger tensor has its own), and the index of them."""
    shards: list[list[str]] = []
    total, held, held_bytes = 0, dict[str, Tensor](), 0

    def flush() -> None:
        write_tensors(folder / f"shard-{len(shards)}", held)
        shards.append(list(held))
        held.clear()

    for name, tensor in tensors:
        if held and held_bytes + tensor.nbytes > most_bytes:
            flush()
            held_bytes = 0
        held[name] = tensor
        held_bytes += tensor.nbytes
        total += tensor.nbytes
    flush()
    file_of: dict[str, str] = {}
    for i, names in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        os.rename(folder / f"shard-{i}", folder / file)
        file_of |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": file_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
