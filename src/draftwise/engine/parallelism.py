"""More than one GPU is vLLM's job: the settings that ask for it are answered with the command that does it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from draftwise.core import Finding, InvalidSetup, Severity, SpecConfig

__all__ = ["PARALLEL_SIZES", "one_gpu_settings", "vllm_command"]

PARALLEL_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_OURS = frozenset({"device", "cudagraph_capture_sizes", "hidden_states_folder"})
"""Settings that vLLM does not have, has in another place or counts otherwise."""


def one_gpu_settings(model: str, spec: SpecConfig | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without their parallel sizes, which may be 1 here.

    Raises:
        InvalidSetup: one of them is larger; the fix is the `vllm serve` command with the same settings.
    """
    several = {name: settings[name] for name in PARALLEL_SIZES if (settings.get(name) or 1) != 1}
    if several:
        command = vllm_command(model, spec, settings)
        raise InvalidSetup(
            Finding(
                code="more-than-one-gpu",
                severity=Severity.ERROR,
                where=name,
                message=f"is {size}, but draftwise runs a model on one GPU; more than one is vLLM's job.",
                fix=f"Run: {command}",
            )
            for name, size in several.items()
        )
    return {name: value for name, value in settings.items() if name not in PARALLEL_SIZES}


def vllm_command(model: str, spec: SpecConfig | None, settings: Mapping[str, Any]) -> str:
    """Return the `vllm serve` line of the same model, settings and speculative config."""
    words = ["vllm", "serve", model]
    for name, value in settings.items():
        if name not in _OURS and (name not in PARALLEL_SIZES or value != 1):
            words += _flag(name, value)
    if spec is not None:
        words += ["--speculative-config", spec.to_json()]
    return shlex.join(words)


def _flag(name: str, value: Any) -> Iterator[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        yield flag
    elif value is False:
        yield flag.replace("--", "--no-", 1)
    elif value is not None:
        yield from (flag, str(value))
