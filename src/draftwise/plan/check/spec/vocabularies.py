"""Whether target and draft model share their vocabulary, and what a mapping between two of them needs."""

from __future__ import annotations

from collections.abc import Iterator

from draftwise.core import Ruling
from draftwise.plan.check.context import Context
from draftwise.plan.check.spec.spec import Spec

__all__ = ["find_vocabularies"]

_KEY = "use_heterogeneous_vocab"


def find_vocabularies(context: Context, spec: Spec) -> Iterator[Ruling]:
    """Yield what speaks against the vocabularies, or against the key that maps between them."""
    if not spec.known("method", _KEY):
        return
    if spec.get(_KEY):
        yield from _find_mapping_faults(context, spec)
    elif spec.facts is not None and spec.facts.drafts_from == "own_model":
        yield from _find_difference(context, spec)


def _find_mapping_faults(context: Context, spec: Spec) -> Iterator[Ruling]:
    fix = "Remove one of the two."
    if not spec.reads(_KEY):
        message = f"{_KEY} works with the method draft_model only."
        yield from context.rules.ruling("hetero-needs-draft-model", message, where=_KEY, fix=fix)
    if spec.get("draft_sample_method") not in (None, "greedy"):
        message = f"{_KEY} works with greedy draft sampling only."
        yield from context.rules.ruling("hetero-needs-greedy", message, where=_KEY, fix=fix)
    if spec.get("use_local_argmax_reduction"):
        message = f"{_KEY} needs the whole draft logits, which use_local_argmax_reduction never makes."
        yield from context.rules.ruling("hetero-needs-logits", message, where=_KEY, fix=fix)


def _find_difference(context: Context, spec: Spec) -> Iterator[Ruling]:
    if spec.draft is None or spec.target is None:
        return
    draft, target = (model.config.text.get("vocab_size", 0) for model in (spec.draft, spec.target))
    if draft != target:
        fix = "Use a drafter with the target's tokenizer"
        if context.rules.holds("hetero-needs-draft-model"):
            fix += f', or add "{_KEY}": true'
        yield from context.rules.ruling(
            "vocabulary-sizes-differ",
            f"The drafter has a vocabulary of {draft} tokens, and the target one of {target}.",
            where="model",
            fix=f"{fix}.",
        )
