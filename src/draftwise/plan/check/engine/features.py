"""Features that flags switch on, and that the target's class, its config or the other flags do not carry."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.model import Model
from draftwise.plan.check.model.model_config import has_interface

__all__ = ["find_uncarried"]

_SHARDED = "enable_batch_sharded_sampling"
_LARGEST_GRAPH = "max_cudagraph_capture_size"
_NGRAM_LAYERS = ("engram_layer_ids", "ple_layer_ids")
"""Where the config.json of a target names its layers with n-gram embeddings."""


def find_uncarried(context: Context, target: Model) -> Iterator[Ruling]:
    """Yield the refusal of features that the target, or the flags beside them, do not carry."""
    yield from _find_media_adapters(context, target)
    yield from _find_replay(context, target)
    yield from _find_routed_experts(context, target)
    yield from _find_ngram_embeddings(context, target)
    yield from _find_sharded_sampling(context)
    yield from _find_no_graphs(context)
    yield from _find_metrics_release(context)


def _find_media_adapters(context: Context, target: Model) -> Iterator[Ruling]:
    if context.is_on("default_mm_loras") and has_interface(context, "SupportsMultiModal") is False:
        yield from context.rules.ruling(
            "mm-loras-without-media",
            f"--default-mm-loras is given, and {', '.join(target.config.architectures)} takes text only.",
            where="default_mm_loras",
            fix="Leave it out.",
        )


def _find_replay(context: Context, target: Model) -> Iterator[Ruling]:
    if context.is_on("use_replayssm") and has_interface(context, "SupportsReplaySSM") is False:
        yield from context.rules.ruling(
            "target-without-replay",
            f"--use-replayssm is given, and {', '.join(target.config.architectures)} cannot replay Mamba states.",
            where="use_replayssm",
            fix="Leave it out.",
        )


def _find_routed_experts(context: Context, target: Model) -> Iterator[Ruling]:
    name = "enable_return_routed_experts"
    asked = context.is_on(name) or context.json_object("aux_output_config").get(name) is True
    if asked and target.config.num_experts < 1:
        yield from context.rules.ruling(
            "routed-experts-without-experts",
            "--enable-return-routed-experts is given, and the target is not a mixture of experts.",
            where=name,
            fix="Leave it out.",
        )


def _find_ngram_embeddings(context: Context, target: Model) -> Iterator[Ruling]:
    given = context.given.get("engram_config") is not None
    if given and not any(target.config.text.get(key) for key in _NGRAM_LAYERS):
        yield from context.rules.ruling(
            "engram-without-layers",
            "--engram-config is given, and the target's config.json names no layers with n-gram embeddings.",
            where="engram_config",
            fix="Leave it out.",
        )


def _find_sharded_sampling(context: Context) -> Iterator[Ruling]:
    if not context.is_on(_SHARDED):
        return
    ranks, requests = context.size("tensor_parallel_size") or 1, context.size("max_num_seqs")
    logprobs = context.size("max_logprobs")
    if ranks <= 1:
        reason = "tensor_parallel_size is 1, so that there is nothing to share out"
    elif requests is not None and requests < ranks:
        reason = f"max_num_seqs is {requests}, below the {ranks} ranks"
    elif logprobs is not None and logprobs < 0:
        reason = f"max_logprobs is {logprobs}, which lets requests ask for the whole vocabulary"
    else:
        return
    yield from context.rules.ruling(
        "sharded-sampling-unfit",
        f"Sampling cannot be shared out over ranks: {reason}.",
        where=_SHARDED,
        fix="Leave --enable-batch-sharded-sampling out.",
    )


def _find_no_graphs(context: Context) -> Iterator[Ruling]:
    compiled = context.json_object("compilation_config")
    largest = context.given.get(_LARGEST_GRAPH, compiled.get(_LARGEST_GRAPH))
    # Other ways to compile change which graphs there are, release by release.
    usual = context.platform == "cuda" and not context.runs_eagerly and not compiled.keys() & {"mode", "level"}
    if usual and isinstance(largest, int) and largest < 1:
        yield from context.rules.ruling(
            "largest-graph-below-one",
            f"{_LARGEST_GRAPH} is {largest}, and CUDA graphs are on.",
            where=_LARGEST_GRAPH,
            fix="Leave it out; --enforce-eager turns CUDA graphs off.",
        )


def _find_metrics_release(context: Context) -> Iterator[Ruling]:
    asked = context.given.get("show_hidden_metrics_for_version")
    if not isinstance(asked, str):
        return
    try:
        Version(asked)
    except InvalidVersion:
        yield from context.rules.ruling(
            "metrics-release-unreadable",
            f"--show-hidden-metrics-for-version {asked} is no version.",
            where="show_hidden_metrics_for_version",
            fix="Give a release such as 0.32.0, or leave it out.",
        )
