"""The memory budget of the fullest GPU of a request: the activations of a profiled step, and the cache.

The profile is one step of `max_num_batched_tokens` tokens, the sampler for `max_num_seqs` of them, and the drafter. Its
peak is the largest set of tensors alive at once, read from vLLM 0.26.0's allocations on an H200 (the script is in
benchmarks/ARCHIVE.md).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from draftwise.core import ModelShape
from draftwise.core.budget import Budget, KVCache
from draftwise.core.grouping import copy_fields
from draftwise.core.shape import KVLayer
from draftwise.knowledge.gpus import Gpu
from draftwise.knowledge.memory_overheads import Overheads, Runner, get_overheads
from draftwise.knowledge.messages import refusal
from draftwise.knowledge.model_types import find_model_type
from draftwise.knowledge.rules import Rulebook
from draftwise.knowledge.stored import read_data
from draftwise.plan.check.serving.cuda_graphs import capture_sizes, count_graphs
from draftwise.plan.size.decoder_parts import num_experts
from draftwise.plan.size.drafter_parts import Drafter
from draftwise.plan.size.kv_layout import (
    EXPORTS_CHECKPOINTS,
    CachedLayer,
    LayoutRules,
    StateBlocks,
    align_block_size,
    lay_out,
    state_bytes,
    state_kind,
)
from draftwise.plan.size.size_request import NO_DRAFTER, SizeRequest
from draftwise.plan.size.weight_bytes import drafter_bytes, target_bytes
from draftwise.plan.size.weight_parts import PipelineStage, stages

_BF16 = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledStep:
    """Inputs for the sizes of the profiled step."""

    rules: Rulebook
    """The release's rules."""
    runner: Runner
    gpu: Gpu
    max_num_batched_tokens: int
    max_num_seqs: int
    num_speculative_tokens: int
    tensor_parallel_size: int
    enforce_eager: bool
    cold_start: bool
    """Whether torch.compile's cache is empty, as in a fresh container."""
    probabilistic: bool = False
    """Whether the drafter keeps its probabilities (`draft_sample_method`)."""


def activations(
    step: ProfiledStep, config: Mapping[str, Any], shape: ModelShape, drafter: Drafter, overheads: Overheads
) -> int:
    """Return the peak of the profiled step on top of the weights."""
    forward, hidden = _forward(step, config, shape), _hidden(step, shape)
    passes = [forward + drafter.num_aux_layers * hidden, _sampler(step, shape) + (1 + drafter.num_aux_layers) * hidden]
    if drafter.shape is not None:
        passes.append(2 * hidden + _forward(_draft_step(step, drafter), drafter.config, drafter.shape))
        if drafter.facts.network == "one_pass":
            passes.append((drafter.num_aux_layers + 3) * hidden + _block_head(step, drafter.config, drafter.shape))
    if step.enforce_eager or not step.cold_start or not step.rules.holds("size-cold-compile"):
        return max(passes) + overheads.workspace
    if not num_experts(config):  # while the first layer's kernels are timed, with a buffer that flushes the L2 cache
        passes.append(forward + step.gpu.l2_bytes)
    return max(max(passes) + overheads.workspace, _tuning(step, shape, drafter, overheads))


def _draft_step(step: ProfiledStep, drafter: Drafter) -> ProfiledStep:
    """Return the step of the drafter: all tokens, or for a block drafter the rows that it fills in."""
    if drafter.facts.network != "one_pass":
        return step
    rows = step.max_num_seqs * (1 + step.num_speculative_tokens)
    return replace(step, max_num_batched_tokens=min(rows, step.max_num_batched_tokens))


def _block_head(step: ProfiledStep, config: Mapping[str, Any], shape: ModelShape) -> int:
    """Return what a block drafter takes to draft all tokens at once.

    A hidden state and a row of logits for each draft token, next to the fused projection of the context's keys and
    values (models/qwen3_dflash.py, _build_fused_kv_buffers).
    """
    vocab = config.get("draft_vocab_size") or shape.vocab_size
    projection = shape.num_layers * 2 * shape.num_kv_heads * shape.head_dim * shape.hidden_size
    return (step.max_num_seqs * step.num_speculative_tokens * (vocab + shape.hidden_size) + projection) * _BF16


def _hidden(step: ProfiledStep, shape: ModelShape) -> int:
    return step.max_num_batched_tokens * shape.hidden_size * _BF16


def _forward(step: ProfiledStep, config: Mapping[str, Any], shape: ModelShape) -> int:
    """Return the largest set of tensors of one layer.

    Of feed-forward: gate and up, their product, three hidden states. Of attention: the fused projection, queries, keys
    and output, two hidden states. Experts have workspaces besides.
    """
    tokens, size, hidden = step.max_num_batched_tokens, step.tensor_parallel_size, shape.hidden_size
    values = max(_attention_values(config, shape, size), 0 if num_experts(config) else _dense_values(shape, size))
    if experts := num_experts(config):
        inner = (config.get("moe_intermediate_size") or shape.intermediate_size) // size
        chosen = config.get("num_experts_per_tok") or 1
        # Two workspaces, for each token and chosen expert (fused_moe, workspace_shapes).
        values += chosen * (max(inner, hidden) + max(2 * inner, hidden)) + min(experts, 1024)
    return tokens * values * _BF16


def _dense_values(shape: ModelShape, size: int) -> int:
    return 3 * shape.intermediate_size // size + 3 * shape.hidden_size


def _attention_values(config: Mapping[str, Any], shape: ModelShape, size: int) -> int:
    heads = -(-shape.num_heads // size)
    if shape.latent_dim:
        inner = int(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
        return heads * (3 * inner + 2 * int(config["v_head_dim"])) + 2 * shape.hidden_size
    queries, keys = heads * shape.head_dim, max(1, shape.num_kv_heads // size) * shape.head_dim
    return 4 * queries + 2 * keys + 2 * shape.hidden_size


def _sampler(step: ProfiledStep, shape: ModelShape) -> int:
    """Return what the dummy sampler takes.

    V1 makes 32-bit logits, probabilities and noise, and under speculation a row of each for a drafted token and its
    bonus (v1/sample/sampler.py, rejection_sampler.py); V2 works in place on 16-bit logits (v1/worker/gpu/sample).
    """
    row = step.max_num_seqs * shape.vocab_size
    if step.runner == "V2":
        return row * _BF16
    per_logit = 30 if step.num_speculative_tokens else 14
    return row * per_logit + step.gpu.multiprocessors * shape.vocab_size * 4


def _tuning(step: ProfiledStep, shape: ModelShape, drafter: Drafter, overheads: Overheads) -> int:
    """Return what the tuning of the embedding's fused kernel takes: a copy of its table, and hidden states."""
    table = -(-shape.vocab_size // step.tensor_parallel_size) * shape.hidden_size * _BF16
    if drafter.shape is None or drafter.facts.drafts_from != "target_states" or drafter.facts.network != "chain":
        return table + 2 * _hidden(step, shape)
    states = drafter.num_aux_layers + (7 if step.runner == "V2" else 6)
    return table + states * _hidden(step, shape) + step.gpu.l2_bytes + overheads.workspace


def buffers(step: ProfiledStep, shape: ModelShape, drafter: Drafter, overheads: Overheads) -> int:
    """Return the bytes of tensors that runner, sampler and drafter keep, apart from model loading."""
    seqs, k = step.max_num_seqs, step.num_speculative_tokens
    drafts = drafter.shape is not None
    if step.runner == "V1":
        copies = 1 if not drafts else 2 if drafter.facts.drafts_from == "own_model" else 3
        return copies * _hidden(step, shape)
    # Penalty counts in 32 bit; prompt mask and grammar bitmask at one bit a token, the latter for every drafted row.
    table = seqs * shape.vocab_size * 4
    total = table + table // 32 + (1 + k) * table // 32 + seqs * overheads.request_state
    total += drafts * _hidden(step, drafter.shape or shape)
    return total + (table * k if step.probabilistic else 0)


_VALUE_BYTES: Mapping[str, float] = read_data("precisions")["kv_value_bytes"]
"""Bytes of one value by `--kv-cache-dtype`; NVFP4 keeps an 8-bit scale for each 16 values."""
_SCALE_BYTES = 4
"""Bytes of a scale per head and token, for the `_per_token_head` types."""
_INDEXER_GROUP = 128
"""Keys of an indexer that share a scale, and the size of heads that a kernel of gated delta nets takes."""
_CHECKPOINT_TOKENS = 64
"""Tokens at whose multiples the kernel of gated delta nets gives the state (gdn_attn.py)."""
_CHUNK = 2048
"""Tokens of a chunk where config.json and its class have none (config/model.py, get_mamba_chunk_size)."""
_LATENT_BLOCKS: Mapping[str, int] = {"size-aligned-latents": 128, "size-latents-of-64": 64}
"""Rule -> tokens that a block of a latent next to states must be a multiple of."""
_DS_MLA_BYTES = 656
"""Bytes of a token in DeepSeek's own 8-bit layout of the latent (v1/kv_cache_interface.py, MLAAttentionSpec)."""


def kv_value_bytes(name: str, shape: ModelShape) -> float:
    """Return the bytes of one cached value of a model, scales included.

    Raises:
        InvalidSetup: the size of that type is unknown.
    """
    if name == "fp8_ds_mla" and shape.latent_dim:
        return _DS_MLA_BYTES / shape.latent_dim
    if (found := _VALUE_BYTES.get(name)) is None:
        raise refusal("unknown-kv-cache-dtype", name=name, names=", ".join(_VALUE_BYTES))
    return found + (_SCALE_BYTES / shape.head_dim if name.endswith("_per_token_head") else 0)


def cached_layers(
    layers: Iterable[KVLayer], value_bytes: float, tensor_parallel_size: int, *, is_draft: bool = False
) -> list[CachedLayer]:
    """Return the layers of one model as one GPU keeps them."""
    return [
        CachedLayer(
            round(layer.values_per_rank(tensor_parallel_size) * value_bytes),
            layer.window,
            is_draft,
            chunked=layer.chunked,
            latent=layer.latent,
            heads=max(1, layer.num_heads // tensor_parallel_size),
        )
        for layer in layers
    ]


def drafter_layers(
    drafter: ModelShape, target: ModelShape, value_bytes: float, tensor_parallel_size: int
) -> list[CachedLayer]:
    """Return a drafter's layers as they are cached with a target.

    A window that all layers share is a setting of the cache, which the drafter inherits from the target; vLLM ignores
    its own (model_executor/layers/attention/attention.py, `cache_config.sliding_window`). Only windows that differ by
    layer are the drafter's own.
    """
    inherited = target.windows[0] if target.windows and len(set(target.windows)) == 1 else None
    layers = drafter.kv_layers()
    if len({layer.window for layer in layers}) == 1:
        layers = tuple(replace(layer, window=inherited) for layer in layers)
    return cached_layers(layers, value_bytes, tensor_parallel_size, is_draft=True)


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
        kv=kv_cache(request, stage),
        max_model_len=request.max_model_len,
        max_num_seqs=request.max_num_seqs,
        in_flight=in_flight(request),
        min_blocks=_min_blocks(request),
        num_speculative_tokens=request.num_speculative_tokens,
    )


def _step(request: SizeRequest) -> ProfiledStep:
    requests = min(request.max_num_seqs, request.max_num_batched_tokens)
    return copy_fields(ProfiledStep, request, max_num_seqs=requests)


def kv_cache(request: SizeRequest, stage: PipelineStage) -> KVCache:
    """Return the cache of one stage: its layers and, on the last stage, the drafter's."""
    target = _target_layers(request)
    layers = [*target, *_drafter_layers(request)]
    one_kind = not request.is_hybrid or (any(layer.chunked for layer in layers) and request.drafter.shape is not None)
    if one_kind and len({layer.window for layer in layers if not layer.state_bytes}) > 1:
        layers = [replace(layer, window=None, chunked=False) for layer in layers]
    states = find_states(request)
    block_size = request.block_size
    if any(layer.state_bytes for layer in target):
        latents = max((size for code, size in _LATENT_BLOCKS.items() if request.rules.holds(code)), default=1)
        block_size = align_block_size(target, block_size, states, latent_alignment=latents)
    return lay_out(
        layers,
        block_size=block_size,
        rules=LayoutRules.of(request.rules),
        states=states,
        stage=range(stage.first, sys.maxsize if stage.is_last else stage.end),
    )


def _target_layers(request: SizeRequest) -> list[CachedLayer]:
    """Return what the target's layers keep: keys and values, an indexer's keys, a state."""
    shape, config, size = request.shape, request.config, request.tensor_parallel_size
    tokens = cached_layers(shape.kv_layers(), kv_value_bytes(request.kv_cache_dtype, shape), size)
    layers = [replace(layer, index=index) for index, layer in zip(shape.attention_layers, tokens, strict=True)]
    layers += _indexers(config, layers)
    if shape.state_layers:
        state = state_bytes(
            config,
            tensor_parallel_size=size,
            num_speculative_tokens=request.num_speculative_tokens,
            conv_bytes=round(_VALUE_BYTES["auto"]),
            dtype=request.state_dtype,
        )
        layers += [CachedLayer(0, state_bytes=state, index=index) for index in sorted(shape.state_layers)]
    return sorted(layers, key=lambda layer: layer.index)


def _drafter_layers(request: SizeRequest) -> list[CachedLayer]:
    drafter = request.drafter.shape
    if drafter is None:
        return []
    value_bytes = kv_value_bytes(request.kv_cache_dtype, drafter)
    layers = drafter_layers(drafter, request.shape, value_bytes, request.draft_tensor_parallel_size)
    layers += _indexers(request.drafter.config, layers)
    return [replace(layer, index=request.shape.num_layers) for layer in layers]


def _indexers(config: Mapping[str, Any], layers: Iterable[CachedLayer]) -> list[CachedLayer]:
    """Return the keys by which sparse attention finds what to attend to: a byte each, and a scale for 128 of them."""
    dim = config.get("index_head_dim") if config.get("index_n_heads") else None
    if not dim:
        return []
    return [replace(layer, bytes_per_token=dim + _SCALE_BYTES * dim // _INDEXER_GROUP) for layer in layers]


def find_states(request: SizeRequest) -> StateBlocks:
    """Return how the release keeps the states of a sequence."""
    k, shape, rules = request.num_speculative_tokens, request.shape, request.rules
    if not shape.state_layers:
        return StateBlocks()
    if not request.prefix_caching or len(shape.stateful_layers) == len(shape.state_layers) == shape.num_layers:
        return StateBlocks(blocks=1 + k)
    kind = state_kind(request.config)
    classes = request.release.table("architectures").get(request.architecture) or {}
    keeps_each = rules.holds("size-state-each-block") and not (k and rules.holds("hybrid-aligned-with-drafts"))
    if keeps_each and "SupportsMambaPrefixCaching" in classes.get("interfaces", ()):
        added = k if rules.holds("size-state-each-block-and-draft") else 0
        return StateBlocks(blocks=added, alignment=chunk_of(request.config), every_block=True)
    code = EXPORTS_CHECKPOINTS.get(kind)
    checkpoint = code is not None and rules.holds(code) and (kind != "gdn" or exports_from_kernel(request))
    aligned = kind == "gdn" and checkpoint
    return StateBlocks(blocks=2 + k + checkpoint, alignment=_CHECKPOINT_TOKENS if aligned else 1)


def chunk_of(config: Mapping[str, Any]) -> int:
    """Return the number of tokens that a Mamba kernel reads at once."""
    default = (find_model_type(str(config.get("model_type"))) or {}).get("chunk_size")
    found = config.get("mamba_chunk_size") or config.get("chunk_size") or default
    return found if isinstance(found, int) and found > 0 else _CHUNK


def exports_from_kernel(request: SizeRequest) -> bool:
    """Return whether FlashInfer's kernel computes prompts in gated delta nets."""
    return request.gpu.architecture == "hopper" or (
        request.gpu.architecture == "blackwell" and request.config.get("linear_key_head_dim") == _INDEXER_GROUP
    )


def _min_blocks(request: SizeRequest) -> int:
    """Return the blocks that CUDA graphs of whole decode steps need next to states: one for each sequence."""
    counts = bool(request.shape.state_layers) and not request.enforce_eager
    return request.max_num_seqs if counts and request.rules.holds("size-block-each-sequence") else 0


def in_flight(request: SizeRequest) -> int:
    """Return the tokens that may be in flight: those of every scheduled, unfinished batch."""
    stages_filled = request.pipeline_parallel_size
    if not request.rules.holds("size-in-flight-tokens"):
        return request.max_num_batched_tokens
    ahead = request.async_scheduling and (request.runner == "V2" or stages_filled == 1)
    return request.max_num_batched_tokens * (stages_filled + ahead)


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
