"""Bytes of target and drafter on one GPU: exact from headers, otherwise from the shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftwise.checkpoints.config_values import get_int
from draftwise.checkpoints.gguf_files import is_gguf, list_tensors, read_gguf
from draftwise.checkpoints.headers import Headers, Tensor, layer_of, read_headers, role_of
from draftwise.core import InvalidSetup, ModelShape
from draftwise.plan.size.decoder_parts import decoder_parts
from draftwise.plan.size.shapes import rotary_bytes
from draftwise.plan.size.size_request import SizeRequest
from draftwise.plan.size.weight_parts import Part, PipelineStage, Sharding, num_bytes, pad_vocabulary

_COPIED = re.compile(
    r"norm|(?:^|[._])ln[._]|\.gate\.weight$|router|shared_expert_gate|e_score_correction_bias|q_a_proj|kv_a_proj|\.indexer\.|"
    r"eh_proj|^fc\.|\.fc\.|d2t|t2d|markov_|(?:o_proj|down_proj)\.bias$"
)
_KV = re.compile(r"\.(?:k_proj|v_proj)\.")
_NOT_LOADED = re.compile(r"rotary_emb\.inv_freq$|^t2d$|\.masked_bias$|\.attn\.bias$")


def find_headers(directory: Path | None) -> Headers | None:
    """Return a checkpoint's headers; None if it has only config files."""
    if directory is None:
        return None
    try:
        return list_tensors(read_gguf(directory)) if is_gguf(directory) else read_headers(directory)
    except InvalidSetup as error:
        if all(finding.code in ("no-weights", "not-safetensors", "lfs-pointer") for finding in error.findings):
            return None
        raise


def stored_bytes(
    headers: Headers,
    shape: ModelShape,
    *,
    tensor_parallel_size: int = 1,
    stage: PipelineStage | None = None,
    roles: Mapping[str, bool] | None = None,
) -> int:
    """Return the bytes of a checkpoint on one GPU.

    Weights stored in 32 bits are loaded in 16, as with vLLM's `--dtype auto`; scales stay as they are.

    Args:
        headers: headers of the checkpoint.
        shape: shape of the same model.
        tensor_parallel_size: GPUs that share every layer.
        stage: pipeline stage; None for all layers.
        roles: role -> whether to count it; by default all but multi-token prediction modules.
    """
    counted = roles or {"mtp": False}
    total = 0
    for tensor in headers.tensors.values():
        role = role_of(tensor.name, shape.num_layers)
        if not counted.get(role, True) or _NOT_LOADED.search(tensor.name):
            continue
        if role == "head" and shape.tie_word_embeddings:
            continue
        if stage is None or _is_on(stage, tensor, role, tied=shape.tie_word_embeddings):
            total += _share(tensor, role, shape, tensor_parallel_size)
    return total


def _is_on(stage: PipelineStage, tensor: Tensor, role: str, *, tied: bool) -> bool:
    layer = layer_of(tensor.name)
    if layer is not None:
        return stage.first <= layer < stage.end
    if role in ("head", "norm"):
        return stage.is_last
    return stage.is_first or (tied and role == "embedding" and stage.is_last)


def _share(tensor: Tensor, role: str, shape: ModelShape, size: int) -> int:
    split = _split_of(tensor, role)
    total = tensor.num_bytes
    if tensor.dtype == "F32" and role != "quantization" and len(tensor.shape) > 1:
        total //= 2
    if split is Sharding.COPIED or len(tensor.shape) == 0:
        return total
    if split is Sharding.VOCABULARY:
        rows = tensor.shape[0]
        return total // max(1, rows) * -(-pad_vocabulary(rows) // size)
    if split is Sharding.KV:
        heads = shape.num_kv_heads
        return total // heads * max(1, -(-heads // size))
    return -(-total // size)


def _split_of(tensor: Tensor, role: str) -> Sharding:
    if role in ("embedding", "head") and len(tensor.shape) == 2:
        return Sharding.VOCABULARY
    if _COPIED.search(tensor.name):
        return Sharding.COPIED
    return Sharding.KV if _KV.search(tensor.name) else Sharding.SHARDED


def target_bytes(request: SizeRequest, stage: PipelineStage) -> int:
    """Return the target's bytes in one stage, including its rotary table."""
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


def drafter_bytes(request: SizeRequest) -> int:
    """Return the drafter's bytes on its GPU (the last stage's), without weights that it shares with the target."""
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
