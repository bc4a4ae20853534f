"""From a resolved request to the budget of its fullest GPU."""

from __future__ import annotations

import math
from dataclasses import replace

from draftwise.core.budget import Budget, KVCache
from draftwise.knowledge.memory import Overheads, get_overheads
from draftwise.plan.check.serving.graphs import capture_sizes, count_graphs
from draftwise.plan.size.kv import cached_layers, drafter_layers, kv_value_bytes, lay_out
from draftwise.plan.size.parts import Stage, stages
from draftwise.plan.size.profile import Step, activations, buffers
from draftwise.plan.size.request import NO_DRAFTER, Request
from draftwise.plan.size.weights import drafter_bytes, target_bytes

__all__ = ["measure"]

_GRAPH_SWITCH = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"


def measure(request: Request) -> Budget:
    """Return the budget of the fullest GPU."""
    cut = stages(request.shape.num_layers, request.pipeline_parallel_size)
    return min((_measure_stage(request, stage) for stage in cut), key=lambda budget: budget.num_blocks)


def _measure_stage(request: Request, stage: Stage) -> Budget:
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


def _step(request: Request) -> Step:
    return Step(
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


def _kv_cache(request: Request, stage: Stage) -> KVCache:
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


def _in_flight(request: Request) -> int:
    both = request.async_scheduling and request.rules.holds("size-in-flight-tokens")
    return request.max_num_batched_tokens * (1 + both)


def _graphs(request: Request, stage: Stage, overheads: Overheads) -> tuple[int, int]:
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


def _is_counted(request: Request) -> bool:
    """Say whether the release takes an estimate of the graphs off the KV cache."""
    asked = request.env.get(_GRAPH_SWITCH)
    if request.rules.holds("size-graphs-not-counted") or asked == "0":
        return False
    if request.runner == "V2" and request.rules.holds("size-graphs-first-runner-only"):
        return False
    return asked == "1" or not request.rules.holds("size-graphs-opt-in")
