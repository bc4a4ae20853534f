"""Checkpoints made of headers alone: the files have their full size, and no weight in them was ever written."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from draftwise.checkpoints.headers import read_headers
from draftwise.checkpoints.pair import Pair, inspect_pair
from draftwise.core import Severity

BUNDLE = Path(__file__).parents[2] / "bundle"
BITS = {"BF16": 16, "F32": 32, "I64": 64, "I32": 32, "BOOL": 8, "U8": 8, "F8_E4M3": 8, "F4": 4}

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Type and shape by name."""


def header_of(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[dict[str, Any], int]:
    """Return the JSON of a header and how many bytes of data it describes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    return header, end


def write_safetensors(file: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    header, num_bytes = header_of(tensors)
    text = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + num_bytes)


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...]]]
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def write_vocabulary(
    folder: Path, vocab: Mapping[str, int], added: Mapping[str, int] | None = None, **parts: Any
) -> None:
    rows = [{"id": token_id, "content": token, "special": True} for token, token_id in (added or {}).items()]
    model = {"type": "BPE", "vocab": dict(vocab), "merges": parts.pop("merges", [])}
    (folder / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": rows, **parts}))


def tensors_of(folder: Path) -> Tensors:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in read_headers(folder).tensors.items()}


def copy_changed(
    source: Path,
    folder: Path,
    *,
    config: Callable[[dict[str, Any]], object] = lambda _: None,
    tensors: Callable[[Tensors], object] = lambda _: None,
) -> Path:
    """Copy a checkpoint's config, headers and small files, and change them."""
    settings, found = json.loads((source / "config.json").read_text()), tensors_of(source)
    config(settings)
    tensors(found)
    write_checkpoint(folder, settings, found)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "draftwise.json"):
        if (source / name).is_file():
            (folder / name).write_bytes((source / name).read_bytes())
    return folder


def codes(pair: Pair, *, least: Severity = Severity.WARNING) -> set[str]:
    """Return the codes of what is wrong."""
    wanted = {Severity.ERROR} if least is Severity.ERROR else {Severity.ERROR, Severity.WARNING}
    wanted = set(Severity) if least is Severity.INFO else wanted
    return {finding.code for finding in pair.findings if finding.severity in wanted}


def look(drafter: Path, target: Path = BUNDLE / "target", *, least: Severity = Severity.WARNING) -> set[str]:
    """Return the codes of what is wrong with a pair."""
    return codes(inspect_pair(drafter, target), least=least)


def damage(content: bytes, chance: random.Random) -> bytes:
    """Return a file's content cut off, with other bytes in one place, or with a piece missing."""
    start = chance.randrange(min(len(content), chance.choice([64, 4096, len(content)])))
    length = chance.choice([1, 8, 300])
    kind = chance.choice(["cut", "changed", "missing"])
    if kind == "cut":
        return content[:start]
    return content[:start] + (chance.randbytes(length) if kind == "changed" else b"") + content[start + length :]
