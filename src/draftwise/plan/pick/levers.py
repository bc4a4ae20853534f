"""Says when speculation is the wrong lever, for any method, and whether a setup fits into memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from draftwise.core import Effect, Finding, InvalidSetup, Ruling, Setup, Severity
from draftwise.knowledge.advice import get_advice, give_advice
from draftwise.knowledge.messages import text_of
from draftwise.plan.check import Report, check
from draftwise.plan.pick.requirements import PickCase
from draftwise.plan.size import Sizing, size

_POOLING = frozenset({
    "embedding", "late_interaction", "reward", "sequence_classification", "token_classification", "cross_encoder",
})  # fmt: skip
"""Groups of vLLM's model registry whose classes answer with a vector or a score."""
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([BbMm])(?![A-Za-z0-9])")


class Weight(StrEnum):
    """How strong a reason against speculation is."""

    ENDS = "ends"
    """Speculation has nothing to speed up: no method is proposed."""
    OFF = "off"
    """Leave it off; methods are still shown, in case this changes."""
    DOUBT = "doubt"
    """It may lose: measure before you switch it on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One reason against speculation."""

    weight: Weight
    finding: Finding


def find_levers(case: PickCase) -> tuple[Lever, ...]:
    """Return every reason against speculation that does not depend on the method, strongest first."""
    found = [lever for find in _FINDERS for lever in find(case)]
    return tuple(sorted(found, key=lambda lever: list(Weight).index(lever.weight)))


def make_lever(code: str, **values: object) -> Lever:
    """Return the lever of a rule; `values` fill its texts."""
    return Lever(weight=Weight(get_advice(code).weight), finding=give_advice(code, **values))


def _decoding(case: PickCase) -> Iterator[Lever]:
    table, args = case.release.table("architectures"), case.requirements.args
    groups = {table[name]["group"] for name in case.target.architectures if name in table}
    pooling = args.get("runner") == "pooling" or args.get("task") in ("embed", "classify", "score", "reward")
    if pooling or (groups and groups <= _POOLING):
        what = "is served for pooling" if pooling else f"is a model for {', '.join(sorted(groups)).replace('_', ' ')}"
        yield make_lever("no-autoregressive-decode", target=case.target.name, what=what)


def _answers(case: PickCase) -> Iterator[Lever]:
    most = get_advice("single-token-answers").numbers["max_output_tokens"]
    if case.requirements.traffic.output_tokens <= most:
        yield make_lever("single-token-answers")


def _first_token(case: PickCase) -> Iterator[Lever]:
    traffic = case.requirements.traffic
    if traffic.slo_ttft_s is not None and traffic.slo_tpot_s is None:
        yield make_lever("ttft-bound")
    share = _prefill_share(case)
    if share is not None and share >= get_advice("prefill-dominated").numbers["share"]:
        tokens = {"prompt_tokens": traffic.prompt_tokens, "output_tokens": traffic.output_tokens}
        yield make_lever("prefill-dominated", share=share, saved=(1 - share) / 2, **tokens)


def _prefill_share(case: PickCase) -> float | None:
    """Return the share of a request's time that its prompt takes. None if nothing can be estimated."""
    if case.machine is None:
        return None
    traffic = case.requirements.traffic
    # Each of the requests that decode together is prefilled alone while the others wait or go on decoding.
    prefill = case.machine.prefill_s(traffic.prompt_tokens)
    step = case.machine.baseline_s(case.batch()) / traffic.concurrency
    return prefill / (prefill + traffic.output_tokens * step)


def _target(case: PickCase) -> Iterator[Lever]:
    machine = case.machine
    weights = _read_weights(case.target.name) if machine is None else machine.work.weights
    if weights is not None and weights < get_advice("small-target").numbers["params"]:
        yield make_lever("small-target", target=case.target.name, size=weights / 1e9)
    if machine is None:
        return
    sequences = case.requirements.traffic.concurrency
    if sequences >= machine.balance_rows:
        yield make_lever("compute-bound", rows=machine.balance_rows, sequences=sequences)


def _read_weights(name: str) -> float | None:
    """Return the number of weights that a model's name tells, as in Qwen3.5-0.8B. None if it tells none."""
    found = _SIZE.search(name)
    return None if found is None else float(found[1]) * (1e9 if found[2] in "bB" else 1e6)


def _temperature(case: PickCase) -> Iterator[Lever]:
    if case.requirements.traffic.mixed_temperatures:
        yield make_lever("temperature-mixed")


def _parameters(case: PickCase) -> Iterator[Lever]:
    table = case.release.table("sampling_params")
    for name in sorted(case.requirements.traffic.parameters):
        if name in table and table[name] in _OUTCOMES:
            yield make_lever(_OUTCOMES[table[name]], release=case.release, name=name)


_OUTCOMES = {
    "rejected": "sampling-parameter-rejected",
    "ignored": "sampling-parameter-ignored",
    "not_speculated": "sampling-parameter-not-speculated",
}
"""What a release does with a sampling parameter under speculation -> the rule that says so."""


def _baseline(case: PickCase) -> Iterator[Lever]:
    stops = find_stops(check(case.setup(None)))
    if stops:
        yield make_lever("plain-refused", release=case.release, why=stops[0].message, how=stops[0].fix)


_FINDERS: tuple[Callable[[PickCase], Iterator[Lever]], ...] = (
    _decoding,
    _baseline,
    _answers,
    _first_token,
    _parameters,
    _target,
    _temperature,
)


def find_stops(report: Report) -> tuple[Ruling, ...]:
    """Return the rulings by which the release rejects a setup, or accepts it and then fails to start."""
    return tuple(each for each in report.findings if isinstance(each, Ruling) and _stops(each))


def _stops(ruling: Ruling) -> bool:
    fails = ruling.effect is Effect.FAILS_LATER and ruling.severity is Severity.ERROR
    return fails or ruling.effect is Effect.REJECTED


_TARGET_TAKES_MOST, _DOES_NOT_FIT = "target-takes-most", "does-not-fit"
"""Findings of `size`."""
_STEP = 1024
"""Context lengths are cut to a multiple of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCheck:
    """The baseline's memory, and the reasons against speculation that follow from it."""

    case: PickCase
    plain: Sizing | None
    """None if the target's size cannot be computed."""
    levers: tuple[Lever, ...]

    def size(self, setup: Setup) -> Sizing | None:
        """Return the memory that a setup takes; None if it cannot be computed."""
        return _size(self.case, setup)

    def fit(self, sizing: Sizing) -> Mapping[str, int]:
        """Return a flag that makes a setup fit, for fewer sequences or a shorter context; empty if none helps.

        Given flags stay. A tenth of the context is left free, and the traffic must fit.
        """
        given, traffic, budget = self.case.requirements.args, self.case.requirements.traffic, sizing.budget
        if max(traffic.peak_concurrency, 1) <= budget.num_blocks < budget.min_blocks and "max_num_seqs" not in given:
            return {"max_num_seqs": max(traffic.peak_concurrency, 1 << budget.num_blocks.bit_length() - 1)}
        if budget.fits or "max_model_len" in given:
            return {}
        length = budget.longest_context() * 9 // 10 // _STEP * _STEP
        return {"max_model_len": length} if length >= self.num_tokens else {}

    def describe_shortage(self, sizing: Sizing) -> str:
        """Return what a setup lacks; empty if it holds the traffic as well as the baseline does."""
        fault = next((each for each in sizing.findings if each.code == _DOES_NOT_FIT), None)
        if fault is not None:
            return str(fault)
        together, length = self.case.requirements.traffic.concurrency, self.num_tokens
        room, before = sizing.budget.sequences(length), sizing.plain.sequences(length)
        if room < together <= before:
            return text_of("concurrency-lost", room=room, length=length, before=before, together=together)
        return ""

    def find_caveats(self, sizing: Sizing) -> Iterator[Finding]:
        """Yield warnings of `size` about the drafter, and one if the target alone takes most of the memory."""
        known = {each.code for each in self.plain.findings} if self.plain is not None else set()
        known.discard(_TARGET_TAKES_MOST)
        for finding in sizing.findings:
            if finding.severity is Severity.WARNING and finding.code not in known:
                yield finding

    @property
    def num_tokens(self) -> int:
        """Tokens of a complete sequence of the traffic."""
        return self.case.requirements.traffic.prompt_tokens + self.case.requirements.traffic.output_tokens


def open_memory(case: PickCase) -> MemoryCheck:
    """Return the baseline's memory, with flags that make it fit if none were given."""
    memory = MemoryCheck(case=case, plain=_size(case, case.setup(None)), levers=())
    args: dict[str, int] = {}
    for _ in range(2):  # fewer sequences, then a shorter context
        if memory.plain is not None and (flags := memory.fit(memory.plain)):
            args |= flags
            memory = replace(memory, plain=_size(case, case.setup(None, **args)))
    return replace(memory, levers=tuple(_levers(memory)))


def _levers(memory: MemoryCheck) -> Iterator[Lever]:
    plain, traffic = memory.plain, memory.case.requirements.traffic
    if plain is None:
        return
    fault = next((each for each in plain.findings if each.code == _DOES_NOT_FIT), None)
    if fault is not None:
        yield Lever(weight=Weight.OFF, finding=replace(fault, message=f"The target does not fit: {fault.message}"))
        return
    room, peak = plain.budget.sequences(memory.num_tokens), traffic.peak_concurrency
    if room < peak:
        yield make_lever("no-headroom", room=room, tokens=memory.num_tokens, peak=peak)


def _size(case: PickCase, setup: Setup) -> Sizing | None:
    try:
        return size(setup, gpu=case.requirements.gpu)
    except InvalidSetup:
        return None
