"""Writes trained drafters, and reads them back."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from draftwise.core import InvalidSetup, SpecConfig
from draftwise.engine.engine_config import EngineConfig
from draftwise.engine.models import load_model
from draftwise.engine.models.checkpoint import Checkpoint, write_tensors
from draftwise.engine.proposers import make_proposer
from draftwise.engine.resolved_spec import resolve_spec

__all__ = ["load_back", "new_folder", "read_tensor", "save_drafter"]


def save_drafter(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Write config.json and model.safetensors.

    Args:
        folder: an existing directory.
        config: becomes config.json.
        tensors: floating-point ones are stored in `dtype`, others unchanged.
        dtype: the target's.
    """
    stored = {
        name: tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype, copy=True).contiguous()
        for name, tensor in tensors.items()
    }
    write_tensors(folder / "model.safetensors", stored)
    (folder / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Provide a folder to write to, which becomes `out` if the block completes.

    Raises:
        InvalidSetup: `out` exists.
    """
    if out.exists():
        raise InvalidSetup.because(
            "output-exists", "The directory already exists.", where=str(out), fix="Name a new directory."
        )
    partial = out.with_name(f".{out.name}-{uuid4().hex[:8]}")
    partial.mkdir(parents=True)
    try:
        yield partial
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load_back(model: Path, speculative_config: dict[str, Any]) -> None:
    """Load a model and its drafter in the same way as a serving engine.

    Raises:
        InvalidSetup: the files are incomplete or inconsistent.
    """
    spec = resolve_spec(SpecConfig.parse(speculative_config))
    config = EngineConfig.from_settings(model=str(model), device="cpu")
    make_proposer(spec, config, load_model(model, device="cpu"))


def read_tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    """Return a tensor of a checkpoint in the shape that it has there."""
    shape = checkpoint.shape_of(name)
    assert shape is not None, name
    return checkpoint.read(name, shape)
