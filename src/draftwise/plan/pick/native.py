"""Multi-token prediction modules that the target was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftwise.knowledge.advice import get_advice
from draftwise.knowledge.methods import get_method
from draftwise.knowledge.published_drafters import find_native
from draftwise.plan.cost.work import find_drafter_work
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.proposal import Proposal, Refusal, refuse

__all__ = ["propose_mtp"]


def propose_mtp(case: Case, method: str) -> Proposal | Refusal:
    """Return the proposal of `mtp`, under the name that the release has for it."""
    table, target = case.release.table("mtp_remap"), case.target
    row = next((table[name] for name in (target.model_type, *target.architectures) if name in table), None)
    modules = None if row is None else _count_modules(case, row)
    if row is None or modules == 0:
        why = "its config says 0" if row is not None else f"{target.model_type or 'its family'} does not come with them"
        return refuse(method, "no-native-modules", f"{target.name} has no MTP modules: {why}.")
    names = case.release.table("methods")
    alias = str(row.get("model_type") or target.model_type)
    if method not in names and alias not in names:
        return refuse(method, "not-in-release", f"vLLM {case.release} has no MTP for {target.model_type}.")
    native = find_native(target.model_type)
    most = max(modules or 1, native.num_speculative_tokens if native else 1)
    source = native.source if native else f"{modules or 1} trained module{'s' if (modules or 1) > 1 else ''}"
    return Proposal(
        method=method,
        spec={"method": method if method in names else alias},
        place=get_method(method).advice.rank,
        lengths=tuple(k for k in range(1, most + 1) if k <= (modules or 1) or k % (modules or 1) == 0),
        why_lengths=get_advice("k-of-modules").finding(f"Up to {most}: {source}."),
        work=find_drafter_work(method, 1, target.config, None, case.precision, case.tensor_parallel_size),
        reasons=(get_advice("native-modules").finding(f"{target.name} has MTP modules of its own."),),
    )


def _count_modules(case: Case, row: Mapping[str, Any]) -> int | None:
    """Return the number of modules according to the config; None if it gives none."""
    field = row.get("n_predict")
    if isinstance(field, int):
        return field
    for config in (case.target.config, case.target.text_config):
        count = config.get(str(field))
        if isinstance(count, int):
            return count
    return None
