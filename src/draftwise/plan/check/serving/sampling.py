"""How drafts are sampled and rejected: keys that the runner which takes the work does not read."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.report import Resolved

__all__ = ["find_sampling"]

_REJECTION = "rejection_sample_method"
_DRAFTING = "draft_sample_method"
_USE_V2 = "Set VLLM_USE_V2_MODEL_RUNNER=1, which this release has for eagle, eagle3 and mtp."


def find_sampling(context: Context, resolved: Resolved) -> Iterator[Ruling]:
    """Yield sampling keys that are accepted and do nothing on the runner that takes the work."""
    rejection, drafting = context.keys.get(_REJECTION), context.keys.get(_DRAFTING)
    if resolved.runner == "V1":
        yield from _find_rejection_on_v1(context, rejection)
        yield from _find_drafting_on_v1(context, resolved, drafting)
    if drafting not in (None, "greedy") and resolved.facts.drafts_from == "text":
        yield from context.rules.ruling(
            "draft-sampling-without-model",
            f"{_DRAFTING} {drafting!r} samples from a draft model's distribution, and {resolved.method} has none: it "
            "copies.",
            where=_DRAFTING,
            fix="Leave it out.",
        )
    if drafting == "probabilistic" and resolved.facts.keeps_kv:
        yield from context.rules.ruling(
            "probabilistic-drafts-keep-logits",
            "Probabilistic drafting keeps the draft logits of every request until they are verified, which takes "
            "memory. It changes nothing at temperature 0.",
            where=_DRAFTING,
        )


def _find_rejection_on_v1(context: Context, rejection: object) -> Iterator[Ruling]:
    if rejection not in (None, "strict"):
        message = f"Model Runner V1 takes the work and does not read {_REJECTION}: {rejection!r} acts as strict."
        yield from context.rules.ruling("rejection-method-ignored-on-v1", message, where=_REJECTION, fix=_USE_V2)
    if rejection == "probabilistic":
        message = "Model Runner V1 takes the work and honours only 'synthetic': 'probabilistic' acts as strict."
        yield from context.rules.ruling("probabilistic-rejection-ignored-on-v1", message, where=_REJECTION, fix=_USE_V2)
    if rejection == "block":
        yield from context.rules.ruling(
            "block-verification-ignored-on-v1",
            "Block verification exists on Model Runner V2 only; V1 takes the work, and it acts as standard.",
            where=_REJECTION,
            fix="Find out what keeps V2 from the work, or leave the key out.",
        )


def _find_drafting_on_v1(context: Context, resolved: Resolved, drafting: object) -> Iterator[Ruling]:
    if drafting == "gumbel":
        yield from context.rules.ruling(
            "gumbel-drafts-ignored-on-v1",
            f"Model Runner V1 takes the work and drafts greedily whatever {_DRAFTING} says.",
            where=_DRAFTING,
            fix="From 0.22.0 on 'probabilistic' works on both runners.",
        )
    if drafting not in (None, "greedy"):
        yield from context.rules.ruling(
            "medusa-drafts-greedily",
            f"Medusa heads draft greedily; {_DRAFTING} {drafting!r} is not read.",
            where=_DRAFTING,
            fix="Leave it out.",
            method=resolved.method,
        )
