"""What flags switch on, and what the target, its config, the other flags or the server as a whole refuse of it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from packaging.version import InvalidVersion, Version

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.model import Model
from draftwise.plan.check.model.model_config import has_interface

__all__ = ["find_unfit"]

_SHARDED = "enable_batch_sharded_sampling"
_LARGEST_GRAPH = "max_cudagraph_capture_size"
_NGRAM_LAYERS = ("engram_layer_ids", "ple_layer_ids")
"""Where the config.json of a target names its layers with n-gram embeddings."""
_EXECUTOR = "distributed_executor_backend"
_IN_WORLD = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
_DEEP_EP = ("deepep", "nixl")
"""How the names of all-to-all backends begin that exchange tokens while another microbatch computes."""


def find_unfit(context: Context, target: Model | None) -> Iterator[Ruling]:
    """Yield the refusal of what the target, the other flags or the server as a whole do not carry.

    Args:
        context: the setup.
        target: the served model; None where its config.json cannot be read here.
    """
    if target is not None:
        yield from _find_media_adapters(context, target)
        yield from _find_replay(context, target)
        yield from _find_routed_experts(context, target)
        yield from _find_ngram_embeddings(context, target)
        yield from _find_sharded_sampling(context)
        yield from _find_no_graphs(context)
        yield from _find_metrics_release(context)
    yield from _find_idle_flags(context)
    yield from _find_executor(context)
    yield from _find_no_executor(context)
    yield from _find_connector(context)
    yield from _find_parser(context)
    yield from _find_mask(context)
    if context.platform == "cuda":
        yield from _find_microbatches(context)
        yield from _find_rounding(context)


def _find_media_adapters(context: Context, target: Model) -> Iterator[Ruling]:
    if "default_mm_loras" in context.on and has_interface(context, "SupportsMultiModal") is False:
        yield from context.rules.ruling("mm-loras-without-media", names=target.config.architectures)


def _find_replay(context: Context, target: Model) -> Iterator[Ruling]:
    if "use_replayssm" in context.on and has_interface(context, "SupportsReplaySSM") is False:
        yield from context.rules.ruling("target-without-replay", names=target.config.architectures)


def _find_routed_experts(context: Context, target: Model) -> Iterator[Ruling]:
    name = "enable_return_routed_experts"
    asked = name in context.on or context.objects.get("aux_output_config", {}).get(name) is True
    if asked and target.config.num_experts < 1:
        yield from context.rules.ruling("routed-experts-without-experts")


def _find_ngram_embeddings(context: Context, target: Model) -> Iterator[Ruling]:
    given = context.given.get("engram_config") is not None
    if given and not any(target.config.text.get(key) for key in _NGRAM_LAYERS):
        yield from context.rules.ruling("engram-without-layers")


def _find_sharded_sampling(context: Context) -> Iterator[Ruling]:
    if _SHARDED not in context.on:
        return
    ranks, requests = context.sizes.get("tensor_parallel_size") or 1, context.sizes.get("max_num_seqs")
    logprobs = context.sizes.get("max_logprobs")
    if ranks <= 1:
        reason = "tensor_parallel_size is 1, so that there is nothing to share out"
    elif requests is not None and requests < ranks:
        reason = f"max_num_seqs is {requests}, below the {ranks} ranks"
    elif logprobs is not None and logprobs < 0:
        reason = f"max_logprobs is {logprobs}, which lets requests ask for the whole vocabulary"
    else:
        return
    yield from context.rules.ruling("sharded-sampling-unfit", reason=reason)


def _find_no_graphs(context: Context) -> Iterator[Ruling]:
    compiled = context.objects.get("compilation_config", {})
    largest = context.given.get(_LARGEST_GRAPH, compiled.get(_LARGEST_GRAPH))
    # Other ways to compile change which graphs there are, release by release.
    usual = context.platform == "cuda" and not context.runs_eagerly and not compiled.keys() & {"mode", "level"}
    if usual and isinstance(largest, int) and largest < 1:
        yield from context.rules.ruling("largest-graph-below-one", largest=largest)


def _find_metrics_release(context: Context) -> Iterator[Ruling]:
    asked = context.given.get("show_hidden_metrics_for_version")
    if not isinstance(asked, str):
        return
    try:
        Version(asked)
    except InvalidVersion:
        yield from context.rules.ruling("metrics-release-unreadable", asked=asked)


def _find_idle_flags(context: Context) -> Iterator[Ruling]:
    """Yield flags about requests that need speculation and do not have it."""
    given = context.given.get("per_request_spec_decode_metrics")
    if context.spec is None and given not in (None, "none"):
        yield from context.rules.ruling("request-metrics-without-speculation", given=given)


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
            message=f"The parallel sizes multiply to {world}, and no executor runs that many ranks.",
        )


def _find_connector(context: Context) -> Iterator[Ruling]:
    given = context.objects.get("kv_transfer_config", {})
    asked = context.given.get("kv_transfer_config") is not None
    settled = context.given.get("disable_hybrid_kv_cache_manager") is not None or "kv_offloading_size" in context.given
    if asked and given.get("kv_connector") is None and not settled:
        yield from context.rules.ruling("kv-connector-unset")


def _find_parser(context: Context) -> Iterator[Ruling]:
    config, known = context.objects.get("reasoning_config", {}), context.release.table("reasoning_parsers")
    is_complete = config.get("reasoning_start_str") and config.get("reasoning_end_str")
    name = context.given.get("reasoning_parser", None if is_complete else config.get("reasoning_parser"))
    if not isinstance(name, str) or name.lower() in ("", "none") or "reasoning_parser_plugin" in context.on:
        return
    if known and name not in known:
        yield from context.rules.ruling("reasoning-parser-unknown", name=name)


def _find_mask(context: Context) -> Iterator[Ruling]:
    mode = context.flags.get("logprobs_mode")
    if "return_sampling_mask" in context.on and mode != "processed_logprobs":
        yield from context.rules.ruling("sampling-mask-needs-processed", mode=mode)


def _find_microbatches(context: Context) -> Iterator[Ruling]:
    backend = context.flags.get("all2all_backend")
    splits = "enable_dbo" in context.on or (context.sizes.get("ubatch_size") or 0) > 1
    if splits and isinstance(backend, str) and not backend.startswith(_DEEP_EP):
        yield from context.rules.ruling(
            "microbatches-need-deepep",
            backend=backend,
            where="enable_dbo" if "enable_dbo" in context.on else "ubatch_size",
        )


def _find_rounding(context: Context) -> Iterator[Ruling]:
    kind = context.flags.get("mamba_ssm_cache_dtype")
    if "enable_mamba_cache_stochastic_rounding" in context.on and kind != "float16":
        yield from context.rules.ruling("mamba-rounding-needs-float16", kind=kind)
