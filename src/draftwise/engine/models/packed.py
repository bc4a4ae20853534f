"""A checkpoint's matrices in oneDNN's layout, packed once and mapped by every process that uses them.

Packing copies all weights, so each server would hold its own copy. Here, the copies are files in the cache folder:
processes that map the same file share its memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from draftwise.engine.models.linear import PackedLinear, can_pack, limit_instructions, pack
from draftwise.machine.folders import cache_folder, one_at_a_time

_LEAST_BYTES = 32 * 2**20
"""Minimum size of a checkpoint for sharing."""
_UNUSED_S = 30 * 24 * 3600.0
"""Seconds after which an unopened file is removed."""
_WEIGHTS, _INDEX = "weights.bin", "index.json"
_MKLDNN_LAYOUT = 3
"""`at::Layout::Mkldnn`."""

_Place = dict[str, Any]
"""`start` and `bytes` in the file; of a packed matrix also `shape`, `dtype` and `layout`, oneDNN's description."""


class PackedFile:
    """Matrices by name, mapped from a file. While the file is being written, missing ones are packed and added.

    Args:
        folder: folder of the file and its index.
        places: contents of a complete index. None: write a new file.
    """

    def __init__(self, folder: Path, places: Mapping[str, _Place] | None) -> None:
        self.folder = folder
        self._places: dict[str, _Place] = dict(places or {})
        self._is_new = places is None
        self._file: BinaryIO = (folder / _WEIGHTS).open("wb+" if self._is_new else "rb")
        self._whole = None if self._is_new else _map(self._file, 0, 0)

    def linear(self, name: str, load: Callable[[], Tensor], bias_O: Tensor | None) -> PackedLinear:
        """Return the product with a matrix. If the file lacks it, `load` provides it."""
        if name in self._places:
            return self._mapped(name, bias_O)
        weight_OK = load()
        packed = pack(weight_OK)
        own = PackedLinear(packed, bias_O)
        about = {
            "shape": list(weight_OK.shape),
            "dtype": str(weight_OK.dtype).removeprefix("torch."),
            "layout": bytes(torch.ops.mkldnn._get_mkldnn_serialized_md(packed).tolist()).hex(),
        }
        if not self._add(name, torch.ops.mkldnn.data_ptr(packed), torch.ops.mkldnn._nbytes(packed), about):
            return own
        shared, probe_1K = self._mapped(name, bias_O), weight_OK[:1]
        if torch.equal(shared(probe_1K), own(probe_1K)):
            return shared
        self._is_new = False  # torch's private functions mean something else than they did: nothing is kept
        return own

    def table(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, load: Callable[[], Tensor]) -> Tensor:
        """Return a tensor unchanged. If the file lacks it, `load` provides it."""
        if name not in self._places:
            tensor = load().contiguous()
            if not self._add(name, tensor.data_ptr(), tensor.nbytes, {}):
                return tensor
        return self._bytes(name).view(dtype).view(shape)

    def close(self) -> None:
        """Close the file. Mappings stay valid."""
        self._file.close()

    def complete(self) -> bool:
        """Write the index. Return False if the file should not be kept."""
        if self._is_new:
            os.fsync(self._file.fileno())
            with (self.folder / _INDEX).open("w", encoding="utf-8") as index:
                json.dump(self._places, index)
                index.flush()
                os.fsync(index.fileno())
        return self._is_new

    def _add(self, name: str, address: int, num_bytes: int, about: _Place) -> bool:
        """Append bytes at an address where they can be mapped; return whether that worked, and all before it."""
        if not self._is_new:
            return False
        try:
            start = -(-self._file.seek(0, os.SEEK_END) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            self._file.seek(start)
            self._file.write((ctypes.c_char * num_bytes).from_address(address))
            self._file.flush()
        except OSError:  # the disk is full
            self._is_new = False
            return False
        self._places[name] = {"start": start, "bytes": num_bytes, **about}
        return True

    def _bytes(self, name: str) -> Tensor:
        """Return the bytes of an entry; the tensor keeps the mapping."""
        start, num_bytes = self._places[name]["start"], self._places[name]["bytes"]
        if self._whole is None:
            return _map(self._file, start, num_bytes)
        return self._whole[start : start + num_bytes]

    def _mapped(self, name: str, bias_O: Tensor | None) -> PackedLinear:
        place, memory = self._places[name], self._bytes(name)
        dtype = getattr(torch, place["dtype"])
        return PackedLinear(_view(memory, place["shape"], dtype, bytes.fromhex(place["layout"])), bias_O, memory)


def _map(file: BinaryIO, start: int, num_bytes: int) -> Tensor:
    """Return a part of a file, 0 bytes for all of it; its pages are shared as long as nobody writes to them."""
    return torch.frombuffer(
        mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_COPY, offset=start), dtype=torch.uint8
    )


@contextmanager
def open_packed(
    files: Iterable[Path], dtype: torch.dtype, device: torch.device, how: str = ""
) -> Iterator[PackedFile | None]:
    """Open the packed matrices of a checkpoint; None if they are not shared.

    The first process packs and writes them; others wait. They are valid only for these files, this version of torch and
    this processor.

    Args:
        files: all files that the weights depend on; empty: not shared.
        dtype: type of the weights in memory.
        device: device of the model.
        how: further distinction among matrices of the same files.
    """
    chosen = sorted(set(files))
    size = sum(file.stat().st_size for file in chosen)
    if not chosen or size < _LEAST_BYTES or not can_pack(device, dtype) or not _can_view():
        yield None
        return
    folder = cache_folder() / "packed" / _key(chosen, dtype, how)
    places = _read_index(folder)
    if places is None:
        with one_at_a_time("packed"):
            places = _read_index(folder)
            if places is None:
                with _write(folder, size) as packed:
                    yield packed
                return
    packed = PackedFile(folder, places)
    try:
        yield packed
    finally:
        packed.close()


def _read_index(folder: Path) -> dict[str, _Place] | None:
    """Return the index of a complete folder, None if missing; a folder that is read counts as used."""
    try:
        index = folder / _INDEX
        places: dict[str, _Place] = json.loads(index.read_text(encoding="utf-8"))
        os.utime(index)
        end = max(place["start"] + place["bytes"] for place in places.values())
        return places if (folder / _WEIGHTS).stat().st_size >= end else None
    except (OSError, ValueError):
        return None


@contextmanager
def _write(folder: Path, size: int) -> Iterator[PackedFile | None]:
    """Write a folder next to its place, and move it there once it is complete."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_unused(folder.parent)
        if shutil.disk_usage(folder.parent).free < 2 * size:
            raise OSError("no room")
        packed = PackedFile(Path(tempfile.mkdtemp(prefix="new-", dir=folder.parent)), None)
    except OSError:
        yield None
        return
    try:
        yield packed
        with suppress(OSError):
            if packed.complete():
                shutil.rmtree(folder, ignore_errors=True)  # what is there is damaged
                packed.folder.rename(folder)
    finally:
        packed.close()
        shutil.rmtree(packed.folder, ignore_errors=True)


def _remove_unused(folder: Path) -> None:
    """Remove what nobody has opened for long; who has mapped it keeps it."""
    for old in filter(Path.is_dir, folder.iterdir()):
        opened = max((file.stat().st_mtime for file in old.iterdir()), default=0.0)
        if time.time() - opened > _UNUSED_S:
            shutil.rmtree(old, ignore_errors=True)


def _key(files: list[Path], dtype: torch.dtype, how: str) -> str:
    """Return a name that changes with whatever the packed bytes depend on."""
    stamps = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    depends = [stamps, str(dtype), torch.__version__, _processor(), limit_instructions(), how]
    return hashlib.sha256(json.dumps(depends).encode()).hexdigest()


def _processor() -> list[str]:
    """Return the processor's name and instructions."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if found := [match[0] for name in ("model name", "flags") if (match := re.search(rf"^{name}.*", text, re.M))]:
            return found
    return [platform.machine(), platform.processor(), torch.backends.cpu.get_cpu_capability()]


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


def _can_view() -> bool:
    """Return whether this build of torch makes oneDNN tensors of memory that it does not own (ahead-of-time models
    need that)."""
    with suppress(OSError):
        return hasattr(_library(), "aoti_torch_create_tensor_from_blob_v2") and hasattr(
            getattr(torch._C, "_aoti", None), "alloc_tensor_by_stealing_from_void_ptr"
        )
    return False


def _view(memory: Tensor, shape: list[int], dtype: torch.dtype, layout: bytes) -> Tensor:
    """Return packed weights of this layout over bytes that must outlive them."""
    library, handle = _library(), ctypes.c_void_p()
    sizes, strides = (ctypes.c_int64 * 2)(*shape), (ctypes.c_int64 * 2)(shape[1], 1)
    kind = getattr(library, f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}")()
    status = library.aoti_torch_create_tensor_from_blob_v2(
        ctypes.c_void_p(memory.data_ptr()),
        ctypes.c_int64(2),
        sizes,
        strides,
        ctypes.c_int64(0),
        ctypes.c_int32(kind),
        ctypes.c_int32(library.aoti_torch_device_type_cpu()),
        ctypes.c_int32(0),
        ctypes.byref(handle),
        ctypes.c_int32(_MKLDNN_LAYOUT),
        ctypes.c_char_p(layout),
        ctypes.c_int64(len(layout)),
    )
    assert status == 0, "torch has logged why"
    make_capsule = ctypes.pythonapi.PyCapsule_New
    make_capsule.restype, make_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(make_capsule(handle, None, None))
