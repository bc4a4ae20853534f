"""What a GGUF file holds, from its header: metadata, and tensors with their types, shapes and places.

No weight is read, and none of gguf, torch or numpy is needed. Like a safetensors header this one is believed only as
far as it fits its file (format: ggml's docs/gguf.md; block sizes: `GGML_QUANT_SIZES` of the gguf package 0.19).
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftwise.checkpoints.headers import Tensor
from draftwise.checkpoints.quoting import quote
from draftwise.checkpoints.text_files import POINTER_BYTES, refuse_pointer
from draftwise.core import InvalidSetup

__all__ = ["GgufHeader", "is_gguf", "read_gguf"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_ENTRIES = 2**24
"""Of an array, of the metadata and of the tensors: a hundred times the largest vocabulary."""
_MOST_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Value type -> how `struct` spells it."""
_BLOCKS: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    30: ("BF16", 1, 2),
    28: ("F64", 1, 8),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
}
"""Tensor type -> name, elements of a block, bytes of a block. What is not here is not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """Everything in front of the weights."""

    file: Path
    metadata: Mapping[str, Any]
    """Numbers, texts, and arrays as lists."""
    tensors: Mapping[str, Tensor]
    """By the file's own names; shapes as torch writes them, the outermost dimension first."""

    @property
    def architecture(self) -> str:
        """`general.architecture`, empty where the file does not say."""
        return str(self.metadata.get("general.architecture") or "")

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the architecture's own, such as `block_count`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


def is_gguf(path: str | Path) -> bool:
    """Return whether a path names a GGUF file that is there."""
    try:
        return str(path).endswith(".gguf") and Path(path).is_file()
    except (OSError, ValueError):  # longer than a path may be, or with a null byte
        return False


def read_gguf(file: str | Path) -> GgufHeader:
    """Return the header of a GGUF file.

    Raises:
        InvalidSetup: it is no such file, cut short, damaged, one part of several, or of a quantization that is unknown.
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
        raise _damaged(file, f"cannot be read ({error.strerror or error})") from None


class _Reader:
    """Reads values one after the other; what would reach past the end of the file is refused."""

    def __init__(self, file: Path, data: mmap.mmap) -> None:
        self._file, self._data, self._at = file, data, len(_MAGIC)

    def read(self) -> GgufHeader:
        version = self._number("I")
        if version not in _VERSIONS:
            raise _damaged(
                self._file, f"is of GGUF version {quote(version)}; {_VERSIONS} can be read", "Convert it anew."
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

    def _number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))[0]

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
        code = f"{count}{self._scalar(inner)}"
        return list(struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}"))))

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
            raise InvalidSetup.because(
                "unsupported-quantization",
                f"Tensor {quote(name)} is of GGML type {kind}, which is not supported.",
                where=str(self._file),
                fix=f"Take a file in one of {', '.join(name for name, _, _ in _BLOCKS.values())}.",
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
