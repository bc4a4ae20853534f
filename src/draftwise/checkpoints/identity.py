"""Identifies the target of a drafter's training: draftwise.json, a head's own files, and the names of a target.

A drafter of the same shape for another fine-tune of the target loads, runs and drafts badly, without any error.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwise.checkpoints.config_json import read_config
from draftwise.checkpoints.config_values import get_int, get_mapping
from draftwise.checkpoints.headers import Headers, read_headers
from draftwise.checkpoints.text_files import quote, read_json, read_lines
from draftwise.checkpoints.vocabulary import read_vocabulary
from draftwise.core import Finding, InvalidSetup
from draftwise.knowledge.messages import fault, refusal
from draftwise.knowledge.models import name_in_cache
from draftwise.machine.whole_files import write_whole

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
    """Return what identifies a target.

    - `weights`: SHA-256 over name, dtype, shape, first and last 4 KiB of each tensor, sorted by name, so that sharding
      does not matter. Only matrices and norms of a plain decoder count: a checkpoint with added multi-token prediction
      layers and zero biases is still the same target.
    - `tokenizer`: SHA-256 over the table of ids and tokens; left out without a tokenizer.json.

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
        target_path: folder of the target that it was trained for.
        training: description of the training, as JSON values.
    """
    name, stated = Path(target_path).resolve().name, read_config(Path(target_path)).get("_name_or_path")
    if _UNPACKED.fullmatch(name) and isinstance(stated, str):
        name = stated
    target = {"name": name} | target_identity(target_path)
    text = json.dumps({"target": target, "training": dict(training)}, indent=2) + "\n"
    write_whole(Path(folder) / IDENTITY_FILE, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTarget:
    """The target in draftwise.json; fields are empty if not recorded."""

    name: str
    weights: str
    tokenizer: str


def find_recorded_target(directory: Path) -> RecordedTarget | None:
    """Return the target that a drafter was trained for; None without a draftwise.json.

    Raises:
        InvalidSetup: the file is damaged.
    """
    file = directory / IDENTITY_FILE
    if not file.is_file():
        return None
    target = read_json(file).get("target")
    if not isinstance(target, dict):
        raise refusal("bad-identity", file=file)
    said = {key: value for key, value in target.items() if isinstance(value, str)}
    return RecordedTarget(**{key: said.get(key, "") for key in ("name", "weights", "tokenizer")})


def check_identity(drafter_path: str | Path, target_path: str | Path) -> None:
    """Verify that a drafter was trained for this target, if it records one.

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
        yield fault("trained-for-another-target", name=name, target=target, where=where)
    tokenizer = present.get("tokenizer", "")
    if differs := find_tokenizer_fault(recorded.name, recorded.tokenizer, tokenizer, target, where=where):
        yield differs


def find_tokenizer_fault(name: str, recorded: str, tokenizer: str, target: Path, *, where: str) -> Finding | None:
    """Return a finding if a drafter was trained for a target with another tokenizer.

    Args:
        name: name of the target that it was trained for; empty if unknown.
        recorded: `Vocabulary.identity` of that target; empty if not recorded.
        tokenizer: `Vocabulary.identity` of this target; empty without a readable tokenizer.
    """
    if "" in (recorded, tokenizer) or recorded == tokenizer:
        return None
    return fault("recorded-tokenizer-differs", name=quote(name or "another target"), target=target, where=where)


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


_BASE_LINE = re.compile(r"base_model:\s*(.*)")
_MOST_README_LINES = 200
_COPY = re.compile(
    r"[-_.](?:fp8|fp4|nvfp4|mxfp4|int4|int8|bf16|fp16|awq|gptq|gguf|w\d+a\d+\w*|\d+bit|quantized|dynamic|block|hf|bnb"
    r"|i?q\d(?:_[01ksmlxn]+)*)(?![a-z])"
)
"""What is added to the name of a quantized or converted copy."""
_MEANINGLESS = re.compile(
    r"[0-9a-f]{24}|[0-9a-f]{40}|model|models|target|main|snapshot|checkpoint|base|final|latest|hf|vllm|output|llm",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBase:
    """The target that a drafter's files name."""

    name: str
    """Model id, directory or name; empty if only the tokenizer is recorded."""
    source: str
    """File and field that name it."""
    tokenizer: str = ""
    """`Vocabulary.identity` of the target; empty if not recorded."""


def find_recorded_base(directory: Path, config: Mapping[str, Any]) -> RecordedBase | None:
    """Return the target that a head was trained for, from its most reliable record; None without one.

    Raises:
        InvalidSetup: draftwise.json is damaged.
    """
    return next(_records(directory, config), None)


def _records(directory: Path, config: Mapping[str, Any]) -> Iterator[RecordedBase]:
    if (target := find_recorded_target(directory)) is not None:
        yield RecordedBase(name=target.name, source=IDENTITY_FILE, tokenizer=target.tokenizer)
    verifier = get_mapping(get_mapping(config, "speculators_config"), "verifier").get("name_or_path")
    if isinstance(verifier, str) and verifier:
        yield RecordedBase(name=verifier, source="config.json, speculators_config.verifier.name_or_path")
    for key in ("base_model_name_or_path", "base_model"):
        if isinstance(name := config.get(key), str) and name:
            yield RecordedBase(name=name, source=f"config.json, {key}")
    if name := _base_in_readme(directory):
        yield RecordedBase(name=name, source="README.md, base_model")


def _base_in_readme(directory: Path) -> str:
    """Return the first `base_model` of the YAML block that heads a model card."""
    file = directory / "README.md"
    lines = read_lines(file)[:_MOST_README_LINES] if file.is_file() else []
    if not lines or lines[0].strip() != "---":
        return ""
    for i, line in enumerate(lines[1:], 1):
        if line.strip() == "---":
            return ""
        if match := _BASE_LINE.fullmatch(line.strip()):
            first = match[1] or (lines[i + 1].strip().removeprefix("-") if i + 1 < len(lines) else "")
            return first.strip(" []\"'").split(",")[0].strip(" \"'")
    return ""


def names_of(directory: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a target: from the hub's cache, its config, its model card, and its directory.

    Generic names (`model`, `main`, a commit) are left out.
    """
    path = directory.resolve()
    stated = config.get("_name_or_path")
    named = [name_in_cache(path.as_posix()), stated if isinstance(stated, str) else "", path.name]
    named.append(_base_in_readme(directory))
    return tuple(dict.fromkeys(name for name in named if not means_nothing(name)))


def is_same_model(recorded: str, name: str) -> bool:
    """Return whether two names mean the same model, or a model and its quantized copy.

    A model and its instruction-tuned version are different: a head for one drafts badly for the other.
    """
    return _key(recorded) == _key(name)


def means_nothing(name: str) -> bool:
    """Return whether a name is generic."""
    return not name or bool(_MEANINGLESS.fullmatch(_last_part(name)))


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", _COPY.sub("", _last_part(name).lower()))


def _last_part(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]
