"""Methods that copy from earlier text: n-gram lookup and suffix trees."""

from __future__ import annotations

from dataclasses import replace

from draftwise.core import Finding
from draftwise.knowledge.advice import get_advice, get_guide_rank
from draftwise.knowledge.methods import get_method
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.proposal import Proposal, Refusal, refuse
from draftwise.plan.pick.requirements import STRUCTURED_OUTPUT

__all__ = ["propose_lookup", "propose_suffix"]

_SHORT_LOOKUP, _STRICT_LOOKUP = 5, 8
"""Tokens that must match: vLLM's default, and a length that kept tool calls intact (vLLM issues #35800, #40875)."""


def propose_lookup(case: Case, method: str) -> Proposal | Refusal:
    """Return the proposal of a method that looks up n-grams."""
    traffic = case.requirements.traffic
    if traffic.overlap == "none" and not traffic.repetitive:
        return refuse(
            method, "no-overlap", f"The output of {traffic.kind or 'this traffic'} hardly repeats its prompt."
        )
    size = _STRICT_LOOKUP if STRUCTURED_OUTPUT in traffic.parameters else _SHORT_LOOKUP
    return Proposal(
        method=method,
        spec={"method": method, "prompt_lookup_max": size, "prompt_lookup_min": size},
        place=get_guide_rank(method),
        lengths=tuple(range(1, get_method(method).usual_k + 1)),
        reasons=(_overlap_reason(case), get_advice("no-artefact").finding("There is nothing to download or to load.")),
    )


def _overlap_reason(case: Case) -> Finding:
    traffic = case.requirements.traffic
    name = traffic.kind or f"traffic with {traffic.overlap} overlap"
    if traffic.repetitive or traffic.overlap == "high":
        return get_advice("repetitive-traffic").finding(f"{name} repeats prompts or earlier answers.")
    return get_advice("overlap-some").finding(f"Some of the output of {name} repeats the prompt.")


def propose_suffix(case: Case, method: str) -> Proposal | Refusal:
    """Return the proposal of `suffix`."""
    made = propose_lookup(case, method)
    if isinstance(made, Refusal):
        return made
    return replace(
        made,
        spec={"method": method},
        place=get_guide_rank(method if case.requirements.traffic.repetitive else "ngram"),
        why_lengths=get_advice("k-of-suffix").finding("The trees decide how many tokens to draft, up to this number."),
        bound=_longest_suffix(case),
    )


def _longest_suffix(case: Case) -> int | None:
    """Return the longest draft: at most a factor times the match, and both together within the depth of the tree."""
    fields = case.release.table("spec_fields")
    depth = fields.get("suffix_decoding_max_tree_depth", {}).get("default")
    factor = fields.get("suffix_decoding_max_spec_factor", {}).get("default")
    if not isinstance(depth, int) or not isinstance(factor, int | float):
        return None
    return max(1, int(depth * factor / (1 + factor)))
