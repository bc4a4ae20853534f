"""How drafts are verified: adaptive verification, rejection and draft sampling, by release and runner."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.later.composed import Draft, get_size, is_on, rule_if
from draftwise.plan.check.later.graphs import read_compilation, runs_eagerly
from draftwise.plan.check.report import Resolved

__all__ = ["find_adaptive", "find_sampling"]

ADAPTIVE = "enable_adaptive_verification"
REJECTION = "rejection_sample_method"
DRAFTING = "draft_sample_method"

_SAMPLING = ("eagle", "eagle3", "mtp", "draft_model", "dflash", "dspark")
"""Methods whose drafters can sample."""
_WITHOUT_FULL_GRAPHS = ("NONE", "PIECEWISE")


def find_adaptive(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield what adaptive verification cannot be combined with."""
    if not Draft.resolved(context, resolved).spec.get(ADAPTIVE):
        return
    where, fix = ADAPTIVE, f"Leave one of the two out; without {ADAPTIVE} every draft is verified."
    stages = get_size(context, "pipeline_parallel_size") or 1
    mode = str(read_compilation(context).get("cudagraph_mode") or "").upper()
    eager = runs_eagerly(context)
    yield from rule_if(
        context, "adaptive-rejects-lora", is_on(context, "enable_lora"),
        "adaptive verification does not go with --enable-lora.", where=where, fix=fix,
    )  # fmt: skip
    yield from rule_if(
        context, "adaptive-rejects-pipeline", stages > 1,
        f"adaptive verification does not go with pipeline parallelism ({stages} stages).", where=where, fix=fix,
    )  # fmt: skip
    yield from rule_if(
        context, "adaptive-needs-graphs", eager,
        "adaptive verification chooses by step times measured on CUDA graphs, and they are turned off.",
        where=where, fix="Drop --enforce-eager.",
    )  # fmt: skip
    yield from rule_if(
        context, "adaptive-needs-full-graphs", eager or mode in _WITHOUT_FULL_GRAPHS,
        f"adaptive verification needs full CUDA graphs, and {'they are off' if eager else 'the mode is ' + mode}.",
        where=where, fix="Use cudagraph_mode FULL_AND_PIECEWISE, the default.",
    )  # fmt: skip
    yield from rule_if(
        context, "adaptive-rejects-routed-experts", is_on(context, "enable_return_routed_experts"),
        "adaptive verification does not go with --enable-return-routed-experts.", where=where, fix=fix,
    )  # fmt: skip
    yield from rule_if(
        context, "adaptive-rejects-sampling-mask", is_on(context, "return_sampling_mask"),
        "adaptive verification does not go with --return-sampling-mask.", where=where, fix=fix,
    )  # fmt: skip


def find_sampling(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield sampling keys that are accepted and do nothing on the runner that takes the work."""
    spec = Draft.resolved(context, resolved).spec
    rejection, drafting = spec.get(REJECTION), spec.get(DRAFTING)
    if resolved.runner == "V1":
        yield from _find_v1(context, resolved, rejection, drafting)
    yield from rule_if(
        context, "draft-sampling-without-model",
        drafting not in (None, "greedy") and resolved.method in ("ngram", "ngram_gpu", "suffix"),
        f"{drafting!r} samples from a draft model's distribution, and {resolved.method} has none: it copies.",
        where=DRAFTING, fix="Leave it out.",
    )  # fmt: skip
    yield from rule_if(
        context, "probabilistic-drafts-keep-logits",
        drafting == "probabilistic" and resolved.method in _SAMPLING,
        "probabilistic drafting keeps the draft logits of every request until they are verified, which takes memory. "
        "It changes nothing at temperature 0.",
        where=DRAFTING,
    )  # fmt: skip


def _find_v1(context: Context, resolved: Resolved, rejection: object, drafting: object) -> Iterator[Ruling]:
    yield from rule_if(
        context, "rejection-method-ignored-on-v1", rejection not in (None, "strict"),
        f"Model Runner V1 takes the work and does not read this key: {rejection!r} acts as strict.",
        where=REJECTION, fix="Set VLLM_USE_V2_MODEL_RUNNER=1, which this release has for eagle, eagle3 and mtp.",
    )  # fmt: skip
    yield from rule_if(
        context, "probabilistic-rejection-ignored-on-v1", rejection == "probabilistic",
        "Model Runner V1 takes the work and honours only 'synthetic': 'probabilistic' acts as strict.",
        where=REJECTION, fix="Set VLLM_USE_V2_MODEL_RUNNER=1, which this release has for eagle, eagle3 and mtp.",
    )  # fmt: skip
    yield from rule_if(
        context, "block-verification-ignored-on-v1", rejection == "block",
        "block verification exists on Model Runner V2 only; V1 takes the work, and it acts as standard.",
        where=REJECTION, fix="Find out what keeps V2 from the work, or leave the key out.",
    )  # fmt: skip
    yield from rule_if(
        context, "gumbel-drafts-ignored-on-v1", drafting == "gumbel",
        "Model Runner V1 takes the work and drafts greedily whatever this key says.",
        where=DRAFTING, fix="From 0.22.0 on 'probabilistic' works on both runners.",
    )  # fmt: skip
    yield from rule_if(
        context, "medusa-drafts-greedily", drafting not in (None, "greedy") and resolved.method == "medusa",
        f"Medusa heads draft greedily; {drafting!r} is not read.", where=DRAFTING, fix="Leave it out.",
    )  # fmt: skip
