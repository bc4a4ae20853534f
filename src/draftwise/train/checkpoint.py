"""Writes and reads the tensors of a trained drafter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from draftwise.engine.models.checkpoint import Checkpoint

__all__ = ["read_tensor", "save_drafter"]


def save_drafter(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Write config.json and model.safetensors.

    Args:
        folder: where to; it exists.
        config: becomes config.json.
        tensors: floating-point ones are stored in `dtype`, others as they are.
        dtype: the target's.
    """
    stored = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype, copy=True).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")


def read_tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    """Return a tensor of a checkpoint in whatever shape it has there."""
    shape = checkpoint.shape_of(name)
    assert shape is not None, name
    return checkpoint.read(name, shape)
