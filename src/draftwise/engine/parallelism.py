"""More than one GPU is vLLM's job: the settings that ask for it are answered with the command that does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwise.core import Finding, InvalidSetup, Setup, SpecConfig

__all__ = ["PARALLEL_SIZES", "one_gpu_settings", "vllm_setup"]

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
        from draftwise.setups.write import write_shell  # read only for this answer

        command = write_shell(vllm_setup(model, spec, settings))
        raise InvalidSetup(
            Finding.error(
                "more-than-one-gpu",
                f"{name} is {size}, but draftwise runs a model on one GPU; more than one is vLLM's job.",
                where=name,
                fix=f"Run: {command}",
            )
            for name, size in several.items()
        )
    return {name: value for name, value in settings.items() if name not in PARALLEL_SIZES}


def vllm_setup(model: str, spec: SpecConfig | None, settings: Mapping[str, Any]) -> Setup:
    """Return the same model, settings and speculative config on the newest vLLM."""
    args = {
        name: value
        for name, value in settings.items()
        if value is not None and name not in _OURS and (name not in PARALLEL_SIZES or value != 1)
    }
    return Setup(target=model, engine="vllm", spec=spec, args=args)
