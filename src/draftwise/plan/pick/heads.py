"""Heads that run on the target's hidden states: the operator's own, or published for the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from draftwise.knowledge.advice import get_advice
from draftwise.knowledge.methods import get_method
from draftwise.knowledge.published_drafters import PublishedDrafter
from draftwise.plan.cost.work import Work, find_drafter_work
from draftwise.plan.pick.case import Case, GivenDrafter
from draftwise.plan.pick.proposal import Proposal, Refusal, cite, find_published_caveats, refuse, refuse_no_drafter
from draftwise.plan.size.shapes import read_text_config

__all__ = ["propose_head"]

_NONCAUSAL = "FLASH_ATTN"
"""Attention backend that can attend over a whole block at once in every release."""


def propose_head(case: Case, method: str) -> Proposal | Refusal:
    """Return the proposal of a method whose drafter is a head: the operator's own, else a published one."""
    old = get_method(method).advice.only_if_deployed
    given = next((each for each in case.given if each.drafter.method == method), None)
    if given is not None:
        made = _given_head(case, method, given)
        kept = get_advice("locked-in").finding(f"{given.name} is already in use.")
        return replace(made, reasons=(*made.reasons, kept)) if old else made
    exact = [row for row in case.published if _loads(case, row, method)]
    rows = exact or [row for row in case.similar if _loads(case, row, method)]
    if not rows:
        return refuse_no_drafter(case, method)
    return _refuse_old(method, rows[0].model) if old else _published_head(case, method, rows, exact=bool(exact))


def _refuse_old(method: str, model: str) -> Refusal:
    return refuse(
        method,
        "only-when-locked-in",
        f"{model} exists, but EAGLE-3 or DFlash reach a higher acceptance.",
        fix=f"If it is already deployed, give it with --drafter {model}.",
    )


def _loads(case: Case, row: PublishedDrafter, method: str) -> bool:
    """Return whether a published drafter is of a method and in a format that the release reads."""
    kind = "peagle" if row.parallel_drafting else row.method
    readable = row.format == "plain" or kind in case.release.table("speculators_types")
    return row.method == method and readable


def _given_head(case: Case, method: str, given: GivenDrafter) -> Proposal:
    block, known = given.drafter.config.get("block_size"), get_method(method)
    most = block - known.block_counts_anchor if isinstance(block, int) else known.usual_k
    parallel = {"parallel_drafting": True} if known.parallel == "option" and given.drafter.parallel else {}
    return Proposal(
        method=method,
        spec={"method": method, "model": given.name, **parallel},
        place=get_method(method).advice.rank,
        at_hand=True,
        lengths=_lengths(method, most),
        work=_work(case, method, most, given.drafter.config),
        args=_backend(case, method),
        reasons=(get_advice("given-drafter").finding(f"{given.name} is available."),),
    )


def _published_head(case: Case, method: str, rows: list[PublishedDrafter], *, exact: bool) -> Proposal:
    row, *others = rows
    most = row.num_speculative_tokens or get_method(method).usual_k
    shown = cite(get_advice("k-published").finding(f"Up to {most}: the publisher of {row.model} shows this k."), row)
    return Proposal(
        method=method,
        spec=_spec_of(row),
        place=get_method(method).advice.rank,
        lengths=_lengths(method, most),
        why_lengths=shown if row.num_speculative_tokens else None,
        work=_work(case, method, most, None),
        args=_backend(case, method),
        stand_in=_stand_in(case, method),
        trained_on=row.trained_on,
        reasons=(cite(get_advice("published-head").finding(f"{row.model} was trained for this target."), row),),
        caveats=tuple(find_published_caveats(case, row, exact=exact)),
        alternatives=tuple(others),
    )


def _backend(case: Case, method: str) -> dict[str, str]:
    """Return the attention backend to set on a release that has few suitable ones."""
    known = case.release.table("noncausal_backends")
    chosen = "attention_backend" in case.requirements.args
    if get_method(method).network != "one_pass" or not known or "FLASHINFER" in known or chosen:
        return {}
    return {"attention_backend": _NONCAUSAL}


def _stand_in(case: Case, method: str) -> Mapping[str, Any] | None:
    usual_class = get_method(method).usual_class
    if usual_class is None:
        return None
    keys = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
            "max_position_embeddings")  # fmt: skip
    target = read_text_config(case.target.config)
    like = {"architectures": [usual_class], "model_type": "llama", "num_hidden_layers": 1}
    return like | {key: target[key] for key in keys if key in target}


def _lengths(method: str, most: int) -> tuple[int, ...]:
    """Return the k that a head allows: some methods draft the whole block, others any number of tokens up to `most`."""
    return (most,) if get_method(method).drafts_whole_block else tuple(range(1, most + 1))


def _work(case: Case, method: str, most: int, config: Mapping[str, Any] | None) -> Work | None:
    return find_drafter_work(method, most, case.target.config, config, case.precision, case.tensor_parallel_size)


def _spec_of(row: PublishedDrafter) -> dict[str, Any]:
    parallel = {"parallel_drafting": True} if row.parallel_drafting else {}
    return {"method": row.method, "model": row.model, **parallel}
