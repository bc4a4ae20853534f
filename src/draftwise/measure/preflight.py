"""What the warm-up shows to be wrong: said after seconds, not after the whole run."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from draftwise.core import Arm, Counters, Finding, InvalidSetup, RunPlan, Severity
from draftwise.core.finding import join_names
from draftwise.deciding.validity.servers import ON_PURPOSE, find_same_servers
from draftwise.knowledge.methods import find_method
from draftwise.knowledge.server_metrics import counts_drafts
from draftwise.runs.blocks import count_needed, share_out

__all__ = ["check_addresses", "check_drafting", "explain_sharing"]


def check_addresses(arms: Sequence[Arm]) -> None:
    """Refuse arms that are one and the same server.

    Raises:
        InvalidSetup: two of them have one address.
    """
    if found := list(find_same_servers(arms)):
        raise InvalidSetup(found)


def explain_sharing(plan: RunPlan) -> Iterator[Finding]:
    """Yield a note on each candidate that is asked no prompt twice, and on each workload that is too short for that."""
    for name, reason in plan.remembering.items():
        text = f"{name} is asked no prompt twice, as it could remember answers: {reason}."
        yield Finding.info("measurement-planned", text)
    yield from _check_shares(plan)


def _check_shares(plan: RunPlan) -> Iterator[Finding]:
    """Yield the workloads that are too short for every load, where a candidate is asked no prompt twice."""
    for workload in plan.workloads if plan.remembering else ():
        carried = {label for label, _ in share_out(plan, workload)}
        if short := [each for each in plan.conditions if each.label not in carried]:
            needed = ", ".join(f"{each.label} would need {count_needed(workload, each, plan.turn_s)}" for each in short)
            at = [each.label for each in plan.conditions if each.label in carried]
            measured = f"measured at {join_names(at)}" if at else "not measured"
            yield Finding.warning(
                "too-few-to-ask-once",
                f"{len(workload.prompts)} prompts are too few for {join_names(plan.remembering)}, asked each "
                f"of them once: {measured}; {needed} prompts of its own.",
                where=workload.name,
                fix="Give more prompts, fewer loads, or a config that remembers nothing.",
            )


def check_drafting(plan: RunPlan, counters: Mapping[str, Counters], engines: Mapping[str, str | None]) -> list[Finding]:
    """Return what weakens the run, going by the growth of the counters in the warm-up.

    Args:
        engines: whose names each server's /metrics uses: not all of them count drafts.

    Raises:
        InvalidSetup: the baseline drafted, or a candidate that drafts at every step did not.
    """
    counting = {arm for arm, engine in engines.items() if engine is not None and counts_drafts(engine)}
    found = [*_check_baseline(plan, counters), *_check_candidates(plan, counters, counting)]
    if errors := [finding for finding in found if finding.severity is Severity.ERROR]:
        raise InvalidSetup(errors)
    return found


def _check_baseline(plan: RunPlan, counters: Mapping[str, Counters]) -> Iterator[Finding]:
    baseline, *candidates = plan.arms
    drafted = counters[baseline.name].spec.num_draft_tokens
    if not drafted:
        return
    if silent := [arm.name for arm in candidates if _is_silent(counters[arm.name])]:
        text = f"{baseline.name} drafted {drafted} tokens in the warm-up and {silent[0]} none: they are swapped."
        yield Finding.error("swapped-servers", text, fix="Swap --url and --candidate-url.")
    else:
        text = f"the baseline's server drafted {drafted} tokens in the warm-up."
        yield Finding.error(
            "plain-speculates", text, where=baseline.name, fix="Serve the baseline without a speculative config."
        )


def _check_candidates(plan: RunPlan, counters: Mapping[str, Counters], counting: Container[str]) -> Iterator[Finding]:
    baseline, *candidates = plan.arms
    for arm in candidates:
        grown = counters[arm.name]
        if grown.generation_tokens == 0:
            text = "its counters stood still while it answered the warm-up: they are another server's."
            yield Finding.error(
                "counters-of-another-server", text, where=arm.name, fix="Name the page of its own: --metrics-url."
            )
        elif grown.generation_tokens is None or arm.name not in counting:
            text = "its /metrics has no counters of drafts: only its stream can show that it speculates."
            yield Finding.warning(
                "counters-missing", text, where=arm.name, fix="Name the page that has them: --metrics-url."
            )
        elif _is_silent(grown) and not counters[baseline.name].spec.num_draft_tokens:
            text = f"its server counted no draft in {grown.generation_tokens} tokens of the warm-up"
            always = _always_drafts(arm)
            text += "." if always else ", where it may have found none to make."
            severity = Severity.ERROR if always else Severity.WARNING
            fix = "Look at its start-up log for the speculative config that it took."
            yield Finding(code="not-speculating", severity=severity, message=text, where=arm.name, fix=fix)


def _always_drafts(arm: Arm) -> bool:
    """Return whether an arm must have drafted: lookup does so only where text repeats, which a warm-up may not do."""
    method = None if arm.spec is None else find_method(arm.spec.method)
    if arm.spec is None or method is None or method.drafts_from in ("none", "text"):
        return False
    return not any(option in arm.spec.options for option in ON_PURPOSE)


def _is_silent(grown: Counters) -> bool:
    return bool(grown.generation_tokens) and not grown.spec.num_drafts
