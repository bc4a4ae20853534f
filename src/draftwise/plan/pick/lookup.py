"""Methods that copy from earlier text: n-gram lookup and suffix trees."""

from __future__ import annotations

from draftwise.core import Finding
from draftwise.knowledge.advice import get_advice
from draftwise.knowledge.methods import get_method
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.proposal import Proposal, Refusal, refuse
from draftwise.plan.pick.requirements import STRUCTURED_OUTPUT

__all__ = ["propose_lookup"]

_SHORT_LOOKUP, _STRICT_LOOKUP = 5, 8
"""Tokens that must match: vLLM's default, and a length that kept tool calls intact (vLLM issues #35800, #40875)."""
_LOOKUP_KEYS = ("prompt_lookup_max", "prompt_lookup_min")


def propose_lookup(case: Case, method: str) -> Proposal | Refusal:
    """Return the proposal of a method that copies from earlier text."""
    traffic, facts = case.requirements.traffic, get_method(method)
    if traffic.overlap == "none" and not traffic.repetitive:
        return refuse(
            method, "no-overlap", f"The output of {traffic.kind or 'this traffic'} hardly repeats its prompt."
        )
    size = _STRICT_LOOKUP if STRUCTURED_OUTPUT in traffic.parameters else _SHORT_LOOKUP
    rank = facts.advice.rank if traffic.repetitive else facts.advice.rank_without_repetition
    k_of_trees = get_advice("k-of-suffix").finding("The trees decide how many tokens to draft, up to this number.")
    return Proposal(
        method=method,
        spec={"method": method} | {key: size for key in _LOOKUP_KEYS if key in facts.keys},
        place=facts.advice.rank if rank is None else rank,
        lengths=tuple(range(1, facts.usual_k + 1)),
        why_lengths=k_of_trees if facts.default_k_key else None,
        bound=_longest_suffix(case) if facts.default_k_key else None,
        reasons=(_overlap_reason(case), get_advice("no-artefact").finding("There is nothing to download or to load.")),
    )


def _overlap_reason(case: Case) -> Finding:
    traffic = case.requirements.traffic
    name = traffic.kind or f"traffic with {traffic.overlap} overlap"
    if traffic.repetitive or traffic.overlap == "high":
        return get_advice("repetitive-traffic").finding(f"{name} repeats prompts or earlier answers.")
    return get_advice("overlap-some").finding(f"Some of the output of {name} repeats the prompt.")


def _longest_suffix(case: Case) -> int | None:
    """Return the longest draft: at most a factor times the match, and both together within the depth of the tree."""
    fields = case.release.table("spec_fields")
    depth = fields.get("suffix_decoding_max_tree_depth", {}).get("default")
    factor = fields.get("suffix_decoding_max_spec_factor", {}).get("default")
    if not isinstance(depth, int) or not isinstance(factor, int | float):
        return None
    return max(1, int(depth * factor / (1 + factor)))
