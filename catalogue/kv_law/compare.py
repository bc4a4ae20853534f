"""draftwise's half of the law: what `size` makes of every case, held against vLLM's answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftwise.core import InvalidSetup, Setup, SpecConfig
from draftwise.plan.size.memory_budget import in_flight, kv_cache
from draftwise.plan.size.size_request import read_request
from draftwise.plan.size.weight_parts import stages

__all__ = ["MEMORY", "differences", "sized"]

MEMORY = 1 << 40
"""Bytes that the worker gave vLLM's planner on each GPU."""


def sized(case: Mapping[str, Any], target: str, version: str, drafter: str | None = None) -> dict[str, Any]:
    """Return what `size` makes of a case, in the worker's words.

    Args:
        case: as it was given to the worker.
        target: the target's config.json.
        version: of vLLM.
        drafter: the folder of the drafter's config.json.

    Raises:
        InvalidSetup: `size` gives no number.
    """
    spec = dict(case.get("spec") or {})
    if drafter is not None:
        spec["model"] = drafter
    setup = Setup(
        target=target, engine="vllm", engine_version=version, spec=SpecConfig.keep(spec) if spec else None,
        args=dict(case.get("flags") or {}),
    )  # fmt: skip
    request = read_request(setup, gpu="H200")
    caches = [kv_cache(request, stage) for stage in stages(request.shape.num_layers, request.pipeline_parallel_size)]
    blocks = min(MEMORY // cache.bytes_per_block for cache in caches)
    fullest = max(caches, key=lambda cache: cache.bytes_per_block)
    ahead = in_flight(request)
    lengths = sorted({length for length in (1024, 8192) if length <= request.max_model_len} | {request.max_model_len})
    held = {str(length): fullest.blocks_per_sequence(length, ahead) for length in lengths}
    return {
        "blocks": blocks, "max_model_len": request.max_model_len, "per_sequence": held, "in_flight": ahead,
        "least": held[str(request.max_model_len)] + fullest.null_blocks, "max_num_seqs": request.max_num_seqs,
    }  # fmt: skip


def differences(answer: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Return the numbers of `ours` that are not vLLM's."""
    return [f"{key}: {ours[key]}, vLLM {answer.get(key)}" for key in ours if ours[key] != answer.get(key)]


def compare(case: Mapping[str, Any], answer: Mapping[str, Any], models: Path, version: str) -> list[str] | None:
    """Return what differs; None where vLLM or `size` gives no number."""
    head = (case.get("spec") or {}).get("model")
    try:
        ours = sized(case, str(models / case["target"] / "config.json"), version, head and str(models / head))
    except InvalidSetup:
        return None
    return differences(answer, ours)
