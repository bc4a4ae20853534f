"""Headers of a checkpoint's safetensors files: names, types, shapes, bytes and roles of its tensors.

Reads no weights, and needs none of safetensors, torch or numpy. A header is trusted only if it follows the format
(https://github.com/huggingface/safetensors#format): known types, contiguous offsets, and a file that ends with the last
tensor.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from draftwise.checkpoints.text_files import (
    POINTER_BYTES,
    check_directory,
    quote,
    quote_some,
    read_json,
    refuse_pointer,
)
from draftwise.core import Finding, InvalidSetup, cause_of
from draftwise.knowledge.messages import fault, refusal, warning

MTP = "mtp"
"""Role of tensors in multi-token prediction modules."""

MTP_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "mtp_num_layers")
"""Keys of a config.json that state their number (vLLM, config/speculative.py, hf_config_override)."""

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_VISION = re.compile(r"(?:^|\.)(?:visual|vision\w*|audio\w*|image\w*|multi_modal_projector|mm_projector)\.")
_ROLES = (
    (MTP, re.compile(r"(?:^|\.)(?:mtp(?:_\w+)?|nextn_predict_layers)\.|\.(?:eh_proj|enorm|hnorm|shared_head)\.")),
    ("other modality", _VISION),
    (
        "quantization",
        re.compile(
            r"(?:scales?|scale_inv|scale_2|qzeros|g_idx|zero_points?|weight_shape|amax|absmax|quant_map)$|quant_state\."
        ),
    ),
    ("vocabulary map", re.compile(r"(?:^|\.)(?:d2t|t2d|token_map)$")),
    ("embedding", re.compile(r"(?:embed_tokens|word_embeddings|wte|tok_embeddings|^speculator\.emb\.\d+)\.")),
    ("head", re.compile(r"(?:^|\.)(?:lm_head|lm_heads\.\d+|output|embed_out)\.|^speculator\.head\.")),
    ("experts", re.compile(r"\.(?:experts|shared_experts?|block_sparse_moe)\.")),
    ("attention", re.compile(r"\.(?:self_attn|attn|attention|linear_attn|mixer)\.")),
    ("mlp", re.compile(r"\.(?:mlp|feed_forward)\.")),
    ("norm", re.compile(r"norm|(?:^|\.)ln[._]")),
)


def layer_of(name: str) -> int | None:
    """Return the number of a tensor's decoder layer; None if it belongs to none."""
    if _VISION.search(name):
        return None
    match = _LAYER.search(name)
    return int(match[1]) if match and len(match[1]) < 6 else None


def role_of(name: str, num_hidden_layers: int | None = None) -> str:
    """Return the role of a tensor: embedding, head, attention, experts, mlp, norm, mtp ... or `other`.

    Args:
        num_hidden_layers: number of decoder layers; layers after them are multi-token prediction modules (DeepSeek's
            layout).
    """
    layer = layer_of(name)
    if num_hidden_layers is not None and layer is not None and layer >= num_hidden_layers:
        return MTP
    return next((role for role, pattern in _ROLES if pattern.search(name)), "other")


INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"

Reader = Literal["vllm", "transformers"]

_OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.npz", "*.h5")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFiles:
    """The safetensors files that a server reads."""

    directory: Path
    files: tuple[Path, ...]
    index: Mapping[str, str] = field(default_factory=dict)
    """File name by tensor name; empty without an index."""


def find_weight_files(directory: Path, reader: Reader = "vllm") -> WeightFiles:
    """Return the files that the index names; without an index, all safetensors files.

    `consolidated*.safetensors`, Mistral's own layout, hold the same weights again, so they count only if there are no
    others.

    Args:
        reader: transformers prefers `model.safetensors`, because saving a small model over a sharded one leaves a stale
            index; vLLM uses the index.

    Raises:
        InvalidSetup: the directory does not exist, has no safetensors weights, or lacks a shard.
    """
    check_directory(directory)
    if reader == "transformers" and (directory / _SINGLE).is_file():
        return WeightFiles(directory=directory, files=(directory / _SINGLE,))
    if (directory / INDEX).is_file():
        return _find_indexed(directory)
    found = sorted(directory.glob("*.safetensors"))
    chosen = [file for file in found if not file.name.startswith("consolidated")] or found
    if not chosen:
        raise _no_weights(directory)
    return WeightFiles(directory=directory, files=tuple(chosen))


def _find_indexed(directory: Path) -> WeightFiles:
    weight_map = _read_weight_map(directory)
    names = sorted(set(weight_map.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise _bad_index(directory, f"names {quote_some(outside)}, which is outside the directory")
    present = {entry.name for entry in directory.iterdir() if entry.is_file()}
    absent = [name for name in names if name not in present]
    if names and len(absent) == len(names):
        raise _no_weights(directory)
    if absent or not names:
        raise refusal(
            "shards-missing",
            lost=len(absent),
            named=len(names),
            index=INDEX,
            absent=quote_some(absent),
            directory=directory,
        )
    return WeightFiles(directory=directory, files=tuple(directory / name for name in names), index=weight_map)


def _read_weight_map(directory: Path) -> dict[str, str]:
    weight_map = read_json(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise _bad_index(directory, "has no `weight_map` that names the file of each tensor")
    return weight_map


def _bad_index(directory: Path, what: str) -> InvalidSetup:
    return refusal("bad-index", what=what, index=directory / INDEX)


def _no_weights(directory: Path) -> InvalidSetup:
    others = sorted(file.name for pattern in _OTHER_FORMATS for file in directory.glob(pattern))
    others = [name for name in others if name not in ("training_args.bin", "optimizer.bin", "scheduler.bin")]
    if others:
        return refusal("not-safetensors", others=quote_some(others), directory=directory)
    return refusal("no-weights", directory=directory)


def find_disagreements(chosen: WeightFiles, found: Iterable[str], twice: Iterable[str]) -> Iterator[Finding]:
    """Yield disagreements of index and files: tensors in no file, or in two."""
    found = set(found)
    if lost := sorted(chosen.index.keys() - found):
        yield fault(
            "indexed-tensors-missing", num_lost=len(lost), lost=quote_some(lost), index=chosen.directory / INDEX
        )
    if doubled := sorted(set(twice)):
        yield warning("tensors-twice", number=len(doubled), doubled=quote_some(doubled), directory=chosen.directory)


DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits of one element by the format's name of its type (safetensors 0.8, `Dtype`)."""

_MAX_HEADER_BYTES = 100_000_000
"""The safetensors library refuses longer ones."""
_MAX_RANK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor, from its header."""

    name: str
    dtype: str
    """Type in the format's spelling, a key of DTYPE_BITS."""
    shape: tuple[int, ...]
    num_bytes: int
    file: str
    """File name within the checkpoint's directory."""
    start: int
    """Offset of its values in the file, in bytes."""

    @property
    def num_elements(self) -> int:
        """Number of stored elements: packed INT4 weights count as the integers that hold them."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """All tensors of a checkpoint that a server would read."""

    directory: Path
    tensors: Mapping[str, Tensor]
    """Tensors by name, sorted by name."""
    files: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    """Findings that do not prevent reading, such as an index that disagrees with the files."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors, as stored and in memory with the stored type."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())

    @property
    def num_elements(self) -> int:
        """Number of stored elements of all tensors."""
        return sum(tensor.num_elements for tensor in self.tensors.values())

    def bytes_by_dtype(self) -> dict[str, int]:
        """Return the bytes of each type, largest first."""
        return _sum((tensor.dtype, tensor.num_bytes) for tensor in self.tensors.values())

    def bytes_by_role(self, num_hidden_layers: int | None = None) -> dict[str, int]:
        """Return the bytes of each role (see `role_of`), largest first.

        Args:
            num_hidden_layers: number of decoder layers; layers after them are multi-token prediction modules.
        """
        return _sum((role_of(name, num_hidden_layers), tensor.num_bytes) for name, tensor in self.tensors.items())


def _sum(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for key, count in pairs:
        total[key] += count
    return dict(total.most_common())


def read_headers(directory: str | Path, reader: Reader = "vllm") -> Headers:
    """Return the tensors of a checkpoint, from the files that its index names, else from all its safetensors files.

    Args:
        reader: program whose choice of files to follow; see `find_weight_files`.

    Raises:
        InvalidSetup: files or shards are missing, truncated or damaged, or are Git LFS pointers; the error lists all
            faults.
    """
    chosen = find_weight_files(Path(directory), reader)
    faults: list[Finding] = []
    tensors: dict[str, Tensor] = {}
    twice: list[str] = []
    for file in chosen.files:
        try:
            found = read_file(file)
        except InvalidSetup as error:
            faults += error.findings
            continue
        twice += sorted(tensors.keys() & found.keys())
        tensors |= found
    if faults:
        raise InvalidSetup(faults)
    return Headers(
        directory=Path(directory),
        tensors=dict(sorted(tensors.items())),
        files=tuple(file.name for file in chosen.files),
        findings=tuple(find_disagreements(chosen, tensors, twice)),
    )


def read_index(directory: str | Path) -> Headers | None:
    """Return the tensors in a checkpoint's index, without types, shapes and bytes; None without an index.

    Raises:
        InvalidSetup: the index is damaged.
    """
    directory = Path(directory)
    if not (directory / INDEX).is_file():
        return None
    names = _read_weight_map(directory)
    tensors = {
        name: Tensor(name=name, dtype="", shape=(), num_bytes=0, file=file, start=0)
        for name, file in sorted(names.items())
    }
    return Headers(directory=directory, tensors=tensors, files=tuple(sorted(set(names.values()))))


def read_file(file: Path) -> dict[str, Tensor]:
    """Return the tensors of one safetensors file by name.

    Raises:
        InvalidSetup: it is not a safetensors file, is a Git LFS pointer, or is truncated.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(POINTER_BYTES)
            refuse_pointer(file, start)
            length = _header_length(file, start, size)
            stream.seek(8)
            header = _parse(file, stream.read(length))
    except OSError as error:
        raise _damaged(file, f"cannot be read ({cause_of(error)})") from None
    return _check_tensors(file, header, data_start=8 + length, size=size)


def _header_length(file: Path, start: bytes, size: int) -> int:
    if len(start) < 8:
        raise _damaged(file, f"is no safetensors file: it has {size} bytes")
    (length,) = struct.unpack("<Q", start[:8])
    if length > _MAX_HEADER_BYTES:
        raise _damaged(file, f"is no safetensors file: its header would be {length:,} bytes long")
    if 8 + length > size:
        raise _damaged(file, f"is cut short: its header is {length:,} bytes long, the file {size:,}")
    return int(length)


def _parse(file: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _damaged(file, f"has a header that is not valid JSON ({cause_of(error)[:120]})") from None
    if not isinstance(header, dict):
        raise _damaged(file, "has a header that is no JSON object")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    for name in found:
        name.encode()  # half of a surrogate pair is no name, and could not be shown
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_tensors(file: Path, header: Mapping[str, Any], *, data_start: int, size: int) -> dict[str, Tensor]:
    """Return the tensors of a file of `size` bytes, which must fill it from `data_start` to its end."""
    tensors = {
        name: _check_tensor(file, name, entry, data_start) for name, entry in header.items() if name != "__metadata__"
    }
    end = data_start
    for tensor in sorted(tensors.values(), key=lambda each: (each.start, each.num_bytes)):
        if tensor.start != end:
            raise _damaged(file, f"has tensor {quote(tensor.name)} at byte {tensor.start:,}, {end:,} was expected")
        end += tensor.num_bytes
    if end > size:
        raise _damaged(file, f"is cut short: its tensors end at byte {end:,}, the file at {size:,}")
    if end < size:
        raise _damaged(file, f"has {size - end:,} bytes behind its last tensor")
    return tensors


def _check_tensor(file: Path, name: str, entry: Any, data_start: int) -> Tensor:
    fields = entry if isinstance(entry, dict) else {}
    dtype: Any = fields.get("dtype")
    shape: Any = fields.get("shape")
    offsets: Any = fields.get("data_offsets")
    if not (_are_counts(shape) and len(shape) <= _MAX_RANK):
        raise _damaged(file, f"gives tensor {quote(name)} no valid shape")
    if not (_are_counts(offsets) and len(offsets) == 2):
        raise _damaged(file, f"gives tensor {quote(name)} no valid data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        shown = dtype if isinstance(dtype, str) else json.dumps(dtype)
        raise _damaged(file, f"gives tensor {quote(name)} the unknown type {quote(shown)}")
    num_bits = math.prod(shape) * DTYPE_BITS[dtype]
    start, end = offsets
    if num_bits != 8 * (end - start):
        size = f"{dtype} of shape {quote(shape)} takes {quote(num_bits // 8)}"
        raise _damaged(file, f"gives tensor {quote(name)} {end - start} bytes, where {size}")
    return Tensor(
        name=name,
        dtype=dtype,
        shape=tuple(shape),
        num_bytes=end - start,
        file=file.name,
        start=data_start + start,
    )


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _damaged(file: Path, what: str) -> InvalidSetup:
    return InvalidSetup.because("damaged-weights", f"The file {what}.", where=str(file), fix="Download the file again.")
