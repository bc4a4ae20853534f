"""Bytes of target and drafter on one GPU: exact where there are headers, else from the shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from draftwise.checkpoints.dimensions import get_int
from draftwise.plan.size.decoder import decoder_parts
from draftwise.plan.size.parts import Part, Stage, num_bytes
from draftwise.plan.size.request import Request
from draftwise.plan.size.shapes import rotary_bytes
from draftwise.plan.size.stored import find_headers, stored_bytes

__all__ = ["drafter_bytes", "target_bytes"]


def target_bytes(request: Request, stage: Stage) -> int:
    """Return the target's bytes in one stage, its table of rotary positions included."""
    rotary = rotary_bytes(request.config, request.shape)
    headers = find_headers(request.directory)
    if headers is not None:
        stored = stored_bytes(headers, request.shape, tensor_parallel_size=request.tensor_parallel_size, stage=stage)
        return stored + rotary
    parts = [
        replace(part, quantized=part.quantized and part.role not in request.spared)
        for part in decoder_parts(request.config, request.shape)
    ]
    parts += _vision_parts(request.vision, request.shape.hidden_size)
    return rotary + num_bytes(parts, request.precision, tensor_parallel_size=request.tensor_parallel_size, stage=stage)


def drafter_bytes(request: Request) -> int:
    """Return the drafter's bytes on the GPU that has it (the last stage's), without what it shares with the target."""
    drafter, size = request.drafter, request.draft_tensor_parallel_size
    in_target = drafter.facts.weights == "target"
    headers = find_headers(request.directory if in_target else request.drafter_directory)
    if headers is not None and in_target:
        every = dict.fromkeys(
            {role for role in headers.bytes_by_role(request.shape.num_layers) if role != "mtp"}, False
        )
        if stored := stored_bytes(headers, request.shape, tensor_parallel_size=size, roles=every):
            return stored
    elif headers is not None and drafter.parts:
        shape = drafter.shape or request.shape
        shared = {"embedding": False} if "embedding" in drafter.facts.shares else {}
        return stored_bytes(headers, shape, tensor_parallel_size=size, roles=shared | {"mtp": True})
    precision = request.precision if in_target else request.drafter_precision
    rotary = rotary_bytes({}, drafter.shape) if drafter.facts.drafts_from == "own_model" and drafter.shape else 0
    return rotary + num_bytes(drafter.parts, precision, tensor_parallel_size=size)


def _vision_parts(vision: Mapping[str, Any] | None, hidden: int) -> tuple[Part, ...]:
    """Return a vision tower as the usual transformer of its config: four square matrices and two of the MLP a layer."""
    if not isinstance(vision, Mapping) or not (width := get_int(vision, "hidden_size")):
        return ()
    layers = get_int(vision, "num_hidden_layers", "depth") or 0
    inner = get_int(vision, "intermediate_size") or 4 * width
    numbers = (layers * (4 * width * width + 2 * width * inner), width * hidden)
    return (
        Part(name="vision layers", role="other", rows=numbers[0] // width, cols=width, quantized=False),
        Part(name="projector", role="other", rows=numbers[1] // width, cols=width, quantized=False),
    )
