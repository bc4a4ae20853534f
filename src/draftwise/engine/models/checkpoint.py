"""Reads a Hugging Face checkpoint directory, config.json and safetensors, one tensor at a time; writes safetensors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from draftwise.checkpoints.config_json import read_config
from draftwise.checkpoints.headers import read_headers
from draftwise.core import InvalidSetup

__all__ = ["CheckpointReader", "write_tensors"]


_EXPERT = re.compile(r"(?P<experts>.*\.experts\.)(?P<number>\d+)\.(?P<half>gate|up|down)_proj\.weight")
"""A matrix of one expert; newer files hold those of a layer in one tensor [experts, rows, columns], gate above up."""


class CheckpointReader:
    """A checkpoint on disk; tensors are read when asked for and not kept.

    Args:
        path: the directory.
        dummy: read no weights; each tensor comes back random (norms as ones, biases as zeros), so that config.json is
            enough to measure speed.

    Attributes:
        config: the parsed config.json.
        files: the file of each tensor, by the tensor's name.
    """

    def __init__(self, path: str | Path, *, dummy: bool = False) -> None:
        self.path = Path(path)
        self.config: dict[str, Any] = read_config(self.path)
        self._dummy = dummy
        self._tensors = {} if dummy else read_headers(self.path, "transformers").tensors
        self.files: Mapping[str, Path] = {name: self.path / tensor.file for name, tensor in self._tensors.items()}
        self._missing: list[str] = []
        self._read: set[str] = set()

    def read(self, name: str, shape: tuple[int, ...], *, out: Tensor | None = None) -> Tensor:
        """Return tensor `name`, or copy it into `out` (and return that).

        A tensor that the checkpoint lacks is remembered for `check_complete` and comes back as zeros.

        Raises:
            InvalidSetup: the file is damaged, or the tensor has another shape.
        """
        if self._dummy:
            return _make_up(name, torch.empty(shape) if out is None else out)
        source, part = self._find(name)
        if source not in self.files:
            self._missing.append(name)
            return out if out is not None else torch.zeros(shape)
        self._read.add(source)
        file, stored = self.files[source], part.shape if part else self._tensors[source].shape
        if stored != shape:
            raise InvalidSetup.because(
                "tensor-shapes",
                f"Tensor {name} has shape {stored}, config.json asks for {shape}.",
                where=str(file),
                fix="config.json and the weights belong to different models, or the weights are quantized.",
            )
        try:
            # Opened anew each time: pages of a mapped file count as memory until it is closed.
            with safe_open(file, framework="pt") as tensors:
                tensor = tensors.get_slice(source)[part.place] if part else tensors.get_tensor(source)
        except (SafetensorError, OSError) as error:
            raise InvalidSetup.because(
                "damaged-weights",
                f"The file cannot be read ({error}).",
                where=str(file),
                fix="Download the file again.",
            ) from None
        return tensor.clone() if out is None else out.copy_(tensor)

    def _find(self, name: str) -> tuple[str, _Part | None]:
        """Return the stored tensor that holds another, and which part of it; None: all."""
        if name in self.files or (match := _EXPERT.fullmatch(name)) is None:
            return name, None
        source, number = (
            match["experts"] + ("down_proj" if match["half"] == "down" else "gate_up_proj"),
            int(match["number"]),
        )
        shape = self.shape_of(source) or ()
        if len(shape) != 3 or number >= shape[0]:
            return name, None
        first, end = {"gate": (0, shape[1] // 2), "up": (shape[1] // 2, shape[1]), "down": (0, shape[1])}[match["half"]]
        return source, _Part(shape=(end - first, shape[2]), place=(number, slice(first, end)))

    def check_complete(self) -> None:
        """Raise InvalidSetup naming every tensor that was asked for in vain."""
        if self._missing:
            shown = ", ".join(self._missing[:8]) + (" ..." if len(self._missing) > 8 else "")
            raise InvalidSetup.because(
                "tensors-missing",
                f"The checkpoint lacks {len(self._missing)} tensors: {shown}.",
                where=str(self.path),
                fix="Download or export the checkpoint again, all shards included.",
            )

    def unread(self) -> list[str]:
        """Return the names of the tensors that nobody asked for; vLLM refuses most drafters that have some."""
        return sorted(self.files.keys() - self._read)

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of tensor `name` without reading it, None if there is no such tensor."""
        tensor = self._tensors.get(name)
        return None if tensor is None else tensor.shape


class _Part(NamedTuple):
    """Rows of one expert in a tensor of all."""

    shape: tuple[int, ...]
    place: tuple[int, slice]


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file that others may read as they may any new file.

    The library makes it readable to its owner alone, and the server may run as somebody else.
    """
    save_file(dict(tensors), file, metadata={"format": "pt"})
    mask = os.umask(0)
    os.umask(mask)
    file.chmod(0o666 & ~mask)


def _make_up(name: str, out: Tensor) -> Tensor:
    """Fill a tensor as vLLM's dummy loader does: small numbers, the same in every tensor of a size.

    So the head is the embedding again, and greedy text repeats itself.
    """
    if out.dim() == 1:
        return out.fill_(0 if name.endswith(".bias") else 1)
    return out.uniform_(-1e-3, 1e-3, generator=torch.Generator(out.device).manual_seed(1234))
