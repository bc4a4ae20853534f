"""When speculation is the wrong lever, regardless of the method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from draftwise.core import Finding, Severity
from draftwise.knowledge.advice import AdviceRule, get_advice
from draftwise.plan.check import check
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.stops import find_stops

__all__ = ["Lever", "Weight", "find_levers"]

_POOLING = frozenset({
    "embedding", "late_interaction", "reward", "sequence_classification", "token_classification", "cross_encoder",
})  # fmt: skip
"""Groups of vLLM's model registry whose classes answer with a vector or a score."""


class Weight(StrEnum):
    """How strong a reason against speculation is."""

    ENDS = "ends"
    """There is nothing that speculation could speed up: no method is proposed."""
    OFF = "off"
    """Leave it off; methods are still shown, in case this changes."""
    DOUBT = "doubt"
    """It may lose: measure before you switch it on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One reason against speculation."""

    weight: Weight
    finding: Finding


def find_levers(case: Case) -> tuple[Lever, ...]:
    """Return every reason against speculation that does not depend on the method, the strongest first."""
    found = [lever for find in _FINDERS for lever in find(case)]
    return tuple(sorted(found, key=lambda lever: list(Weight).index(lever.weight)))


def _lever(weight: Weight, rule: AdviceRule, message: str, *, fix: str = "") -> Lever:
    severity = Severity.WARNING if weight is Weight.DOUBT else Severity.ERROR
    return Lever(weight=weight, finding=rule.finding(message, severity=severity, fix=fix))


def _decoding(case: Case) -> Iterator[Lever]:
    table, args = case.release.table("architectures"), case.requirements.args
    groups = {table[name]["group"] for name in case.target.architectures if name in table}
    pooling = args.get("runner") == "pooling" or args.get("task") in ("embed", "classify", "score", "reward")
    if pooling or (groups and groups <= _POOLING):
        what = "is served for pooling" if pooling else f"is a model for {', '.join(sorted(groups)).replace('_', ' ')}"
        yield _lever(Weight.ENDS, get_advice("no-autoregressive-decode"), f"{case.target.name} {what}.")


def _answers(case: Case) -> Iterator[Lever]:
    rule, tokens = get_advice("single-token-answers"), case.requirements.traffic.output_tokens
    if tokens <= rule.numbers["max_output_tokens"]:
        yield _lever(Weight.ENDS, rule, "Answers are one token long, and that token comes from the prefill.")


def _first_token(case: Case) -> Iterator[Lever]:
    traffic = case.requirements.traffic
    if traffic.slo_ttft_s is not None and traffic.slo_tpot_s is None:
        yield _lever(
            Weight.OFF,
            get_advice("ttft-bound"),
            "The objective is for the time to first token only, and speculation speeds up the tokens after it.",
            fix="Consider prefix caching, chunked prefill and more replicas.",
        )
    rule, share = get_advice("prefill-dominated"), _prefill_share(case)
    if share is not None and share >= rule.numbers["share"]:
        yield _lever(
            Weight.DOUBT,
            rule,
            f"About {share:.0%} of a request's time is prefill ({traffic.prompt_tokens} tokens in, "
            f"{traffic.output_tokens} out): twice as fast a decode saves {(1 - share) / 2:.0%} of the request's time.",
        )


def _prefill_share(case: Case) -> float | None:
    """Return the share of a request's time that its prompt takes; None if nothing can be estimated."""
    if case.machine is None:
        return None
    traffic = case.requirements.traffic
    # Each of the requests that decode together is prefilled alone while the others wait or go on decoding.
    prefill = case.machine.prefill_s(traffic.prompt_tokens)
    step = case.machine.baseline_s(case.batch()) / traffic.concurrency
    return prefill / (prefill + traffic.output_tokens * step)


def _target(case: Case) -> Iterator[Lever]:
    rule, machine = get_advice("small-target"), case.machine
    if machine is None:
        return
    if machine.work.weights < rule.numbers["params"]:
        size = machine.work.weights / 1e9
        yield _lever(Weight.DOUBT, rule, f"{case.target.name} has {size:.2f} billion weights.")
    batch = case.requirements.traffic.concurrency
    if batch >= machine.balance_rows:
        yield _lever(
            Weight.DOUBT,
            get_advice("compute-bound"),
            f"From about {machine.balance_rows:.0f} tokens per step on, arithmetic takes longer than reading the "
            f"weights, and {batch} sequences decode together.",
            fix="Draft at most one token at this load, or none.",
        )


def _temperature(case: Case) -> Iterator[Lever]:
    if case.requirements.traffic.mixed_temperatures:
        yield _lever(
            Weight.DOUBT,
            get_advice("temperature-mixed"),
            "Requests of different temperatures share a batch.",
            fix="Route them to two deployments, one of them with speculation.",
        )


def _parameters(case: Case) -> Iterator[Lever]:
    table = case.release.table("sampling_params")
    for name in sorted(case.requirements.traffic.parameters):
        outcome = table.get(name)
        if outcome == "rejected":
            yield _lever(
                Weight.OFF,
                get_advice("sampling-parameter-rejected"),
                f"vLLM {case.release} rejects requests with {name} when speculation is on.",
                fix="Serve those requests from a deployment without it.",
            )
        elif outcome == "ignored":
            yield _lever(
                Weight.DOUBT,
                get_advice("sampling-parameter-ignored"),
                f"vLLM {case.release} ignores {name} under speculation.",
                fix="Serve those requests from a deployment without it.",
            )
        elif outcome == "not_speculated":
            yield _lever(
                Weight.DOUBT,
                get_advice("sampling-parameter-not-speculated"),
                f"vLLM {case.release} does not draft for requests with {name}.",
            )


def _baseline(case: Case) -> Iterator[Lever]:
    stops = find_stops(check(case.setup(None)))
    if stops:
        yield _lever(
            Weight.OFF,
            get_advice("plain-refused"),
            f"vLLM {case.release} does not start this target even without speculation: {stops[0].message}",
            fix=stops[0].fix,
        )


_FINDERS: tuple[Callable[[Case], Iterator[Lever]], ...] = (
    _decoding,
    _baseline,
    _answers,
    _first_token,
    _parameters,
    _target,
    _temperature,
)
