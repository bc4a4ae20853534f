"""Parts of the server that flags name or switch on, and that its configuration as a whole refuses."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from draftwise.core import Ruling
from draftwise.plan.check.context import Context

__all__ = ["find_unfit_parts"]

_EXECUTOR = "distributed_executor_backend"
_IN_WORLD = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
_DEEP_EP = ("deepep", "nixl")
"""How the names of all-to-all backends begin that exchange tokens while another microbatch computes."""


def find_unfit_parts(context: Context) -> Iterator[Ruling]:
    """Yield what is refused of executor, KV connector, parsers, sampling masks, microbatches and Mamba's cache."""
    yield from _find_executor(context)
    yield from _find_no_executor(context)
    yield from _find_connector(context)
    yield from _find_parser(context)
    yield from _find_replay(context)
    if context.platform == "cuda":
        yield from _find_microbatches(context)
        yield from _find_rounding(context)


def _find_executor(context: Context) -> Iterator[Ruling]:
    """Yield the refusal of an executor that is neither one of vLLM's own nor a path to a class."""
    name = context.given.get(_EXECUTOR)
    row = context.release.table("flags").get("--distributed-executor-backend", {})
    own = row.get("suggestions", row.get("choices", ()))
    if isinstance(name, str) and name not in own and "." not in name:
        yield from context.rules.ruling(
            "executor-unknown",
            f"--distributed-executor-backend {name} is no executor of vLLM, and no import path of a class.",
            where=_EXECUTOR,
            fix=f"Use one of {', '.join(own)}.",
        )


def _find_no_executor(context: Context) -> Iterator[Ruling]:
    """Yield the refusal of sizes that multiply to less than one: no executor is chosen for them."""
    sizes = [context.size(name) for name in _IN_WORLD if name in context.flags]
    if None in sizes or context.given.get(_EXECUTOR) is not None:
        return
    world = prod(size for size in sizes if size is not None)
    # A data-parallel size below 2 gives way to that of the environment, usually 1.
    if world < 1 and not context.rules.holds("parallel-size-not-positive"):
        yield from context.rules.ruling(
            "executor-unknown",
            f"The parallel sizes multiply to {world}, and no executor runs that many ranks.",
            where="tensor_parallel_size",
            fix="Give 1 or more.",
        )


def _find_connector(context: Context) -> Iterator[Ruling]:
    given = context.json_object("kv_transfer_config")
    asked = context.given.get("kv_transfer_config") is not None
    settled = context.given.get("disable_hybrid_kv_cache_manager") is not None or "kv_offloading_size" in context.given
    if asked and given.get("kv_connector") is None and not settled:
        yield from context.rules.ruling(
            "kv-connector-unset",
            "--kv-transfer-config names no kv_connector, and the server asks it whether it takes hybrid caches.",
            where="kv_transfer_config",
            fix="Name a kv_connector, or leave the flag out.",
        )


def _find_parser(context: Context) -> Iterator[Ruling]:
    config, known = context.json_object("reasoning_config"), context.release.table("reasoning_parsers")
    is_complete = config.get("reasoning_start_str") and config.get("reasoning_end_str")
    name = context.given.get("reasoning_parser", None if is_complete else config.get("reasoning_parser"))
    if not isinstance(name, str) or name.lower() in ("", "none") or context.is_on("reasoning_parser_plugin"):
        return
    if known and name not in known:
        yield from context.rules.ruling(
            "reasoning-parser-unknown",
            f"vLLM {context.release} has no reasoning parser {name}.",
            where="reasoning_parser",
            fix="Use one that the release has, or give --reasoning-parser-plugin.",
        )


def _find_replay(context: Context) -> Iterator[Ruling]:
    mode = context.flags.get("logprobs_mode")
    if context.is_on("return_sampling_mask") and mode != "processed_logprobs":
        yield from context.rules.ruling(
            "sampling-mask-needs-processed",
            f"--return-sampling-mask needs log-probabilities over the mask, and --logprobs-mode is {mode}.",
            where="return_sampling_mask",
            fix="Give --logprobs-mode processed_logprobs.",
        )


def _find_microbatches(context: Context) -> Iterator[Ruling]:
    backend = context.flags.get("all2all_backend")
    splits = context.is_on("enable_dbo") or (context.size("ubatch_size") or 0) > 1
    if splits and isinstance(backend, str) and not backend.startswith(_DEEP_EP):
        yield from context.rules.ruling(
            "microbatches-need-deepep",
            f"Batches are split in microbatches, which the all-to-all backend {backend} cannot serve.",
            where="enable_dbo" if context.is_on("enable_dbo") else "ubatch_size",
            fix="Give --all2all-backend deepep_low_latency or deepep_high_throughput, or leave the split out.",
        )


def _find_rounding(context: Context) -> Iterator[Ruling]:
    kind = context.flags.get("mamba_ssm_cache_dtype")
    if context.is_on("enable_mamba_cache_stochastic_rounding") and kind != "float16":
        yield from context.rules.ruling(
            "mamba-rounding-needs-float16",
            f"Stochastic rounding needs a float16 cache of Mamba's states, and --mamba-ssm-cache-dtype is {kind}.",
            where="enable_mamba_cache_stochastic_rounding",
            fix="Give --mamba-ssm-cache-dtype float16.",
        )
