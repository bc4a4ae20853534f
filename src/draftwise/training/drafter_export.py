"""Writes trained drafters, converts them to a server's format, and loads the result to verify it.

MTP modules are joined with their target into the checkpoint that vLLM serves with method `mtp`. Among vLLM's
architectures with such modules, MiMo is the simplest: Qwen2 with biases of q, k and v. A target without biases gets
zero biases.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from draftwise.checkpoints.config_values import find_mask_token
from draftwise.checkpoints.identity import IDENTITY_FILE, check_identity
from draftwise.checkpoints.recognize import from_plain, recognize, to_plain
from draftwise.core import InvalidSetup, ModelShape, SpecConfig
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.families import get_family
from draftwise.engine.models import load_model
from draftwise.engine.models.checkpoint import CheckpointReader, write_tensors
from draftwise.engine.proposers import make_proposer
from draftwise.engine.resolved_spec import resolve_spec
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.methods import Method

FORMATS = ("vllm", "speculators")
_NUM_HEADS = ("num_heads", "medusa_num_heads", "n_predict")
"""Keys of config.json with a drafter's number of heads, if each drafts one token."""
_SHARD_BYTES = 4 * 2**30
_COPIED = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("chat_template*", "generation_config.json"),
)
_BIASED = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedDrafter:
    """An exported drafter, with its serving settings."""

    out: str
    model: str
    """Model to serve."""
    speculative_config: dict[str, Any]


def export_drafter(drafter: Path, out: Path, *, target: Path, layout: str, k: int | None = None) -> ExportedDrafter:
    """Write a drafter to a new directory.

    MTP modules are joined with their target, since vLLM reads them from its checkpoint. EAGLE-3, P-EAGLE and DFlash
    drafters are written in vLLM's plain layout or in that of the speculators library, whichever they came in; all
    others in the plain layout.

    Args:
        out: new directory, created only after the result was loaded successfully.
        target: checkpoint that the drafter was trained for.
        layout: one of FORMATS.
        k: draft tokens per step in a server. None: the drafter's number of heads or trained positions, else 3.

    Raises:
        InvalidSetup: the drafter is incomplete, belongs to another target, has no such format, or `out` exists.
    """
    check_identity(drafter, target)
    checkpoint = CheckpointReader(drafter)
    where = str(drafter / "config.json")
    config = to_plain(checkpoint.config, where=where)
    method = _find_method(config, checkpoint.files, where)
    in_target = method.weights == "target"
    spec: dict[str, Any] = {"method": method.name, "num_speculative_tokens": k or _trained_k(drafter, config, method)}
    if method.parallel == "option" and find_mask_token(config) is not None:
        spec["parallel_drafting"] = True
    with new_folder(out) as folder, _named(folder, drafter):
        if in_target:
            _refuse_speculators(layout, where)
            join_mtp(target, drafter, folder)
            load_back(folder, spec)
        else:
            _write(checkpoint, config, folder, layout, target, spec["num_speculative_tokens"])
            load_back(target, spec | {"model": str(folder)})
    if in_target:
        return ExportedDrafter(out=str(out), model=str(out), speculative_config=spec)
    return ExportedDrafter(out=str(out), model=str(target), speculative_config=spec | {"model": str(out)})


@contextmanager
def _named(draft: Path, drafter: Path) -> Iterator[None]:
    """Say of the drafter what is found in the folder that is not in place yet: it is gone when that is read."""

    def name(text: str) -> str:
        return text.replace(str(draft), str(drafter))

    try:
        yield
    except InvalidSetup as error:
        raise InvalidSetup(
            replace(each, message=name(each.message), where=name(each.where), fix=name(each.fix))
            for each in error.findings
        ) from None


def _find_method(config: Mapping[str, Any], names: Collection[str], where: str) -> Method:
    method = recognize(config, names).traits
    if method.trainable and method.drafts_from == "target_states":
        return method
    raise refusal(
        "unsupported-architecture",
        case="drafter",
        named=", ".join(config.get("architectures") or []) or "unknown",
        where=where,
    )


def _trained_k(drafter: Path, config: Mapping[str, Any], method: Method) -> int:
    """Return the number of draft tokens that a drafter was trained for, one for each head; 3 if it is not recorded."""
    if config.get("block_size"):
        return int(config["block_size"]) - 1
    if method.network == "heads" and (heads := next(filter(None, map(config.get, _NUM_HEADS)), None)):
        return int(heads)
    try:
        training = json.loads((drafter / IDENTITY_FILE).read_text(encoding="utf-8"))["training"]
        return int(training["num_speculative_tokens"])
    except (OSError, ValueError, KeyError, TypeError):
        return 3


def _refuse_speculators(layout: str, where: str) -> None:
    if layout == "speculators":
        raise refusal("not-in-speculators-format", where=where)


def _write(
    checkpoint: CheckpointReader, config: dict[str, Any], folder: Path, layout: str, target: Path, k: int
) -> None:
    """Write config.json, tensors and identity."""
    tensors = {name: read_tensor(checkpoint, name) for name in checkpoint.files}
    if layout == "speculators":
        tensors |= _companions(tensors, CheckpointReader(target))
        written = from_plain(config, verifier=str(target), k=k, where=str(checkpoint.path / "config.json"))
    else:
        written = config
    dtype = next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    save_drafter(folder, written, tensors, dtype)
    identity = checkpoint.path / IDENTITY_FILE
    if identity.exists():
        shutil.copyfile(identity, folder / identity.name)


def _companions(tensors: Mapping[str, Tensor], target: CheckpointReader) -> dict[str, Tensor]:
    """Return what the speculators library stores in addition to a drafter's own tensors."""
    added: dict[str, Tensor] = {}
    if "embed_tokens.weight" not in tensors:
        added["embed_tokens.weight"] = read_tensor(target, "model.embed_tokens.weight")
    if "d2t" in tensors and "t2d" not in tensors:
        ids_U = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
        added["t2d"] = torch.zeros(target.config["vocab_size"], dtype=torch.bool).index_fill(0, ids_U, True)
    return added


def check_expressible(config: Mapping[str, Any], *, where: str) -> None:
    """Check that a target can be written as a MiMo checkpoint with the same outputs.

    Raises:
        InvalidSetup: it cannot; gives all reasons.
    """
    family = get_family(config, where=where)
    shape = ModelShape.from_hf_config(config, where=where)
    window = config.get("sliding_window") is not None and (
        family.window_switch is None or bool(config.get(family.window_switch))
    )
    obstacles = {
        "its heads of q and k are normalized": family.qk_norm,
        "its output projections have biases": family.qkv_bias is None and bool(config.get("attention_bias")),
        "its MLP has biases": bool(family.mlp_bias_key and config.get(family.mlp_bias_key)),
        "it attends in a sliding window": window,
        "it scales embeddings or layer outputs": family.has_multipliers or family.is_gemma,
        f"head_dim is {shape.head_dim}, not hidden_size / num_attention_heads": (
            shape.head_dim * shape.num_heads != shape.hidden_size
        ),
        f"its activation is {config.get('hidden_act')}": config.get("hidden_act", "silu") != "silu",
    }
    reasons = [reason for reason, holds in obstacles.items() if holds]
    if reasons:
        raise refusal("not-expressible", reasons="; ".join(reasons), where=where)


def assemble_mtp(target_path: str | Path, modules_path: str | Path, out: str | Path) -> None:
    """Write the target with its MTP modules as one checkpoint.

    Args:
        target_path: the target's checkpoint.
        modules_path: the exported modules: `model.mtp_layers.*` only.
        out: new directory, created only once complete.

    Raises:
        InvalidSetup: the modules are for another target, the target cannot be expressed, or `out` exists.
    """
    with new_folder(Path(out)) as folder:
        join_mtp(target_path, modules_path, folder)


def join_mtp(target_path: str | Path, modules_path: str | Path, folder: Path) -> None:
    """Do the same in an existing folder."""
    target, modules = CheckpointReader(target_path), CheckpointReader(modules_path)
    check_expressible(target.config, where=str(target.path / "config.json"))
    check_identity(modules.path, target.path)
    write_shards(_tensors(target, modules), folder, _SHARD_BYTES)
    config = _join_configs(target, modules)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for source, patterns in ((target.path, _COPIED), (modules.path, (IDENTITY_FILE,))):
        for file in (file for pattern in patterns for file in source.glob(pattern)):
            shutil.copyfile(file, folder / file.name)


def _join_configs(target: CheckpointReader, modules: CheckpointReader) -> dict[str, Any]:
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


def _tensors(target: CheckpointReader, modules: CheckpointReader) -> Iterator[tuple[str, Tensor]]:
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
    """Write named tensors to files of limited size (a larger tensor gets its own file), with an index."""
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


def save_drafter(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Write config.json and model.safetensors.

    Args:
        tensors: floating-point tensors are stored in `dtype`, others unchanged.
    """
    stored = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype, copy=True).contiguous()
        for name, tensor in tensors.items()
    }
    write_tensors(folder / "model.safetensors", stored)
    (folder / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to write to, which becomes `out` if the block completes.

    Raises:
        InvalidSetup: `out` exists.
    """
    if out.exists():
        raise refusal("output-exists", out=out)
    partial = out.with_name(f".{out.name}-{uuid4().hex[:8]}")
    partial.mkdir(parents=True)
    try:
        yield partial
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load_back(model: Path, speculative_config: dict[str, Any]) -> None:
    """Load a model and its drafter as a serving engine does.

    Raises:
        InvalidSetup: the files are incomplete or inconsistent.
    """
    spec = resolve_spec(SpecConfig.parse(speculative_config))
    config = EngineConfig.from_settings(model=str(model), device="cpu")
    make_proposer(spec, config, load_model(model, device="cpu"))


def read_tensor(checkpoint: CheckpointReader, name: str) -> Tensor:
    """Return a tensor of a checkpoint in its stored shape."""
    shape = checkpoint.shape_of(name)
    assert shape is not None, name
    return checkpoint.read(name, shape)
