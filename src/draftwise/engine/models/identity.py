"""Which target a drafter was trained for: written as draftwise.json beside its config.json, checked before it runs.

A drafter of the same shape for another fine-tune of the target loads, runs and guesses badly; nothing else tells.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftwise.core import InvalidSetup
from draftwise.engine.models.checkpoint import Checkpoint
from draftwise.engine.text.tokenizer import Tokenizer

__all__ = ["IDENTITY_FILE", "check_identity", "target_identity", "write_identity"]

IDENTITY_FILE = "draftwise.json"
_SAMPLE = 4096
"""Bytes hashed at either end of a tensor: training changes all of them, and reading them costs nothing."""

_DECODER_TENSOR = re.compile(
    r"model\.(embed_tokens|norm"
    r"|layers\.(?P<layer>\d+)\.(input_layernorm|post_attention_layernorm"
    r"|self_attn\.([qkvo]_proj|[qk]_norm)|mlp\.(gate|up|down)_proj))\.weight"
)


def target_identity(path: str | Path) -> dict[str, str]:
    """Return what tells one target from another.

    - `weights`: SHA-256 over name, dtype, shape, first and last 4 KiB of each tensor, in the order of their names, so
      that sharding does not matter. Only the matrices and norms of a plain decoder count: a checkpoint to which
      layers for multi-token prediction and zero biases were added is still the same target.
    - `tokenizer`: SHA-256 over the table of ids and tokens; left out where there is no tokenizer.json.

    Args:
        path: checkpoint directory.

    Raises:
        InvalidSetup: the checkpoint or its tokenizer cannot be read.
    """
    path = Path(path)
    identity = {"weights": _hash_weights(Checkpoint(path))}
    if (path / "tokenizer.json").exists():
        identity["tokenizer"] = Tokenizer.from_pretrained(path).identity
    return identity


def write_identity(folder: str | Path, target_path: str | Path, training: Mapping[str, Any]) -> None:
    """Write draftwise.json into a drafter's folder.

    Args:
        folder: the drafter's.
        target_path: the target that it was trained for.
        training: how it was trained, as JSON values.
    """
    target = {"name": Path(target_path).resolve().name} | target_identity(target_path)
    text = json.dumps({"target": target, "training": dict(training)}, indent=2) + "\n"
    file = Path(folder) / IDENTITY_FILE
    beside = file.with_suffix(".json.new")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, file)  # a reader finds all of it or nothing


def check_identity(drafter_path: str | Path, target_path: str | Path) -> None:
    """Make sure that a drafter was trained for this target, if it says for which.

    Raises:
        InvalidSetup: its draftwise.json names another target, or is damaged.
    """
    file = Path(drafter_path) / IDENTITY_FILE
    if not file.exists():
        return
    trained_for = _read_target(file)
    present = target_identity(target_path)
    differing = [part for part in present if trained_for.get(part, present[part]) != present[part]]
    if differing:
        name = trained_for.get("name", "another target")
        raise InvalidSetup.because(
            "trained-for-another-target",
            f"the drafter was trained for {name}, whose {' and '.join(differing)} differ from those of {target_path}.",
            where=str(file),
            fix=f"Serve {name}, or train a drafter for this target with `draftwise train`.",
        )


def _read_target(file: Path) -> dict[str, Any]:
    try:
        target = json.loads(file.read_text(encoding="utf-8"))["target"]
    except (ValueError, KeyError, TypeError):
        target = None
    if not isinstance(target, dict):
        raise InvalidSetup.because(
            "bad-identity",
            "does not say which target the drafter was trained for.",
            where=str(file),
            fix="Copy the drafter's folder again, or delete this file to run the drafter unchecked.",
        )
    return target


def _hash_weights(checkpoint: Checkpoint) -> str:
    headers = {file: _read_header(file) for file in set(checkpoint.files.values())}
    digest = hashlib.sha256()
    for name in sorted(name for name in checkpoint.files if _counts(name, checkpoint.config)):
        file = checkpoint.files[name]
        data_start, entries = headers[file]
        if name not in entries:
            raise _damaged(file)
        entry = entries[name]
        digest.update(json.dumps([name, entry["dtype"], entry["shape"]]).encode())
        start, end = (data_start + offset for offset in entry["data_offsets"])
        with file.open("rb") as stream:
            for place in (start, max(start, end - _SAMPLE)):
                stream.seek(place)
                digest.update(stream.read(min(_SAMPLE, end - place)))
    return digest.hexdigest()


def _counts(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether a plain decoder has this tensor and reads it."""
    if name == "lm_head.weight":
        return not config.get("tie_word_embeddings", False)
    match = _DECODER_TENSOR.fullmatch(name)
    # DeepSeek's layout numbers the layers for multi-token prediction on after the decoder's own.
    return match is not None and int(match["layer"] or 0) < int(config.get("num_hidden_layers", 0))


def _read_header(file: Path) -> tuple[int, dict[str, Any]]:
    """Return where a safetensors file's data start, and what it says of its tensors."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            return 8 + length, json.loads(stream.read(length))
    except (struct.error, ValueError):
        raise _damaged(file) from None


def _damaged(file: Path) -> InvalidSetup:
    return InvalidSetup.because(
        "damaged-weights", "is no complete safetensors file.", where=str(file), fix="Download the file again."
    )
