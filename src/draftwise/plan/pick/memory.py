"""Whether a setup fits into memory, compared with what fits without a drafter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from draftwise.core import Finding, InvalidSetup, Setup, Severity
from draftwise.knowledge.advice import get_advice
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
    """The baseline's memory, and the reasons against speculation that follow from it."""

    case: Case
    plain: Sizing | None
    """None where the target's size cannot be computed."""
    levers: tuple[Lever, ...]

    def size(self, setup: Setup) -> Sizing | None:
        """Return the memory that a setup takes; None if it cannot be computed."""
        return _size(self.case, setup)

    def find_shorter_context(self, sizing: Sizing) -> int | None:
        """Return a context length that fits if the model's own does not; None if none is needed or one was given.

        A tenth is left free, and the traffic's own length must fit.
        """
        if sizing.budget.fits or "max_model_len" in self.case.requirements.args:
            return None
        length = sizing.budget.longest_context() * 9 // 10 // _STEP * _STEP
        return length if length >= self.num_tokens else None

    def describe_shortage(self, sizing: Sizing) -> str:
        """Return what a setup lacks; empty if it holds the traffic as well as the baseline does."""
        fault = next((each for each in sizing.findings if each.code == _DOES_NOT_FIT), None)
        if fault is not None:
            return str(fault)
        together, length = self.case.requirements.traffic.concurrency, self.num_tokens
        room, before = sizing.budget.sequences(length), sizing.plain.sequences(length)
        if room < together <= before:
            return f"{room} sequences of {length} tokens fit with it, {before} without; {together} decode together."
        return ""

    def find_caveats(self, sizing: Sizing) -> Iterator[Finding]:
        """Yield what `size` warns of because of the drafter, and that the target alone takes most of the memory."""
        known = {each.code for each in self.plain.findings} if self.plain is not None else set()
        known.discard(_TARGET_TAKES_MOST)
        for finding in sizing.findings:
            if finding.severity is Severity.WARNING and finding.code not in known:
                yield finding

    @property
    def num_tokens(self) -> int:
        """Tokens of one sequence of the traffic when it is complete."""
        return self.case.requirements.traffic.prompt_tokens + self.case.requirements.traffic.output_tokens


def open_memory(case: Case) -> Memory:
    """Return the baseline's memory, at a context length that fits if none was given."""
    memory = Memory(case=case, plain=_size(case, case.setup(None)), levers=())
    if memory.plain is not None and (length := memory.find_shorter_context(memory.plain)):
        memory = replace(memory, plain=_size(case, case.setup(None, max_model_len=length)))
    return replace(memory, levers=tuple(_levers(memory)))


def _levers(memory: Memory) -> Iterator[Lever]:
    plain, traffic = memory.plain, memory.case.requirements.traffic
    if plain is None:
        return
    fault = next((each for each in plain.findings if each.code == _DOES_NOT_FIT), None)
    if fault is not None:
        yield Lever(weight=Weight.OFF, finding=replace(fault, message=f"The target does not fit: {fault.message}"))
        return
    room = plain.budget.sequences(memory.num_tokens)
    if room < traffic.peak_concurrency:
        message = (
            f"{room} sequences of {memory.num_tokens} tokens fit without a drafter, "
            f"but {traffic.peak_concurrency} arrive at the peak."
        )
        finding = get_advice("no-headroom").finding(message, severity=Severity.WARNING)
        yield Lever(weight=Weight.DOUBT, finding=finding)


def _size(case: Case, setup: Setup) -> Sizing | None:
    try:
        return size(setup, gpu=case.requirements.gpu)
    except InvalidSetup:
        return None
