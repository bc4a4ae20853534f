"""Every method that a release has, and what proposes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftwise.facts.advice import get_advice, runs_embedded
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.heads import head, old_head
from draftwise.plan.pick.lookup import lookup, propose_suffix
from draftwise.plan.pick.native import propose_mtp
from draftwise.plan.pick.proposal import Proposal, Refusal, canonical, no_drafter, refuse
from draftwise.plan.pick.small_model import propose_draft_model

__all__ = ["methods_of", "propose"]

_Maker = Callable[[Case], Proposal | Refusal]


def methods_of(case: Case) -> tuple[str, ...]:
    """Return the methods of the release, those of the embedded engine and aliases of MTP under one name."""
    named = {canonical(name) for name in case.release.table("methods")}
    return tuple(sorted(named | {name for name in _MAKERS if runs_embedded(name)}))


def propose(case: Case, method: str) -> Proposal | Refusal:
    """Return a method's proposal, or why it makes none."""
    if not any(canonical(name) == method for name in case.release.table("methods")):
        return _not_in_release(case, method)
    maker = _MAKERS.get(method)
    return no_drafter(case, method) if maker is None else maker(case)


def _not_in_release(case: Case, method: str) -> Refusal:
    message = f"vLLM {case.release} does not have {method}."
    fix = get_advice("runs-embedded").explains if runs_embedded(method) else ""
    return refuse(method, "not-in-release", message, fix=fix)


def _never(method: str, code: str) -> _Maker:
    """Return what refuses a method that is not there to speed up decoding."""

    def make(_case: Case) -> Refusal:
        return refuse(method, code, get_advice(code).explains)

    return make


_MAKERS: Mapping[str, _Maker] = {
    "mtp": propose_mtp,
    "dflash": head("dflash"),
    "eagle3": head("eagle3"),
    "dspark": head("dspark"),
    "eagle": head("eagle"),
    "suffix": propose_suffix,
    "draft_model": propose_draft_model,
    "ngram_gpu": lookup("ngram_gpu"),
    "ngram": lookup("ngram"),
    "medusa": old_head("medusa"),
    "mlp_speculator": old_head("mlp_speculator"),
    "extract_hidden_states": _never("extract_hidden_states", "not-acceleration"),
    "custom_class": _never("custom_class", "own-code"),
}
