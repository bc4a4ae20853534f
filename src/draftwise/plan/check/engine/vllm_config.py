"""VllmConfig: the server's configuration as a whole, and flags that target, other flags or server reject."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Any

from packaging.version import InvalidVersion, Version

from draftwise.core import Ruling
from draftwise.core.layer_kinds import read_layer_kinds
from draftwise.knowledge.memory_overheads import get_batch_defaults
from draftwise.plan.check.check_report import Resolved
from draftwise.plan.check.cli import find_media_faults
from draftwise.plan.check.cli.condition_values import UNKNOWN, decide
from draftwise.plan.check.cli.configs import spell
from draftwise.plan.check.engine.gpu_limits import find_gpu_limits
from draftwise.plan.check.engine.model_runner import choose_runner, find_kind, find_runner_alone, settle_runner
from draftwise.plan.check.engine.refusals import exchanges_tokens, find_caching, find_refusals, has_latents
from draftwise.plan.check.engine.step_budget import find_gpu, fit_steps
from draftwise.plan.check.model import Model, find_target, is_unquantized, read_target
from draftwise.plan.check.model.model_config import has_interface
from draftwise.plan.check.spec import resolve
from draftwise.plan.check.stages import Context, Step

_SHARDED = "enable_batch_sharded_sampling"
_EXCHANGE = "ParallelConfig.all2all_backend"
_LARGEST_GRAPH = "max_cudagraph_capture_size"
_NGRAM_LAYERS = ("engram_layer_ids", "ple_layer_ids")
"""Where the config.json of a target names its layers with n-gram embeddings."""
_EXECUTOR = "distributed_executor_backend"
_IN_WORLD = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
_EXPERTS = {
    "fp8": "fp8", "mxfp4": "mxfp4", "gpt_oss_mxfp4": "mxfp4", "modelopt_fp4": "nvfp4",
}  # fmt: skip
"""Quantization method -> kind of experts' weights in the table `moe_backends`."""
_USUAL_ATTENTION = ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TREE_ATTN")
_SPARSE: Mapping[str, bool] = {
    "FLASHMLA": False, "FLASH_ATTN_MLA": False, "CUTLASS_MLA": False, "TRITON_MLA": False, "FLASHMLA_SPARSE": True,
}  # fmt: skip
"""Backends for latent attention, and whether they take the tokens that an indexer chose."""
_LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2")
"""Model types whose text model has latent attention in every release."""
_DEEP_EP = ("deepep", "nixl")
"""How the names of all-to-all backends begin that exchange tokens while another microbatch computes."""


def find_unfit(context: Context, target: Model | None) -> Iterator[Ruling]:
    """Yield rejections of what the target, other flags or the server as a whole do not support."""
    if target is not None:
        yield from _find_unfit_target(context, target)
        yield from _find_unfit_sizes(context, target)
        yield from _find_unfit_cache(context, target)
        yield from _find_unfit_experts(context, target)
        if context.platform == "cuda":
            yield from _find_unfit_attention(context, target)
    if has_interface(context, "SupportsMultiModal"):
        yield from find_media_faults(context)
    yield from find_gpu_limits(context, target)
    yield from _find_sharded_sampling(context)
    if context.given.get("disable_hybrid_kv_cache_manager") is True and has_interface(context, "IsHybrid"):
        yield from context.rules.ruling("hybrid-needs-its-cache-manager")
    for code in ("v0-asked", "v0-gone") if context.env.get("VLLM_USE_V1") == "0" else ():
        yield from context.rules.ruling(code)
    compiled = context.objects.get("compilation_config", {})
    largest = context.given.get(_LARGEST_GRAPH, compiled.get(_LARGEST_GRAPH))
    # Other ways to compile change which graphs there are, release by release.
    usual = context.platform == "cuda" and not context.runs_eagerly and not compiled.keys() & {"mode", "level"}
    if usual and isinstance(largest, int) and largest < 1:
        yield from context.rules.ruling("largest-graph-below-one", largest=largest)
    yield from _find_metrics_release(context)
    yield from _find_compilation(context)
    given = context.given.get("per_request_spec_decode_metrics")
    if context.spec is None and given not in (None, "none"):
        yield from context.rules.ruling("request-metrics-without-speculation", given=given)
    if context.spec is not None and find_kind(context) == "pooling":
        yield from context.rules.ruling("speculation-while-pooling")
    exchange, change = context.given.get("all2all_backend"), context.release.table("config_changes").get(_EXCHANGE)
    chosen = exchange if change is None else decide(change, {"all2all_backend": exchange})
    if isinstance(exchange, str) and chosen not in (exchange, UNKNOWN):
        yield from context.rules.ruling("all2all-backend-replaced", backend=exchange, chosen=chosen)
    yield from _find_executor(context)
    yield from _find_no_executor(context)
    yield from _find_connector(context)
    yield from _find_hisparse(context, target)
    yield from _find_providers(context)
    yield from _find_parser(context)
    yield from _find_tool_parser(context)
    mode = context.flags.get("logprobs_mode")
    if "return_sampling_mask" in context.on and mode != "processed_logprobs":
        yield from context.rules.ruling("sampling-mask-needs-processed", mode=mode)
    yield from _find_microbatches(context)
    yield from _find_rounding(context)


def _find_unfit_target(context: Context, target: Model) -> Iterator[Ruling]:
    routed = "enable_return_routed_experts"
    if "default_mm_loras" in context.on and has_interface(context, "SupportsMultiModal") is False:
        yield from context.rules.ruling("mm-loras-without-media", names=target.config.architectures)
    if "use_replayssm" in context.on and has_interface(context, "SupportsReplaySSM") is False:
        yield from context.rules.ruling("target-without-replay", names=target.config.architectures)
    asked = routed in context.on or context.objects.get("aux_output_config", {}).get(routed) in (True, "true")
    if asked and target.config.num_experts < 1:
        yield from context.rules.ruling("routed-experts-without-experts")
    text = target.config.text
    layers, first = text.get("num_hidden_layers"), text.get("max_window_layers", 28)
    has_one_window = text.model_type in ("qwen2", "qwen3") and isinstance(layers, int) and first != layers
    has_window = text.get("use_sliding_window") and text.get("sliding_window") is not None
    if has_one_window and len(set(read_layer_kinds(text.values))) > 1:
        yield from context.rules.ruling("windows-on-some-layers", first=first)
    if has_one_window and has_window and "disable_sliding_window" not in context.on:
        yield from context.rules.ruling("window-without-its-layers", first=first, layers=layers)
    has_engram = context.given.get("engram_config") is not None
    if has_engram and not any(target.config.text.get(key) for key in _NGRAM_LAYERS):
        yield from context.rules.ruling("engram-without-layers")
    if target.quantization in _GPTQ:
        for each in islice(_list_ordered(target.config.get("quantization_config")), 1):
            yield from context.rules.ruling("gptq-activation-order", size=each.get("group_size"))


def _list_ordered(packed: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of GPTQ groups that keep an activation order: the base ones, and those of dynamic rules."""
    if not isinstance(packed, Mapping):
        return
    dynamic = packed.get("dynamic")
    own = dynamic.items() if isinstance(dynamic, Mapping) else ()
    rules = [each for pattern, each in own if not pattern.startswith("-:") and isinstance(each, Mapping)]
    for each in ({}, *rules):
        settings = {**packed, **each}
        if settings.get("desc_act") and settings.get("group_size") != -1:
            yield settings


def _find_unfit_sizes(context: Context, target: Model) -> Iterator[Ruling]:
    threshold, block = context.sizes.get("long_prefill_token_threshold"), context.sizes.get("mamba_block_size")
    if threshold is not None and threshold > target.max_model_len:
        yield from context.rules.ruling("long-prefill-beyond-context", asked=threshold, length=target.max_model_len)
    if block is not None and block != target.max_model_len and find_caching(context) is False:
        yield from context.rules.ruling("mamba-block-without-prefixes", size=block)
    ranks, rank = context.sizes.get("data_parallel_size") or 1, context.given.get("data_parallel_rank")
    is_external = "data_parallel_external_lb" in context.on or rank is not None
    if ranks > 1 and is_external and target.config.num_experts < 1:
        yield from context.rules.ruling("external-ranks-without-experts", ranks=ranks)


def _find_unfit_cache(context: Context, target: Model) -> Iterator[Ruling]:
    """Yield a KV cache of another 16-bit type than the model's."""
    kind, asked = context.given.get("kv_cache_dtype"), context.flags.get("dtype")
    own = target.config.text.get("torch_dtype") or target.config.text.get("dtype")
    dtype = {"half": "float16", "float": "float32", "auto": own}.get(str(asked), asked)
    if kind in ("bfloat16", "float16") and isinstance(dtype, str) and dtype not in (kind, "auto"):
        yield from context.rules.ruling("cache-type-unlike-model", kind=kind, dtype=dtype)


def _find_unfit_experts(context: Context, target: Model) -> Iterator[Ruling]:
    """Yield kernels that the experts' weights do not take, and those of which only the server knows whether it can."""
    if target.config.num_experts < 1 or context.platform != "cuda":
        return
    flag, weights = "moe_backend", _EXPERTS.get(target.quantization or "")
    keeps = target.quantization is None and context.given.get("quantization_config") is None
    if keeps and is_unquantized(context.target, target.config):
        weights = "unquantized"
    asked = context.given.get(flag) or context.objects.get("kernel_config", {}).get(flag) or "auto"
    backend, table = str(asked).lower().replace("-", "_"), context.release.table("moe_backends")
    takes = table.get(backend)
    has_own = target.config.model_type.startswith("deepseek_v4")  # experts of another type than the rest
    names = [each for each, kinds in table.items() if weights in kinds and not each.startswith(("auto", "aiter"))]
    if backend != "auto" and isinstance(takes, list) and names and weights not in takes and not has_own:
        yield from context.rules.ruling("moe-backend-of-other-weights", backend=backend, weights=weights, names=names)
    elif backend != "auto" and isinstance(takes, list) and not names and not has_own:
        yield from _wait(context, flag, "the type of the experts' weights", f"moe_backend='{backend}' is not supported")
    elif backend.startswith("flashinfer_moe_ep"):
        gpu = find_gpu(context)
        if gpu is not None and gpu.capability not in (None, 100, 103):
            yield from context.rules.ruling("moe-ep-needs-blackwell", backend=backend, gpu=gpu.name)
        needs = "the GPUs' generation, FlashInfer's release and the experts' weights"
        yield from _wait(context, flag, needs, f"moe_backend='{backend}' is not supported")
    flag, exchange = "all2all_backend", str(context.flags.get("all2all_backend"))
    if exchange.startswith("flashinfer") and exchanges_tokens(context, target):
        needs = "FlashInfer's release and NVLink between all GPUs of the ranks"
        yield from _wait(context, flag, needs, f"{exchange} all2all is not available")


def _wait(context: Context, flag: str, needs: str, says: str) -> Iterator[Ruling]:
    """Yield that vLLM may refuse a flag's value with these words; `needs` decides it, which no setup shows."""
    yield from context.rules.ruling("refusal-waits", places=spell(flag), needs=needs, says=says, where=flag)


def _find_unfit_attention(context: Context, target: Model) -> Iterator[Ruling]:
    """Yield the refusal of an attention backend for the other kind of attention: latent (MLA) or usual."""
    inner = context.objects.get("attention_config", {}).get("backend")
    variable = "VLLM_ATTENTION_BACKEND"
    env = context.env.get(variable) if variable in context.release.table("env") else None
    backend = str(context.given.get("attention_backend") or inner or env).upper()
    text = target.config.text
    is_latent = has_latents(context, target.config)
    has_indexer, is_sure = text.get("index_topk") is not None, text.model_type in _LATENT
    if "MLA" in backend and not is_latent and not text.values.keys() & {"compress_ratios", "compress_rates"}:
        kind = "latent attention (MLA), which this target does not have"
    elif is_latent and is_sure and backend in _USUAL_ATTENTION:
        kind = "usual attention; this target has latent attention (MLA)"
    elif is_latent and is_sure and backend in _SPARSE and has_indexer is not _SPARSE[backend]:
        kind = "sparse attention, which this target does not have" if not has_indexer else "no sparse attention"
    else:
        return
    yield from context.rules.ruling("backend-of-other-attention", backend=backend, kind=kind)


def _find_compilation(context: Context) -> Iterator[Ruling]:
    compiled = context.objects.get("compilation_config", {})
    switches = compiled.get("custom_ops")
    if isinstance(switches, list) and all(isinstance(each, str) for each in switches):
        modes = [each for each in switches if each in ("all", "none")]
        both = sorted(
            {each[1:] for each in switches if each[:1] == "+"} & {each[1:] for each in switches if each[:1] == "-"}
        )
        if len(modes) > 1:
            yield from context.rules.ruling("custom-ops-base-modes", modes=modes)
        elif both:
            yield from context.rules.ruling("custom-ops-contradict", names=both)
    passes = compiled.get("inductor_passes")
    for name, path in passes.items() if isinstance(passes, Mapping) else ():
        if isinstance(path, str):
            code = "inductor-pass-unseen" if path.rpartition(".")[0] else "inductor-pass-without-module"
            yield from context.rules.ruling(code, name=name, path=path)
    if context.platform != "cuda" or context.runs_eagerly:
        return
    sizes = context.given.get("cudagraph_capture_sizes", compiled.get("cudagraph_capture_sizes"))
    largest = context.given.get(_LARGEST_GRAPH, compiled.get(_LARGEST_GRAPH))
    if isinstance(sizes, list) and not sizes:
        yield from context.rules.ruling("graph-sizes-empty")
    elif isinstance(sizes, list) and isinstance(largest, int) and largest >= 1:
        whole = [size for size in sizes if isinstance(size, int)]
        tokens = context.sizes.get(_TOKENS)
        last = max((size for size in whole if tokens is None or size <= tokens), default=0)
        if last != largest:
            yield from context.rules.ruling("graph-sizes-contradict", largest=largest, last=last)


def _find_sharded_sampling(context: Context) -> Iterator[Ruling]:
    if _SHARDED not in context.on:
        return
    ranks, requests = context.sizes.get("tensor_parallel_size") or 1, context.sizes.get("max_num_seqs")
    logprobs = context.sizes.get("max_logprobs")
    if ranks <= 1:
        reason = "tensor_parallel_size is 1, so there is nothing to distribute"
    elif requests is not None and requests < ranks:
        reason = f"max_num_seqs is {requests}, fewer than the {ranks} ranks"
    elif logprobs is not None and logprobs < 0:
        reason = f"max_logprobs is {logprobs}, which lets requests ask for the whole vocabulary"
    else:
        return
    yield from context.rules.ruling("sharded-sampling-unfit", reason=reason)


def _find_metrics_release(context: Context) -> Iterator[Ruling]:
    asked = context.given.get("show_hidden_metrics_for_version")
    if not isinstance(asked, str):
        return
    try:
        Version(asked)
    except InvalidVersion:
        yield from context.rules.ruling("metrics-release-unreadable", asked=asked)


def _find_executor(context: Context) -> Iterator[Ruling]:
    """Yield the refusal of an executor that is neither one of vLLM's own nor a path to a class."""
    name = context.given.get(_EXECUTOR)
    row = context.release.table("flags").get("--distributed-executor-backend", {})
    own = row.get("suggestions", row.get("choices", ()))
    if isinstance(name, str) and name not in own and "." not in name:
        yield from context.rules.ruling("executor-unknown", name=name, own=own)


def _find_no_executor(context: Context) -> Iterator[Ruling]:
    """Yield the refusal of sizes that multiply to less than one: no executor is chosen for them."""
    sizes = [context.sizes.get(name) for name in _IN_WORLD if name in context.flags]
    if None in sizes or context.given.get(_EXECUTOR) is not None:
        return
    world = prod(size for size in sizes if size is not None)
    # A data-parallel size below 2 gives way to that of the environment, usually 1.
    if world < 1 and not context.rules.holds("parallel-size-not-positive"):
        yield from context.rules.ruling(
            "executor-unknown",
            fix="Give 1 or more.",
            where="tensor_parallel_size",
            message=f"The parallel sizes multiply to {world}, but no executor runs that many ranks.",
        )


def _find_connector(context: Context) -> Iterator[Ruling]:
    given = context.objects.get("kv_transfer_config", {})
    asked = context.given.get("kv_transfer_config") is not None
    settled = context.given.get("disable_hybrid_kv_cache_manager") is not None or "kv_offloading_size" in context.given
    if asked and given.get("kv_connector") is None and not settled:
        yield from context.rules.ruling("kv-connector-unset")
    name, known = given.get("kv_connector"), context.release.table("kv_connectors") if asked else {}
    has_graphs = context.platform == "cuda" and not context.runs_eagerly and not context.lacks_full_graphs
    has_plugin = "vllm-ascend" in (context.installed or ()) or any(
        each.startswith("VLLM_ASCEND_") for each in context.env
    )
    is_own = isinstance(name, str) and given.get("kv_role") and not given.get("kv_connector_module_path")
    is_own = is_own and not has_plugin  # which registers connectors of its own
    if is_own and has_graphs and name not in known:
        yield from context.rules.ruling("kv-connector-unknown", name=name, known=sorted(known))


def _find_hisparse(context: Context, target: Model | None) -> Iterator[Ruling]:
    """Yield why HiSparse, asked for by its config or by its connector, does not go with the other flags."""
    asked = context.objects.get("attention_config", {}).get("hisparse_config") is not None
    connector = context.objects.get("kv_transfer_config", {}).get("kv_connector")
    if not asked and connector != "HiSparseConnector":
        return
    for key in ("pipeline_parallel_size", "decode_context_parallel_size"):
        if (size := context.sizes.get(key) or 1) > 1:
            yield from context.rules.ruling("hisparse-rejects-ranks", key=key, size=size)
    if context.cudagraph_mode == "FULL":
        yield from context.rules.ruling("hisparse-rejects-full-graphs")
    if context.flags.get("scheduler_reserve_full_isl") is False:
        yield from context.rules.ruling("hisparse-reserves-prompts")
    if target is not None and target.config.get("index_topk") is None:
        yield from context.rules.ruling("hisparse-without-indexer", names=", ".join(target.config.architectures))


def _find_providers(context: Context) -> Iterator[Ruling]:
    inner = context.objects.get("kernel_config", {}).get("ir_op_priority")
    for asked in (context.objects.get("ir_op_priority"), inner):
        for op, names in asked.items() if isinstance(asked, Mapping) else ():
            known = context.release.table("ir_providers").get(op, ())
            names = names.replace(" ", "").split(",") if isinstance(names, str) else names
            for name in names if isinstance(names, list) else ():
                if known and name not in known:
                    yield from context.rules.ruling("ir-provider-unknown", op=op, name=name, known=known)


def _find_parser(context: Context) -> Iterator[Ruling]:
    config, known = context.objects.get("reasoning_config", {}), context.release.table("reasoning_parsers")
    is_complete = config.get("reasoning_start_str") and config.get("reasoning_end_str")
    is_spared = is_complete and context.rules.holds("reasoning-config-without-parser")  # later releases always ask it
    name = context.given.get("reasoning_parser", None if is_spared else config.get("reasoning_parser"))
    if not name and not is_complete and "reasoning_config" in context.objects:
        yield from context.rules.ruling("reasoning-config-without-parser")
    if not isinstance(name, str) or name.lower() in ("", "none") or not known or name in known:
        return
    if "reasoning_parser_plugin" in context.on:
        yield from _wait(context, "reasoning_parser", _OF_PLUGIN, f"invalid parser: {name}")
    else:
        yield from context.rules.ruling("reasoning-parser-unknown", name=name)


def _find_tool_parser(context: Context) -> Iterator[Ruling]:
    name = context.given.get("tool_call_parser")
    if "enable_auto_tool_choice" not in context.on or not isinstance(name, str):
        return
    known = context.release.table("tool_parsers")
    if not known or name in known or "headless" in context.on:  # no API server, which alone looks it up
        return
    if "tool_parser_plugin" in context.on:
        yield from _wait(context, "tool_call_parser", _OF_PLUGIN, f"invalid parser: {name}")
        return
    from difflib import get_close_matches  # most calls name a known parser

    near = get_close_matches(name, known)
    fix = {"fix": f"Did you mean {' or '.join(near)}?"} if near else {}
    yield from context.rules.ruling("tool-parser-unknown", name=name, **fix)


def _find_microbatches(context: Context) -> Iterator[Ruling]:
    backend = context.flags.get("all2all_backend")
    overlaps = "enable_dbo" in context.on and context.platform != "cpu"  # a CPU takes the flag back, not the size
    splits = overlaps or (context.sizes.get("ubatch_size") or 0) > 1
    if splits and isinstance(backend, str) and not backend.startswith(_DEEP_EP):
        yield from context.rules.ruling(
            "microbatches-need-deepep",
            backend=backend,
            where="enable_dbo" if overlaps else "ubatch_size",
        )


def _find_rounding(context: Context) -> Iterator[Ruling]:
    kind = context.flags.get("mamba_ssm_cache_dtype")
    if "enable_mamba_cache_stochastic_rounding" in context.on and kind != "float16":
        yield from context.rules.ruling("mamba-rounding-needs-float16", kind=kind)


_OF_PLUGIN = "the parsers that your plugin registers"
_GPTQ = ("gptq", "gptq_marlin", "auto_gptq")
_TOKENS = "max_num_batched_tokens"
_SEQS = "max_num_seqs"
_ADAPTIVE = "enable_adaptive_verification"
_MOST_CUT = 1024
"""Longest draft for which V1 certainly has memory: it keeps a row of tokens for each request."""
_REJECTED_FLAGS: Mapping[str, str] = {
    "adaptive-rejects-routed-experts": "enable_return_routed_experts",
    "adaptive-rejects-sampling-mask": "return_sampling_mask",
}


def configure(context: Context) -> Step[tuple[Context, Resolved | None]]:
    """Create the server's configuration, in the order of vLLM's `create_engine_config`.

    Return the context with the server's own batch sizes, and the resolved speculative config; None without speculation,
    or if it cannot be known here.
    """
    target = yield from read_target(context)
    context = fill_in_batch(context, target)
    yield from find_early(context)
    resolved = None
    if context.spec is not None:
        resolved = yield from resolve(context, target)
    yield from _find_batch(context, target)
    if target is not None:
        yield from find_target(context, target, None if resolved is None else resolved.method)
    yield from find_unfit(context, target)
    yield from find_refusals(context, target, resolved)
    if target is not None:
        yield from _find_long_draft(context, target, resolved)
    return context, (yield from _complete(context, resolved))


def _find_long_draft(context: Context, target: Model, resolved: Resolved | None) -> Iterator[Ruling]:
    """Yield that a draft is longer than any sequence, unless the release cuts what a lookup finds."""
    k = context.keys.get("num_speculative_tokens")
    cuts = resolved is not None and resolved.facts.v1_cuts_at_context and choose_runner(context, resolved).name == "V1"
    if isinstance(k, int) and k >= target.max_model_len and not (cuts and k <= _MOST_CUT):
        yield from context.rules.ruling("draft-beyond-context", k=k, length=target.max_model_len)


def fill_in_batch(context: Context, target: Model | None) -> Context:
    """Return the context with the server's default batch sizes, if none are given and its GPU is known.

    The defaults are those of `vllm serve`; the offline class has others.
    """
    defaults = _find_batch_defaults(context)
    if defaults is None or target is None:
        return context
    tokens, seqs = context.given.get(_TOKENS), context.given.get(_SEQS)
    double = 2 if context.flags.get("performance_mode") == "throughput" else 1
    some = seqs if isinstance(seqs, int) else defaults[1] * double
    if not isinstance(tokens, int):
        tokens = defaults[0] * double
        if not context.chunks_prefill:
            tokens = max(tokens, target.max_model_len)
        if context.rules.holds("batch-bounded-by-context"):
            tokens = min(tokens, some * target.max_model_len)
    if not isinstance(seqs, int):
        seqs = min(some, tokens) if context.rules.holds("requests-bounded-by-batch") else some
    return replace(context, flags={**context.flags, _TOKENS: tokens, _SEQS: seqs})


def _find_batch_defaults(context: Context) -> tuple[int, int] | None:
    """Return tokens and requests a step, None where they depend on a GPU that is not known."""
    if context.platform == "cpu":
        ranks = _read_count(context.flags, "pipeline_parallel_size") * _read_count(
            context.flags, "tensor_parallel_size"
        )
        return 2048 * ranks, 128 * ranks
    if context.runs_on_v0:
        return 2048, 256
    if (gpu := find_gpu(context)) is None:
        return None
    defaults = get_batch_defaults(gpu, context.release)
    return defaults[_TOKENS], defaults[_SEQS]


def _read_count(flags: Mapping[str, Any], name: str) -> int:
    value = flags.get(name, 1)
    return value if isinstance(value, int) else 1


def find_early(context: Context) -> Iterator[Ruling]:
    """Yield what stops the server before it checks the speculative config."""
    if context.given.get("async_scheduling") is not True:
        return
    stages = context.flags.get("pipeline_parallel_size", 1)
    if isinstance(stages, int) and stages > 1:
        yield from context.rules.ruling("async-rejects-stages")
    if context.spec is not None:
        yield from context.rules.ruling("async-rejects-speculation")


def _find_batch(context: Context, target: Model | None) -> Iterator[Ruling]:
    tokens, seqs = context.flags.get(_TOKENS), context.flags.get(_SEQS)
    if not isinstance(tokens, int):
        return
    if target is not None and tokens < target.max_model_len and not context.chunks_prefill:
        yield from context.rules.ruling("batch-below-context", tokens=tokens, max_model_len=target.max_model_len)
    if isinstance(seqs, int) and tokens < seqs:
        yield from context.rules.ruling("batch-below-requests", tokens=tokens, seqs=seqs)


def _complete(context: Context, resolved: Resolved | None) -> Step[Resolved | None]:
    yield from find_v0(context, resolved)
    if context.spec is None:
        yield from find_runner_alone(context)
    if resolved is None:
        return None
    resolved = yield from settle_runner(context, resolved)
    return resolved if context.runs_on_v0 else (yield from judge_engine(context, resolved))


def find_v0(context: Context, resolved: Resolved | None) -> Iterator[Ruling]:
    """Yield what happens to a method that the V1 engine does not know by its given name."""
    if context.spec is None or context.is_known_to_v1:
        return
    if context.runs_on_v0:
        if resolved is not None and context.chunks_prefill:
            yield from context.rules.ruling("v0-rejects-chunked-eagle", method=resolved.method)
        length = context.given.get("max_model_len")
        if isinstance(length, int) and length < 0:
            yield from context.rules.ruling("v0-rejects-negative-length", length=length)
    method = context.spec.get("method")
    code = "v0-engine-refused" if context.insists_on_v1 else "v0-engine-taken"
    yield from context.rules.ruling(code, subject=f"the method {method}" if method else "a config without method")


def judge_engine(context: Context, resolved: Resolved) -> Step[Resolved]:
    """Return the config without what the V1 engine drops, and yield what it rejects or changes."""
    yield from _find_adaptive(context)
    yield from _find_fast_prefill(context, resolved)
    yield from _find_shorter_drafter(context, resolved)
    yield from _find_watermark(context, resolved)
    if "return_sampling_mask" in context.on:
        yield from context.rules.ruling("sampling-mask-rejects-speculation")
    if (size := context.sizes.get("cp_kv_cache_interleave_size") or 1) > 1:
        yield from context.rules.ruling("interleaved-contexts-reject-speculation", size=size)
    return (yield from fit_steps(context, resolved))


def _find_adaptive(context: Context) -> Iterator[Ruling]:
    if not context.keys.get(_ADAPTIVE):
        return
    if "enable_lora" in context.on:
        yield from context.rules.ruling("adaptive-rejects-lora")
    if (stages := context.stages) > 1:
        yield from context.rules.ruling("adaptive-rejects-pipeline", stages=stages)
    eager = context.runs_eagerly
    if eager:
        yield from context.rules.ruling("adaptive-needs-graphs")
    if eager or context.lacks_full_graphs:
        state = "they are off" if eager else f"the mode is {context.cudagraph_mode}"
        yield from context.rules.ruling("adaptive-needs-full-graphs", state=state)
    for code, flag in _REJECTED_FLAGS.items():
        if flag in context.on:
            yield from context.rules.ruling(code, flag=flag.replace("_", "-"))


def _find_watermark(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    if (asked := context.objects.get("watermark_config")) is None:
        return
    if (drawn := context.keys.get("draft_sample_method", "greedy")) != "probabilistic":
        yield from context.rules.ruling("watermark-needs-probabilistic-drafts", drawn=drawn)
    if (judged := context.keys.get("rejection_sample_method") or "standard") != "standard":
        yield from context.rules.ruling("watermark-needs-standard-rejection", judged=judged)
    yield from context.rules.ruling("watermark-rejects-method", method=resolved.method)
    yield from context.rules.ruling("watermark-rejects-dflash", method=resolved.method)
    if resolved.parallel_drafting:
        yield from context.rules.ruling("watermark-rejects-parallel-drafts", method=resolved.method)
    if (
        asked.get("algorithm", "gumbel") != "dual_key_gumbel"
        and asked.get("allow_target_only_watermarking") is not True
    ):
        yield from context.rules.ruling("watermark-algorithm", algorithm=asked.get("algorithm", "gumbel"))


def _find_fast_prefill(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    if "kv_sharing_fast_prefill" not in context.on:
        return
    for code in ("fast-prefill-rejects-drafter", "fast-prefill-not-written-for-drafter"):
        yield from context.rules.ruling(code, method=resolved.method)


def _find_shorter_drafter(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield the effects of a drafter with a shorter context than the server's on long requests, and on their batch."""
    draft, target = resolved.draft_max_model_len, context.sizes.get("max_model_len") or _find_length(context)
    if draft is None or target is None or draft >= target:
        return
    if resolved.runner == "V2" and resolved.facts.drafts_from == "own_model":
        yield from context.rules.ruling("draft-model-limits-length", draft=draft, target=target)
    if resolved.runner == "V1":
        yield from context.rules.ruling("context-gate", draft=draft, target=target)


def _find_length(context: Context) -> int | None:
    value = None if context.target is None else context.target.text_config.get("max_position_embeddings")
    return value if isinstance(value, int) else None
