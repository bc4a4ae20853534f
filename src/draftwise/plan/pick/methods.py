"""Every method that a release has, and the function that proposes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftwise.knowledge.advice import get_advice
from draftwise.knowledge.methods import find_method, get_method, methods_where
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.heads import propose_head, propose_old_head
from draftwise.plan.pick.lookup import propose_lookup, propose_suffix
from draftwise.plan.pick.native import propose_mtp
from draftwise.plan.pick.proposal import Proposal, Refusal, refuse, refuse_no_drafter
from draftwise.plan.pick.small_model import propose_draft_model

__all__ = ["list_methods", "propose"]

_Maker = Callable[[Case, str], Proposal | Refusal]


def list_methods(case: Case) -> tuple[str, ...]:
    """Return the methods of the release and of the embedded engine; aliases of MTP count as one."""
    return tuple(sorted(_methods_of_release(case) | methods_where(embedded=True).keys()))


def propose(case: Case, method: str) -> Proposal | Refusal:
    """Return a method's proposal, or why there is none."""
    if method not in _methods_of_release(case):
        return _not_in_release(case, method)
    maker = _MAKERS.get(method)
    return refuse_no_drafter(case, method) if maker is None else maker(case, method)


def _methods_of_release(case: Case) -> set[str]:
    """Return the methods of the release that draftwise knows: one that the user added may have others."""
    return {method.name for name in case.release.table("methods") if (method := find_method(name)) is not None}


def _not_in_release(case: Case, method: str) -> Refusal:
    message = f"vLLM {case.release} does not have the method."
    fix = get_advice("runs-embedded").explains if get_method(method).embedded else ""
    return refuse(method, "not-in-release", message, fix=fix)


def _never(code: str) -> _Maker:
    """Return the maker of a method that does not speed up decoding: it always refuses."""

    def make(_case: Case, method: str) -> Refusal:
        return refuse(method, code, get_advice(code).explains)

    return make


_MAKERS: Mapping[str, _Maker] = {
    "mtp": propose_mtp,
    "dflash": propose_head,
    "eagle3": propose_head,
    "dspark": propose_head,
    "eagle": propose_head,
    "suffix": propose_suffix,
    "draft_model": propose_draft_model,
    "ngram_gpu": propose_lookup,
    "ngram": propose_lookup,
    "medusa": propose_old_head,
    "mlp_speculator": propose_old_head,
    "extract_hidden_states": _never("not-acceleration"),
    "custom_class": _never("own-code"),
}
