"""Which target a drafter was trained for: written as draftwise.json beside its config.json, checked before it runs.

A drafter of the same shape for another fine-tune of the target loads, runs and drafts badly; nothing else tells.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwise.checkpoints.dimensions import get_int
from draftwise.checkpoints.headers import Headers, read_headers
from draftwise.checkpoints.model_config import read_config
from draftwise.checkpoints.quoting import quote
from draftwise.checkpoints.text_files import read_json
from draftwise.checkpoints.vocabulary import read_vocabulary
from draftwise.core import Finding, InvalidSetup
from draftwise.machine.whole_files import write_whole

__all__ = [
    "IDENTITY_FILE",
    "RecordedTarget",
    "check_identity",
    "find_recorded_target",
    "find_tokenizer_fault",
    "target_identity",
    "write_identity",
]

IDENTITY_FILE = "draftwise.json"
_SAMPLE = 4096
"""Bytes hashed at either end of a tensor: training changes all of them, and reading them costs nothing."""

_UNPACKED = re.compile(r"[0-9a-f]{24}")
"""Name of the folder of a GGUF file's checkpoint, whose config.json has the file's name."""

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
    identity = {"weights": _hash_weights(read_headers(path, "transformers"), read_config(path))}
    if (path / "tokenizer.json").exists() and (vocabulary := read_vocabulary(path)) is not None:
        identity["tokenizer"] = vocabulary.identity
    return identity


def write_identity(folder: str | Path, target_path: str | Path, training: Mapping[str, Any]) -> None:
    """Write draftwise.json into a drafter's folder.

    Args:
        folder: the drafter's.
        target_path: the target that it was trained for.
        training: how it was trained, as JSON values.
    """
    name, stated = Path(target_path).resolve().name, read_config(Path(target_path)).get("_name_or_path")
    if _UNPACKED.fullmatch(name) and isinstance(stated, str):
        name = stated
    target = {"name": name} | target_identity(target_path)
    text = json.dumps({"target": target, "training": dict(training)}, indent=2) + "\n"
    write_whole(Path(folder) / IDENTITY_FILE, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTarget:
    """The target as draftwise.json has it; empty what is not recorded."""

    name: str
    weights: str
    tokenizer: str


def find_recorded_target(directory: Path) -> RecordedTarget | None:
    """Return the target that a drafter was trained for, None where it has no draftwise.json.

    Raises:
        InvalidSetup: the file is damaged.
    """
    file = directory / IDENTITY_FILE
    if not file.is_file():
        return None
    target = read_json(file).get("target")
    if not isinstance(target, dict):
        raise InvalidSetup.because(
            "bad-identity",
            "The file does not say which target the drafter was trained for.",
            where=str(file),
            fix="Copy the drafter's folder again, or delete this file to go on unchecked.",
        )
    said = {key: value for key, value in target.items() if isinstance(value, str)}
    return RecordedTarget(**{key: said.get(key, "") for key in ("name", "weights", "tokenizer")})


def check_identity(drafter_path: str | Path, target_path: str | Path) -> None:
    """Make sure that a drafter was trained for this target, if it says for which.

    Raises:
        InvalidSetup: its draftwise.json names another target, or is damaged.
    """
    recorded = find_recorded_target(Path(drafter_path))
    if recorded is None:
        return
    where = str(Path(drafter_path) / IDENTITY_FILE)
    if faults := list(_compare(recorded, Path(target_path), where)):
        raise InvalidSetup(faults)


def _compare(recorded: RecordedTarget, target: Path, where: str) -> Iterator[Finding]:
    present = target_identity(target)
    if recorded.weights not in ("", present["weights"]):
        name = quote(recorded.name or "another target")
        yield Finding.error(
            "trained-for-another-target",
            f"The drafter was trained for {name}, whose weights differ from those of {target}.",
            where=where,
            fix=f"Serve {name}, or train a drafter for this target with `draftwise train`.",
        )
    tokenizer = present.get("tokenizer", "")
    if fault := find_tokenizer_fault(recorded.name, recorded.tokenizer, tokenizer, target, where=where):
        yield fault


def find_tokenizer_fault(name: str, recorded: str, tokenizer: str, target: Path, *, where: str) -> Finding | None:
    """Return what is wrong where a drafter was trained for a target with another tokenizer.

    Args:
        name: of the target that it was trained for; empty: not known.
        recorded: `Vocabulary.identity` of that target; empty: not recorded.
        tokenizer: that of the target at hand; empty: it has none that can be read.
        target: its directory, for messages.
        where: the file that records it, for messages.
    """
    if "" in (recorded, tokenizer) or recorded == tokenizer:
        return None
    return Finding.error(
        "recorded-tokenizer-differs",
        f"The drafter was trained for {quote(name or 'another target')}, whose tokenizer differs from that of "
        f"{target}.",
        where=where,
        fix="Use a head that was trained for this target.",
    )


def _hash_weights(headers: Headers, config: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, tensor in headers.tensors.items():
        if not _counts(name, config):
            continue
        digest.update(json.dumps([name, tensor.dtype, list(tensor.shape)]).encode())
        end = tensor.start + tensor.num_bytes
        with (headers.directory / tensor.file).open("rb") as stream:
            for place in (tensor.start, max(tensor.start, end - _SAMPLE)):
                stream.seek(place)
                digest.update(stream.read(min(_SAMPLE, end - place)))
    return digest.hexdigest()


def _counts(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether a plain decoder has this tensor and reads it."""
    if name == "lm_head.weight":
        return not config.get("tie_word_embeddings", False)
    match = _DECODER_TENSOR.fullmatch(name)
    # DeepSeek's layout numbers the layers for multi-token prediction on after the decoder's own.
    return match is not None and int(match["layer"] or 0) < (get_int(config, "num_hidden_layers") or 0)
