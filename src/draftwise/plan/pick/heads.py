"""Heads that run on the target's hidden states: at hand, or published for the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from draftwise.facts.advice import get_advice, guide_order
from draftwise.facts.families import PublishedDrafter
from draftwise.plan.forecast.work import Work, find_drafter_work
from draftwise.plan.pick.case import Case, GivenDrafter
from draftwise.plan.pick.proposal import Proposal, Refusal, no_drafter, published_notes, refuse, sourced
from draftwise.plan.size.shapes import read_text_config

__all__ = ["head", "old_head"]

_Maker = Callable[[Case], Proposal | Refusal]

_USUAL = {"eagle": 3, "eagle3": 3, "dflash": 7, "dspark": 7, "medusa": 3, "mlp_speculator": 3}
"""Most guesses to start with where neither publisher nor config says how many, as in most of vLLM's recipes."""

_STAND_INS = {
    "eagle": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "eagle3": {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"},
}
"""Class of most published heads, beside the target's dimensions."""
_NOT_CAUSAL = frozenset({"dflash", "dspark"})
"""Methods whose drafter looks at its whole block at once, which not every attention backend can."""
_CAN = "FLASH_ATTN"
"""Attention backend that does in every release."""


def head(method: str) -> _Maker:
    """Return what proposes a method whose drafter is a head."""

    def make(case: Case) -> Proposal | Refusal:
        given = next((each for each in case.given if each.drafter.method == method), None)
        if given is not None:
            return _given_head(case, method, given)
        exact = [row for row in case.published if _loads(case, row, method)]
        rows = exact or [row for row in case.similar if _loads(case, row, method)]
        return _published_head(case, method, rows, exact=bool(exact)) if rows else no_drafter(case, method)

    return make


def _loads(case: Case, row: PublishedDrafter, method: str) -> bool:
    """Say whether a published drafter is of a method and in a format that the release reads."""
    kind = "peagle" if row.parallel_drafting else row.method
    readable = row.format == "plain" or kind in case.release.table("speculators_types")
    return row.method == method and readable


def _given_head(case: Case, method: str, given: GivenDrafter) -> Proposal:
    block = given.drafter.config.get("block_size")
    most = _USUAL[method] if not isinstance(block, int) else block - (method == "dflash")
    parallel = {"parallel_drafting": True} if method == "eagle3" and given.drafter.parallel else {}
    return Proposal(
        method=method,
        spec={"method": method, "model": given.name, **parallel},
        place=guide_order(method) - 0.5,
        lengths=_lengths(method, most),
        work=_work(case, method, most, given.drafter.config),
        args=_backend(case, method),
        reasons=(get_advice("given-drafter").finding(f"{given.name} is at hand."),),
    )


def _published_head(case: Case, method: str, rows: list[PublishedDrafter], *, exact: bool) -> Proposal:
    row, *others = rows
    most = row.num_speculative_tokens or _USUAL[method]
    shown = sourced(get_advice("k-published").finding(f"Up to {most}, as {row.model} is shown with."), row)
    return Proposal(
        method=method,
        spec=_spec_of(row),
        place=guide_order(method),
        lengths=_lengths(method, most),
        why_lengths=shown if row.num_speculative_tokens else None,
        work=_work(case, method, most, None),
        args=_backend(case, method),
        stand_in=_stand_in(case, method),
        reasons=(sourced(get_advice("published-head").finding(f"{row.model} was trained for this target."), row),),
        caveats=tuple(published_notes(case, row, exact=exact)),
        alternatives=tuple(others),
    )


def _backend(case: Case, method: str) -> dict[str, str]:
    """Return the attention backend that a release with few fitting ones must be told to take."""
    known = case.release.table("noncausal_backends")
    chosen = "attention_backend" in case.wish.args
    if method not in _NOT_CAUSAL or not known or "FLASHINFER" in known or chosen:
        return {}
    return {"attention_backend": _CAN}


def _stand_in(case: Case, method: str) -> Mapping[str, Any] | None:
    if method not in _STAND_INS:
        return None
    keys = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
            "max_position_embeddings")  # fmt: skip
    target = read_text_config(case.target.config)
    return _STAND_INS[method] | {"num_hidden_layers": 1} | {key: target[key] for key in keys if key in target}


def _lengths(method: str, most: int) -> tuple[int, ...]:
    """Return the k that a head allows: a DSpark head drafts its whole block, the others any part of what they can."""
    return (most,) if method == "dspark" else tuple(range(1, most + 1))


def _work(case: Case, method: str, most: int, config: Mapping[str, Any] | None) -> Work | None:
    return find_drafter_work(method, most, case.target.config, config, case.precision, case.tensor_parallel_size)


def _spec_of(row: PublishedDrafter) -> dict[str, Any]:
    parallel = {"parallel_drafting": True} if row.parallel_drafting else {}
    return {"method": row.method, "model": row.model, **parallel}


def old_head(method: str) -> _Maker:
    """Return what proposes heads that are kept where they run already, and not recommended anew."""

    def make(case: Case) -> Proposal | Refusal:
        made = head(method)(case)
        if isinstance(made, Refusal):
            return made
        if any(each.drafter.method == method for each in case.given):
            kept = get_advice("locked-in").finding(f"{made.spec['model']} is already there.")
            return replace(made, place=guide_order(method), reasons=(*made.reasons, kept))
        model = made.spec["model"]
        return refuse(
            method,
            "only-when-locked-in",
            f"{model} exists, and EAGLE-3 or DFlash accept more.",
            fix=f"If it is deployed already, give it with --drafter {model}.",
        )

    return make
