"""Quantization methods of vLLM beyond their names: which are deprecated, and which weights each reads."""

from __future__ import annotations

from packaging.version import Version

from draftwise.knowledge.stored import read_data
from draftwise.knowledge.vllm import get_release, history

_TOPIC = "quantization_methods"


def is_deprecated(method: str, version: Version) -> bool:
    """Return whether a release loads a method only with `allow_deprecated_quantization`."""
    row = get_release(str(version)).table(_TOPIC).get(method)
    return row is not None and bool(row["deprecated"])


def needs_checkpoint(method: str) -> bool:
    """Return whether a method takes its settings from a quantized checkpoint, rather than quantizing while it loads.

    The newest release that has the method answers.
    """
    spans = history(_TOPIC, method)
    return bool(spans) and bool(spans[-1].value["needs_checkpoint"])


def reads_weights_of(method: str, checkpoint: str) -> bool:
    """Return whether a method runs weights that a checkpoint declares for another, as gptq_marlin does for gptq."""
    data = read_data("quantization")
    return method in data["same_weights"].get(checkpoint, (checkpoint,)) or method in data["every_checkpoint"]


def find_plugin(method: str) -> str | None:
    """Return the package that registers a method which vLLM itself does not have; None for any other."""
    found: str | None = read_data("quantization")["of_plugins"].get(method)
    return found


def runs_in_float32(method: str) -> bool:
    """Return whether a method may run in float32: False where no release lets it."""
    return method not in read_data("quantization")["never_in_float32"]
