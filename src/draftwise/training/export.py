"""Converts a drafter to the format that a server needs, and loads the result before it is moved into place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwise.checkpoints.config_values import find_mask_token
from draftwise.checkpoints.identity import IDENTITY_FILE, check_identity
from draftwise.checkpoints.recognize import recognize
from draftwise.checkpoints.speculators_format import from_plain, to_plain
from draftwise.core import InvalidSetup
from draftwise.engine.models.checkpoint import Checkpoint
from draftwise.knowledge.methods import Method
from draftwise.training.assemble import join_mtp
from draftwise.training.checkpoint import load_back, new_folder, read_tensor, save_drafter

__all__ = ["FORMATS", "Exported", "export_drafter"]

FORMATS = ("vllm", "speculators")
_NUM_HEADS = ("num_heads", "medusa_num_heads", "n_predict")
"""Keys of a config.json that hold how many heads a drafter has, where each drafts one token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An exported drafter, and how to serve it."""

    out: str
    model: str
    """What to serve."""
    speculative_config: dict[str, Any]


def export_drafter(drafter: Path, out: Path, *, target: Path, layout: str, k: int | None = None) -> Exported:
    """Write a drafter to a new directory.

    MTP modules are joined with their target, since vLLM reads them from its checkpoint. EAGLE-3, P-EAGLE and DFlash
    drafters are written in vLLM's plain layout or in that of the speculators library, whichever they came in; all
    others in the plain layout.

    Args:
        drafter: its directory.
        out: a directory that does not exist; it is created once the result has been loaded successfully.
        target: checkpoint that it was trained for.
        layout: one of FORMATS.
        k: draft tokens per step in a server; None: as many as the drafter has heads or was trained for, or 3.

    Raises:
        InvalidSetup: the drafter is incomplete, is for another target, has no such format, or `out` exists.
    """
    check_identity(drafter, target)
    checkpoint = Checkpoint(drafter)
    where = str(drafter / "config.json")
    config = to_plain(checkpoint.config, where=where)
    method = _find_method(config, checkpoint.files, where)
    in_target = method.weights == "target"
    spec: dict[str, Any] = {"method": method.name, "num_speculative_tokens": k or _trained_k(drafter, config, method)}
    if method.parallel == "option" and find_mask_token(config) is not None:
        spec["parallel_drafting"] = True
    with new_folder(out) as folder, _named(folder, drafter):
        if in_target:
            _refuse_speculators(layout, where)
            join_mtp(target, drafter, folder)
            load_back(folder, spec)
        else:
            _write(checkpoint, config, folder, layout, target, spec["num_speculative_tokens"])
            load_back(target, spec | {"model": str(folder)})
    if in_target:
        return Exported(out=str(out), model=str(out), speculative_config=spec)
    return Exported(out=str(out), model=str(target), speculative_config=spec | {"model": str(out)})


@contextmanager
def _named(draft: Path, drafter: Path) -> Iterator[None]:
    """Say of the drafter what is found in the folder that is not in place yet: it is gone when that is read."""

    def name(text: str) -> str:
        return text.replace(str(draft), str(drafter))

    try:
        yield
    except InvalidSetup as error:
        raise InvalidSetup(
            replace(each, message=name(each.message), where=name(each.where), fix=name(each.fix))
            for each in error.findings
        ) from None


def _find_method(config: Mapping[str, Any], names: Collection[str], where: str) -> Method:
    method = recognize(config, names).traits
    if method.trainable and method.drafts_from == "target_states":
        return method
    raise InvalidSetup.because(
        "unsupported-architecture",
        f"Architecture {', '.join(config.get('architectures') or []) or 'unknown'} cannot be exported as a drafter.",
        where=where,
        fix="A draft model needs no export; other drafters must be of a method that `draftwise train` has.",
    )


def _trained_k(drafter: Path, config: Mapping[str, Any], method: Method) -> int:
    """Return the number of draft tokens that a drafter was trained for, one for each head; 3 if it is not recorded."""
    if config.get("block_size"):
        return int(config["block_size"]) - 1
    if method.network == "heads" and (heads := next(filter(None, map(config.get, _NUM_HEADS)), None)):
        return int(heads)
    try:
        training = json.loads((drafter / IDENTITY_FILE).read_text(encoding="utf-8"))["training"]
        return int(training["num_speculative_tokens"])
    except (OSError, ValueError, KeyError, TypeError):
        return 3


def _refuse_speculators(layout: str, where: str) -> None:
    if layout == "speculators":
        raise InvalidSetup.because(
            "not-in-speculators-format",
            "MTP modules have no speculators format.",
            where=where,
            fix="Leave --format out.",
        )


def _write(checkpoint: Checkpoint, config: dict[str, Any], folder: Path, layout: str, target: Path, k: int) -> None:
    """Write config.json, tensors and identity."""
    tensors = {name: read_tensor(checkpoint, name) for name in checkpoint.files}
    if layout == "speculators":
        tensors |= _companions(tensors, Checkpoint(target))
        written = from_plain(config, verifier=str(target), k=k, where=str(checkpoint.path / "config.json"))
    else:
        written = config
    dtype = next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    save_drafter(folder, written, tensors, dtype)
    identity = checkpoint.path / IDENTITY_FILE
    if identity.exists():
        shutil.copyfile(identity, folder / identity.name)


def _companions(tensors: Mapping[str, Tensor], target: Checkpoint) -> dict[str, Tensor]:
    """Return what the speculators library stores in addition to a drafter's own tensors."""
    added: dict[str, Tensor] = {}
    if "embed_tokens.weight" not in tensors:
        added["embed_tokens.weight"] = read_tensor(target, "model.embed_tokens.weight")
    if "d2t" in tensors and "t2d" not in tensors:
        ids_U = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
        added["t2d"] = torch.zeros(target.config["vocab_size"], dtype=torch.bool).index_fill(0, ids_U, True)
    return added
