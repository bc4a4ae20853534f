"""Whether a setup fits, beside what fits without a drafter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from draftwise.core import Finding, InvalidSetup, Setup, Severity
from draftwise.facts.advice import get_advice
from draftwise.plan.pick.case import Case
from draftwise.plan.pick.levers import Lever, Weight
from draftwise.plan.size import Sizing, size

__all__ = ["Memory", "open_memory"]

_TARGET_TAKES_MOST, _DOES_NOT_FIT = "target-takes-most", "does-not-fit"
"""Findings of `size`."""
_STEP = 1024
"""Context lengths are cut to a multiple of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The plain deployment's memory, and what it says against speculation."""

    case: Case
    plain: Sizing | None
    """None where the target's size cannot be computed."""
    levers: tuple[Lever, ...]

    def of(self, setup: Setup) -> Sizing | None:
        """Return what a setup takes."""
        return _size(self.case, setup)

    def shorter(self, sizing: Sizing) -> int | None:
        """Return a context length that fits where the model's own does not, and none was given; None if none is needed.

        A tenth is left free, and the traffic's own length must fit.
        """
        if sizing.budget.fits or "max_model_len" in self.case.wish.args:
            return None
        length = sizing.budget.longest_context() * 9 // 10 // _STEP * _STEP
        return length if length >= self.needed else None

    def shortage(self, sizing: Sizing) -> str:
        """Return what a setup lacks, empty where it holds the traffic as well as the plain deployment does."""
        fault = next((each for each in sizing.findings if each.code == _DOES_NOT_FIT), None)
        if fault is not None:
            return str(fault)
        together, length = self.case.wish.traffic.concurrency, self.needed
        room, before = sizing.budget.sequences(length), sizing.plain.sequences(length)
        if room < together <= before:
            return f"With it {room} sequences of {length} tokens fit, without it {before}; {together} decode together."
        return ""

    def caveats(self, sizing: Sizing) -> Iterator[Finding]:
        """Yield what `size` warns of because of the drafter, and that the target alone takes most of the memory."""
        known = {each.code for each in self.plain.findings} if self.plain is not None else set()
        known.discard(_TARGET_TAKES_MOST)
        for finding in sizing.findings:
            if finding.severity is Severity.WARNING and finding.code not in known:
                yield finding

    @property
    def needed(self) -> int:
        """Tokens of one sequence of the traffic, at its end."""
        return self.case.wish.traffic.prompt_tokens + self.case.wish.traffic.output_tokens


def open_memory(case: Case) -> Memory:
    """Return the plain deployment's memory, at the context that fits where none was given."""
    memory = Memory(case=case, plain=_size(case, case.setup(None)), levers=())
    if memory.plain is not None and (length := memory.shorter(memory.plain)):
        memory = replace(memory, plain=_size(case, case.setup(None, max_model_len=length)))
    return replace(memory, levers=tuple(_levers(memory)))


def _levers(memory: Memory) -> Iterator[Lever]:
    plain, traffic = memory.plain, memory.case.wish.traffic
    if plain is None:
        return
    fault = next((each for each in plain.findings if each.code == _DOES_NOT_FIT), None)
    if fault is not None:
        yield Lever(weight=Weight.OFF, finding=replace(fault, message=f"The target does not fit: {fault.message}"))
        return
    room = plain.budget.sequences(memory.needed)
    if room < traffic.peak_concurrency:
        message = (
            f"{room} sequences of {memory.needed} tokens fit without a drafter, and {traffic.peak_concurrency} come."
        )
        finding = get_advice("no-headroom").finding(message, severity=Severity.WARNING)
        yield Lever(weight=Weight.DOUBT, finding=finding)


def _size(case: Case, setup: Setup) -> Sizing | None:
    try:
        return size(setup, gpu=case.wish.gpu)
    except InvalidSetup:
        return None
