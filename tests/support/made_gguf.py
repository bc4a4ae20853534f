"""GGUF files written by hand, so that no test of reading them rests on the library that writes them."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ALIGNMENT = 32
TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q4_K": 12,
    "BF16": 30,
    "IQ2_XXS": 16,
}

LLAMA: Mapping[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}
"""A model of one layer."""


def write_gguf(
    file: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]], version: int = 3
) -> Path:
    """Write a file; a tensor is its type, its shape as torch has it, and its bytes."""
    out = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        out += [_text(key), _value(value)]
    offset = 0
    for name, (kind, shape, data) in tensors.items():
        out += [_text(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], TYPES[kind], offset)]
        offset += -(-len(data) // ALIGNMENT) * ALIGNMENT
    head = b"".join(out)
    body = b"".join(data.ljust(-(-len(data) // ALIGNMENT) * ALIGNMENT, b"\0") for _, _, data in tensors.values())
    file.write_bytes(head.ljust(-(-len(head) // ALIGNMENT) * ALIGNMENT, b"\0") + body)
    return file


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    kind = {int: 5, float: 6, str: 8}[type(value[0])]
    body = b"".join(map(_text, value)) if kind == 8 else struct.pack(f"<{len(value)}{'if'[kind - 5]}", *value)
    return struct.pack("<IIQ", 9, kind, len(value)) + body
