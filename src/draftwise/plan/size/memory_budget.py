"""The memory budget of the fullest GPU of a request, and vLLM's layout of the KV cache in it.

Layers of one kind share a group, and every group one pool of blocks of equal size (v1/core/kv_cache_utils.py,
get_kv_cache_groups). So a hybrid model pays for padding, and a drafter for its own layers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from draftwise.core import Finding, InvalidSetup, ModelShape
from draftwise.core.budget import Budget, KVCache, KVGroup
from draftwise.core.shape import KVLayer
from draftwise.knowledge.memory_overheads import Overheads, get_overheads
from draftwise.plan.check.serving.cuda_graphs import capture_sizes, count_graphs
from draftwise.plan.size.activations import ProfiledStep, activations, buffers
from draftwise.plan.size.size_request import NO_DRAFTER, SizeRequest
from draftwise.plan.size.weight_bytes import drafter_bytes, target_bytes
from draftwise.plan.size.weight_parts import PipelineStage, stages

__all__ = ["CachedLayer", "cached_layers", "drafter_layers", "kv_value_bytes", "lay_out", "measure"]

_VALUE_BYTES = {
    "auto": 2.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "half": 2.0,
    "float32": 4.0,
    "float": 4.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp8_inc": 1.0,
    "int8_per_token_head": 1.0,
    "fp8_per_token_head": 1.0,
    "int4_per_token_head": 0.5,
    "nvfp4": 0.5625,
}
"""Bytes of one value by `--kv-cache-dtype`; NVFP4 keeps an 8-bit scale for each 16 values."""
_SCALE_BYTES = 4
"""Of each head and token, under the `_per_token_head` types."""
_DS_MLA_BYTES = 656
"""Bytes of a token in DeepSeek's own 8-bit layout of the latent (v1/kv_cache_interface.py, MLAAttentionSpec)."""

_PADDING_LIMIT = 1.5
"""Groups are padded to the larger kind while it has less than so many times the layers of the smaller one."""


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """One layer's share of the cache on one GPU."""

    bytes_per_token: int
    window: int | None = None
    is_draft: bool = False

    @property
    def kind(self) -> tuple[int, int | None]:
        """What layers must have in common to share a group."""
        return self.bytes_per_token, self.window


def kv_value_bytes(name: str, shape: ModelShape) -> float:
    """Return the bytes of one cached value of a model, scales included.

    Raises:
        InvalidSetup: the bytes of that type are not known.
    """
    if name == "fp8_ds_mla" and shape.latent_dim:
        return _DS_MLA_BYTES / shape.latent_dim
    if (found := _VALUE_BYTES.get(name)) is None:
        raise InvalidSetup.because(
            "unknown-kv-cache-dtype",
            f"The bytes of a KV-cache entry in {name!r} are not known.",
            where="--kv-cache-dtype",
            fix=f"Give one of {', '.join(_VALUE_BYTES)}.",
        )
    return found + (_SCALE_BYTES / shape.head_dim if name.endswith("_per_token_head") else 0)


def cached_layers(
    layers: Iterable[KVLayer], value_bytes: float, tensor_parallel_size: int, *, is_draft: bool = False
) -> list[CachedLayer]:
    """Return the layers of one model as one GPU keeps them."""
    return [
        CachedLayer(round(layer.values_per_rank(tensor_parallel_size) * value_bytes), layer.window, is_draft)
        for layer in layers
    ]


def drafter_layers(
    drafter: ModelShape, target: ModelShape, value_bytes: float, tensor_parallel_size: int
) -> list[CachedLayer]:
    """Return a drafter's layers as they are cached beside a target.

    A window that all layers of a model share is a setting of the cache, which the drafter has from the target: its own
    is not looked at (model_executor/layers/attention/attention.py, `cache_config.sliding_window`). Only windows that
    differ from layer to layer are the drafter's own.
    """
    inherited = target.windows[0] if target.windows and len(set(target.windows)) == 1 else None
    layers = drafter.kv_layers()
    if len({layer.window for layer in layers}) == 1:
        layers = tuple(replace(layer, window=inherited) for layer in layers)
    return cached_layers(layers, value_bytes, tensor_parallel_size, is_draft=True)


def lay_out(layers: Sequence[CachedLayer], *, block_size: int = 16, pads_to_larger: bool = True) -> KVCache:
    """Return the blocks of a model and its drafter.

    Args:
        layers: of both, as one GPU keeps them.
        block_size: tokens of a block in the layers that need most memory.
        pads_to_larger: whether the release pads the smaller kind of layers up to the larger one.

    Raises:
        InvalidSetup: no layer keeps keys and values, or the sizes of the layers' blocks do not divide one another.
    """
    if not layers:
        raise InvalidSetup.because("no-kv-cache", "No layer keeps keys and values.")
    kinds = Counter(layer.kind for layer in layers)
    if len({window for _, window in kinds}) == 1:
        return _one_group(layers, block_size)
    return _several_groups(layers, kinds, block_size, pads_to_larger)


def _one_group(layers: Sequence[CachedLayer], block_size: int) -> KVCache:
    total = sum(layer.bytes_per_token for layer in layers)
    return KVCache(
        groups=(KVGroup(num_layers=len(layers), block_size=block_size, window=layers[0].window),),
        bytes_per_block=total * block_size,
        bytes_per_token=total,
        drafter_bytes_per_token=sum(layer.bytes_per_token for layer in layers if layer.is_draft),
    )


def _several_groups(
    layers: Sequence[CachedLayer], kinds: Counter[tuple[int, int | None]], block_size: int, pads_to_larger: bool
) -> KVCache:
    largest = max(size for size, _ in kinds)
    if odd := sorted({size for size, _ in kinds if largest % size}):
        raise InvalidSetup(
            Finding.error(
                "kv-pages-do-not-divide",
                f"Layers keep {largest} and {odd[0]} bytes a token, which do not divide: vLLM cannot share its blocks.",
                fix="Choose a drafter with the target's head size and number of key-value heads.",
            )
        )
    counts = sorted(kinds.values())
    size = counts[-1] if pads_to_larger and counts[-1] < counts[0] * _PADDING_LIMIT else counts[0]
    groups = [
        KVGroup(num_layers=min(size, count - first), block_size=block_size * (largest // each), window=window)
        for (each, window), count in kinds.items()
        for first in range(0, count, size)
    ]
    return KVCache(
        groups=tuple(groups),
        bytes_per_block=largest * block_size * size,
        bytes_per_token=sum(layer.bytes_per_token for layer in layers),
        drafter_bytes_per_token=sum(layer.bytes_per_token for layer in layers if layer.is_draft),
    )


_GRAPH_SWITCH = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"


def measure(request: SizeRequest) -> Budget:
    """Return the budget of the fullest GPU."""
    cut = stages(request.shape.num_layers, request.pipeline_parallel_size)
    return min((_measure_stage(request, stage) for stage in cut), key=lambda budget: budget.num_blocks)


def _measure_stage(request: SizeRequest, stage: PipelineStage) -> Budget:
    overheads = get_overheads(request.gpu, request.runner)
    step = _step(request)
    with_drafter = stage.is_last and request.drafter is not NO_DRAFTER
    drafter = request.drafter if with_drafter else NO_DRAFTER
    graphs, counted = _graphs(request, stage, overheads)
    return Budget(
        device=request.gpu.memory_bytes,
        requested=math.ceil(request.gpu.memory_bytes * request.gpu_memory_utilization),
        target=target_bytes(request, stage),
        drafter=drafter_bytes(request) if with_drafter else 0,
        activations=activations(step, request.config, request.shape, drafter, overheads),
        non_torch=overheads.non_torch,
        graphs=graphs,
        graphs_counted=counted,
        buffers=buffers(step, request.shape, drafter, overheads),
        buffers_counted=not request.rules.holds("size-buffers-not-counted"),
        context=overheads.context,
        kv=_kv_cache(request, stage),
        max_model_len=request.max_model_len,
        max_num_seqs=request.max_num_seqs,
        in_flight=_in_flight(request),
        num_speculative_tokens=request.num_speculative_tokens,
    )


def _step(request: SizeRequest) -> ProfiledStep:
    return ProfiledStep(
        rules=request.rules,
        runner=request.runner,
        gpu=request.gpu,
        max_num_batched_tokens=request.max_num_batched_tokens,
        max_num_seqs=min(request.max_num_seqs, request.max_num_batched_tokens),
        num_speculative_tokens=request.num_speculative_tokens,
        tensor_parallel_size=request.tensor_parallel_size,
        enforce_eager=request.enforce_eager,
        cold_start=request.cold_start,
        probabilistic=request.probabilistic,
    )


def _kv_cache(request: SizeRequest, stage: PipelineStage) -> KVCache:
    """Return the cache of one stage: the layers that it has, and the drafter's on the last one."""
    shape, size = request.shape, request.tensor_parallel_size
    kept = [layer for layer in range(shape.num_layers) if layer not in shape.stateful_layers]
    here = [layer for index, layer in zip(kept, shape.kv_layers(), strict=True) if stage.first <= index < stage.end]
    layers = cached_layers(here, kv_value_bytes(request.kv_cache_dtype, shape), size)
    drafter = request.drafter.shape
    if stage.is_last and drafter is not None:
        value_bytes = kv_value_bytes(request.kv_cache_dtype, drafter)
        layers += drafter_layers(drafter, shape, value_bytes, request.draft_tensor_parallel_size)
    if not request.is_hybrid and len({layer.window for layer in layers}) > 1:
        layers = [replace(layer, window=None) for layer in layers]
    return lay_out(layers, block_size=request.block_size, pads_to_larger=request.rules.holds("size-padded-groups"))


def _in_flight(request: SizeRequest) -> int:
    both = request.async_scheduling and request.rules.holds("size-in-flight-tokens")
    return request.max_num_batched_tokens * (1 + both)


def _graphs(request: SizeRequest, stage: PipelineStage, overheads: Overheads) -> tuple[int, int]:
    """Return the bytes of CUDA graphs, and how much of them the release takes off the KV cache."""
    if request.enforce_eager:
        return 0, 0
    seqs, k = request.max_num_seqs, request.num_speculative_tokens
    sizes = capture_sizes(
        request.release,
        request.gpu,
        max_num_seqs=seqs,
        num_speculative_tokens=k,
        max_num_batched_tokens=request.max_num_batched_tokens,
    )
    captured = count_graphs(request.release, sizes, max_num_seqs=seqs, num_speculative_tokens=k) * (
        stage.end - stage.first
    )
    if stage.is_last and request.drafter.shape is not None:  # the drafter's own graphs, piece by piece
        captured += len(sizes) * request.drafter.shape.num_layers
    taken = round(captured * overheads.graph_per_layer)
    return taken, round(captured * overheads.graph_estimate_per_layer) if _is_counted(request) else 0


def _is_counted(request: SizeRequest) -> bool:
    """Say whether the release takes an estimate of the graphs off the KV cache."""
    asked = request.env.get(_GRAPH_SWITCH)
    if request.rules.holds("size-graphs-not-counted") or asked == "0":
        return False
    if request.runner == "V2" and request.rules.holds("size-graphs-first-runner-only"):
        return False
    return asked == "1" or not request.rules.holds("size-graphs-opt-in")
