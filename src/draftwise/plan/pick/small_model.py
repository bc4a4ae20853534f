"""A smaller language model that drafts for a larger one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwise.checkpoints.config_json import find_model_config
from draftwise.core import Finding, Severity
from draftwise.knowledge.advice import get_advice
from draftwise.knowledge.methods import get_method
from draftwise.knowledge.published_drafters import PublishedDrafter
from draftwise.plan.cost.work import Work, find_work
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.proposal import Proposal, Refusal, cite, find_published_caveats, refuse_no_drafter
from draftwise.plan.size.weight_parts import precision_of

__all__ = ["propose_draft_model"]


def propose_draft_model(case: Case, method: str) -> Proposal | Refusal:
    """Return the proposal of `draft_model`."""
    given = next((each for each in case.given if not each.drafter.is_head), None)
    rows = [row for row in (*case.published, *case.similar) if row.method == method]
    if given is None and not rows:
        return refuse_no_drafter(case, method)
    name = given.name if given else rows[0].model
    found = find_model_config(name)
    config = {} if found is None else found.config
    work = find_work(config, precision_of(config), case.tensor_parallel_size)
    reason = (
        get_advice("given-drafter").finding(f"{name} is available.")
        if given
        else cite(get_advice("small-family-model").finding(f"{name} shares the target's tokenizer."), rows[0])
    )
    vocabularies = _vocabularies(case, config)
    return Proposal(
        method=method,
        spec={"method": method, "model": name, **vocabularies},
        place=get_method(method).advice.rank,
        at_hand=given is not None,
        lengths=tuple(range(1, get_method(method).usual_k + 1)),
        work=work,
        reasons=(reason,),
        caveats=tuple(_model_notes(case, name, work, rows, given=given is not None, padded=bool(vocabularies))),
        alternatives=tuple(rows[0 if given else 1 :]),
    )


def _vocabularies(case: Case, draft: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that allow vocabularies of different sizes, if they differ and the release has such keys."""
    sizes = {config.get("vocab_size") for config in (case.target.text_config, draft)}
    if len(sizes - {None}) < 2 or "use_heterogeneous_vocab" not in case.release.table("spec_fields"):
        return {}
    return {"use_heterogeneous_vocab": True}


def _model_notes(
    case: Case, name: str, work: Work | None, rows: list[PublishedDrafter], *, given: bool, padded: bool
) -> list[Finding]:
    notes = [] if given else find_published_caveats(case, rows[0], exact=rows[0] in case.published)
    if padded:
        notes.append(
            get_advice("unequal-vocabularies").finding(
                f"{name} has a vocabulary of a different size; make sure that the tokenizers are the same.",
                severity=Severity.WARNING,
            )
        )
    rule = get_advice("size-ratio")
    if work is not None and case.machine is not None:
        ratio = case.machine.work.weights / work.weights
        if not rule.numbers["least"] <= ratio <= rule.numbers["most"]:
            notes.append(rule.finding(f"The target is {ratio:.0f} times as large as {name}."))
    return notes
