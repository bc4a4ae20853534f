"""GGUF files: metadata and tensors from the header, and the equivalent config.json and tensor names.

Reads no weights, and needs none of gguf, torch or numpy. Like a safetensors header, a header is trusted only if it
matches its file (format: ggml's docs/gguf.md; block sizes: `GGML_QUANT_SIZES` of the gguf package 0.19).

Sources: `MODEL_TENSORS` and `Keys` of the gguf package 0.19; convert_hf_to_gguf.py of llama.cpp, whose inverse this is.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import isclose, pi
from pathlib import Path
from typing import Any

from draftwise.checkpoints.headers import Headers, Tensor
from draftwise.checkpoints.text_files import POINTER_BYTES, quote, refuse_pointer
from draftwise.core import InvalidSetup, cause_of
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.stored import read_data

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_ENTRIES = 2**24
"""Limit for arrays, metadata and tensors: a hundred times the largest vocabulary."""
_MOST_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_TYPES = read_data("gguf")
_SCALARS: Mapping[int, str] = {int(kind): spelled for kind, spelled in _TYPES["scalars"].items()}
"""Value type -> how `struct` spells it."""
_BLOCKS: Mapping[int, tuple[str, int, int]] = {int(kind): tuple(row) for kind, row in _TYPES["blocks"].items()}
"""Tensor type -> name, elements of a block, bytes of a block. What is not here is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """Everything before the weights."""

    file: Path
    metadata: Mapping[str, Any]
    """Numbers, texts, and arrays as lists."""
    tensors: Mapping[str, Tensor]
    """Tensors by their names in the file; shapes as in torch, outermost dimension first."""

    @property
    def architecture(self) -> str:
        """`general.architecture`; empty if the file lacks it."""
        return str(self.metadata.get("general.architecture") or "")

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the architecture, such as `block_count`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


def is_gguf(path: str | Path) -> bool:
    """Return whether a path names an existing GGUF file."""
    try:
        return str(path).endswith(".gguf") and Path(path).is_file()
    except (OSError, ValueError):  # longer than a path may be, or with a null byte
        return False


def read_gguf(file: str | Path) -> GgufHeader:
    """Return the header of a GGUF file.

    Raises:
        InvalidSetup: it is not a GGUF file, is truncated, damaged or one part of several, or has an unknown
            quantization.
    """
    file = Path(file)
    try:
        with file.open("rb") as stream:
            start = stream.read(POINTER_BYTES)
            refuse_pointer(file, start)
            if start[:4] != _MAGIC:
                raise _damaged(file, "does not start as GGUF files do")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(file, data).read()
    except OSError as error:
        raise _damaged(file, f"cannot be read ({cause_of(error)})") from None


class _Reader:
    """Reads values one after the other; what would reach past the end of the file is refused."""

    def __init__(self, file: Path, data: mmap.mmap) -> None:
        self._file, self._data, self._at = file, data, len(_MAGIC)

    def read(self) -> GgufHeader:
        version = self._number("I")
        if version not in _VERSIONS:
            raise _damaged(
                self._file,
                f"is of GGUF version {quote(version)}; versions {' and '.join(map(str, _VERSIONS))} can be read",
                "Convert it anew.",
            )
        num_tensors, num_values = self._count(), self._count()
        metadata = {self._text(): self._value(self._number("I")) for _ in range(num_values)}
        if (parts := metadata.get("split.count", 1)) not in (0, 1):
            fix = "Merge the parts: `llama-gguf-split --merge FIRST OUT`."
            raise _damaged(self._file, f"is one of {quote(parts)} parts of a model", fix)
        described = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1:
            raise _damaged(self._file, f"has the alignment {quote(alignment)}")
        data_start = -(-self._at // alignment) * alignment
        tensors = {each.name: self._place(each, data_start) for each in described}
        return GgufHeader(file=self._file, metadata=metadata, tensors=tensors)

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))[0]

    def _take(self, size: int) -> bytes:
        if self._at + size > len(self._data):
            raise _damaged(self._file, f"is cut short: its header reaches past byte {len(self._data):,}, its end")
        self._at += size
        return self._data[self._at - size : self._at]

    def _count(self) -> int:
        count = int(self._number("Q"))
        if count > _MOST_ENTRIES:
            raise _damaged(self._file, f"counts {count:,} entries in its header")
        return count

    def _text(self) -> str:
        size = int(self._number("Q"))
        return self._take(size).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._number(self._scalar(kind))
        inner, count = self._number("I"), self._count()
        if inner == _STRING:
            return [self._text() for _ in range(count)]
        form = f"{count}{self._scalar(inner)}"
        return list(struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}"))))

    def _scalar(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise _damaged(self._file, f"has a value of the unknown type {quote(kind)}")
        return _SCALARS[kind]

    def _tensor(self) -> Tensor:
        """Return a tensor whose start counts from the first weight."""
        name, num_dimensions = self._text(), self._number("I")
        if not 0 < num_dimensions <= _MOST_DIMENSIONS:
            raise _damaged(self._file, f"gives tensor {quote(name)} {num_dimensions} dimensions")
        shape = tuple(int(self._number("Q")) for _ in range(num_dimensions))[::-1]
        kind, start = self._number("I"), int(self._number("Q"))
        if kind not in _BLOCKS:
            raise refusal(
                "unsupported-quantization",
                name=quote(name),
                kind=kind,
                file=self._file,
                names=", ".join((name for name, _, _ in _BLOCKS.values())),
            )
        dtype, elements, size = _BLOCKS[kind]
        if shape[-1] % elements:
            raise _damaged(self._file, f"gives tensor {quote(name)} rows of {shape[-1]}, no multiple of {elements}")
        num_bytes = math.prod(shape) // elements * size
        return Tensor(name=name, dtype=dtype, shape=shape, num_bytes=num_bytes, file=self._file.name, start=start)

    def _place(self, tensor: Tensor, data_start: int) -> Tensor:
        start = data_start + tensor.start
        if start + tensor.num_bytes > len(self._data):
            end = f"{start + tensor.num_bytes:,}, the file at {len(self._data):,}"
            raise _damaged(self._file, f"is cut short: tensor {quote(tensor.name)} ends at byte {end}")
        return replace(tensor, start=start)


def _damaged(file: Path, what: str, fix: str = "Download the file again.") -> InvalidSetup:
    return InvalidSetup.because("damaged-gguf", f"The file {what}.", where=str(file), fix=fix)


_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""GGUF's `llama` also stands for Mistral, whose network is the same."""
ROPE_FACTORS = "rope_freqs.weight"
"""Tensor with the divisor of each frequency (Llama 3's scaling)."""
_PLACES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192
"""Constants of the scaling of Llama 3.1 to 3.3; a GGUF file holds only its result."""


def has_paired_rotation(header: GgufHeader) -> bool:
    """Return whether rows of q and k are stored for rotating neighbors instead of halves, as with `llama`."""
    return header.architecture == "llama"


def rename_tensor(name: str) -> str | None:
    """Return a tensor's name in a Hugging Face checkpoint; None if it has none."""
    stem, _, kind = name.rpartition(".")
    if stem in _PLACES:
        return f"{_PLACES[stem]}.{kind}"
    found = _LAYER.fullmatch(name)
    if found is None or found[2] not in _PARTS:
        return None
    return f"model.layers.{found[1]}.{_PARTS[found[2]]}.{found[3]}"


def list_tensors(header: GgufHeader) -> Headers:
    """Return the tensors by their names in a Hugging Face checkpoint; those without one keep their own."""
    renamed = (replace(each, name=rename_tensor(name) or name) for name, each in header.tensors.items())
    tensors = {each.name: each for each in sorted(renamed, key=lambda each: each.name)}
    return Headers(directory=header.file, tensors=tensors, files=(header.file.name,))


def make_config(header: GgufHeader) -> dict[str, Any]:
    """Return the config.json of the model.

    Raises:
        InvalidSetup: draftwise does not know the architecture in GGUF files, or a value is missing.
    """
    where, architecture = str(header.file), header.architecture
    if architecture not in _ARCHITECTURES or header.get("expert_count"):
        what = f"{architecture} with experts" if architecture in _ARCHITECTURES else architecture
        raise refusal("unsupported-architecture", what=quote(what), where=where, names=", ".join(_ARCHITECTURES))
    hidden, heads = _need(header, "embedding_length"), _need(header, "attention.head_count")
    vocabulary = header.tensors.get("token_embd.weight")
    if vocabulary is None:
        raise _missing(header, "tensor token_embd.weight")
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": vocabulary.shape[0],
        "hidden_size": hidden,
        "intermediate_size": _need(header, "feed_forward_length"),
        "num_hidden_layers": _need(header, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.get("attention.head_count_kv", heads),
        "head_dim": header.get("attention.key_length", hidden // heads),
        "hidden_act": "silu",
        "rms_norm_eps": _need(header, "attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": _need(header, "context_length"),
        "rope_theta": header.get("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "torch_dtype": _find_dtype(header),
    }
    if scaling := _find_scaling(header):
        config["rope_scaling"] = scaling
    if architecture == "llama" and "blk.0.attn_q.bias" in header.tensors:
        config["attention_bias"] = True
    ids = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "padding_token_id": "pad_token_id"}
    given = {name: header.metadata.get(f"tokenizer.ggml.{key}") for key, name in ids.items()}
    return config | {name: value for name, value in given.items() if value is not None}


def _need(header: GgufHeader, key: str) -> Any:
    value = header.get(key)
    if value is None:
        raise _missing(header, f"value {header.architecture}.{key}")
    return value


def _missing(header: GgufHeader, what: str) -> InvalidSetup:
    return refusal("incomplete-gguf", what=what, file=header.file)


def _find_dtype(header: GgufHeader) -> str:
    """Return the type to compute in: that of the matrices; bfloat16 where these are quantized."""
    found = {tensor.dtype for tensor in header.tensors.values() if len(tensor.shape) > 1}
    known = {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}
    return known.get(frozenset(found), "bfloat16")


def _find_scaling(header: GgufHeader) -> Mapping[str, Any] | None:
    """Return how positions are scaled, as config.json says it; None for not at all."""
    if ROPE_FACTORS in header.tensors:
        return _find_llama3_scaling(header, header.tensors[ROPE_FACTORS])
    kind = header.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling = {"rope_type": kind, "factor": header.get("rope.scaling.factor", 1.0)}
    original = header.get("rope.scaling.original_context_length")
    return scaling | ({} if original is None else {"original_max_position_embeddings": original})


def _find_llama3_scaling(header: GgufHeader, stored: Tensor) -> Mapping[str, Any]:
    """Return the scaling whose divisors of the frequencies these are.

    Raises:
        InvalidSetup: it is another one.
    """
    with header.file.open("rb") as stream:
        stream.seek(stored.start)
        divisors = (
            struct.unpack(f"<{stored.num_elements}f", stream.read(stored.num_bytes)) if stored.dtype == "F32" else ()
        )
    factor, base = max(divisors, default=1.0), header.get("rope.freq_base", 10000.0)
    expected = [_divide(factor, 2 * pi * base ** (i / len(divisors))) for i in range(len(divisors))]
    if not divisors or not all(map(partial(isclose, rel_tol=1e-3), divisors, expected)):
        raise refusal("unsupported-rope", rope_factors=ROPE_FACTORS, file=header.file)
    bounds = {"low_freq_factor": _LOW, "high_freq_factor": _HIGH, "original_max_position_embeddings": _ORIGINAL}
    return {"rope_type": "llama3", "factor": factor, **bounds}


def _divide(factor: float, wavelength: float) -> float:
    """Return what a frequency is divided by: nothing where it is high, the factor where it is low."""
    share = min(max((_ORIGINAL / wavelength - _LOW) / (_HIGH - _LOW), 0.0), 1.0)
    return 1 / ((1 - share) / factor + share)
