"""Which weight files of a checkpoint directory count, and what stands there instead of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from draftwise.checkpoints.quoting import quote_some
from draftwise.checkpoints.text_files import check_directory, read_json
from draftwise.core import Finding, InvalidSetup

__all__ = ["Reader", "WeightFiles", "find_disagreements", "find_weight_files"]

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
    """Return the files that the index names; without one all safetensors files.

    `consolidated*.safetensors`, Mistral's own layout, hold the same weights a second time, so they count only where
    there is nothing else.

    Args:
        directory: of the checkpoint.
        reader: transformers takes `model.safetensors` where it is there, for saving a small model over a sharded one
            leaves a stale index; vLLM goes by the index.

    Raises:
        InvalidSetup: there is no such directory, no weights in safetensors files, or a shard is missing.
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
    weight_map = read_json(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise _bad_index(directory, "has no `weight_map` that names the file of each tensor")
    names = sorted(set(weight_map.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise _bad_index(directory, f"names {quote_some(outside)}, which is outside the directory")
    present = {entry.name for entry in directory.iterdir() if entry.is_file()}
    absent = [name for name in names if name not in present]
    if absent or not names:
        raise InvalidSetup.because(
            "shards-missing",
            f"Of the {len(names)} files that {INDEX} names {len(absent)} are not there: {quote_some(absent)}.",
            where=str(directory),
            fix="Download the checkpoint again, all shards included.",
        )
    return WeightFiles(directory=directory, files=tuple(directory / name for name in names), index=weight_map)


def _bad_index(directory: Path, what: str) -> InvalidSetup:
    return InvalidSetup.because(
        "bad-index", f"The index {what}.", where=str(directory / INDEX), fix="Download the checkpoint again."
    )


def _no_weights(directory: Path) -> InvalidSetup:
    others = sorted(file.name for pattern in _OTHER_FORMATS for file in directory.glob(pattern))
    others = [name for name in others if name not in ("training_args.bin", "optimizer.bin", "scheduler.bin")]
    if others:
        return InvalidSetup.because(
            "not-safetensors",
            f"The weights are there as {quote_some(others)}; only safetensors files say their sizes unloaded.",
            where=str(directory),
            fix="Save the model with transformers' save_pretrained, which writes safetensors.",
        )
    return InvalidSetup.because(
        "no-weights",
        "The directory holds no *.safetensors file.",
        where=str(directory),
        fix="Download the weights too, or save the model with transformers' save_pretrained.",
    )


def find_disagreements(chosen: WeightFiles, found: Iterable[str], twice: Iterable[str]) -> Iterator[Finding]:
    """Yield where index and files disagree: tensors that are in no file, or in two."""
    found = set(found)
    if lost := sorted(chosen.index.keys() - found):
        yield Finding.error(
            "indexed-tensors-missing",
            f"The index names tensors that are in no file ({len(lost)}): {quote_some(lost)}.",
            where=str(chosen.directory / INDEX),
            fix="Download the checkpoint again: index and shards are of different versions.",
        )
    if doubled := sorted(set(twice)):
        yield Finding.warning(
            "tensors-twice",
            f"Some tensors are in more than one file ({len(doubled)}): {quote_some(doubled)}.",
            where=str(chosen.directory),
            fix="Remove the files that do not belong to this model, or add an index; the last one read counts.",
        )
