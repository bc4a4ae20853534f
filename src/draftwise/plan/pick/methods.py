"""Every method that a release, the embedded engine or an installed package has, and how each is proposed."""

from __future__ import annotations

from draftwise.knowledge.advice import get_advice
from draftwise.knowledge.methods import Method, all_methods, find_method
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.heads import propose_head
from draftwise.plan.pick.lookup import propose_lookup
from draftwise.plan.pick.native import propose_mtp
from draftwise.plan.pick.proposal import Proposal, Refusal, refuse
from draftwise.plan.pick.small_model import propose_draft_model

__all__ = ["list_methods", "propose"]


def list_methods(case: Case) -> tuple[str, ...]:
    """Return the methods of the release and of the embedded engine; aliases of MTP count as one."""
    return tuple(sorted(_methods_of_release(case) | all_methods(embedded=True).keys()))


def propose(case: Case, method: str) -> Proposal | Refusal:
    """Return a method's proposal, or why there is none."""
    facts = find_method(method)
    if facts is None:
        return refuse(method, "method-not-described", get_advice("method-not-described").explains)
    if method not in _methods_of_release(case):
        return _not_in_release(case, facts)
    return _propose(case, facts)


def _propose(case: Case, facts: Method) -> Proposal | Refusal:
    """Return the proposal of a method by what it drafts from."""
    match facts.drafts_from:
        case "text":
            return propose_lookup(case, facts.name)
        case "own_model":
            return propose_draft_model(case, facts.name)
        case "target_states":
            return (propose_mtp if facts.weights == "target" else propose_head)(case, facts.name)
        case "own_code":
            return refuse(facts.name, "own-code", get_advice("own-code").explains)
        case "none":
            return refuse(facts.name, "not-acceleration", get_advice("not-acceleration").explains)


def _methods_of_release(case: Case) -> set[str]:
    """Return the methods of the release, by the name that draftwise has for them if it has one."""
    return {name if (method := find_method(name)) is None else method.name for name in case.release.table("methods")}


def _not_in_release(case: Case, method: Method) -> Refusal:
    fix = get_advice("runs-embedded").explains if method.embedded else ""
    return refuse(method.name, "not-in-release", f"vLLM {case.release} does not have the method.", fix=fix)
