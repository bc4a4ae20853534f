"""From mean acceptance length to realised speed-up: where on the way the rest is lost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from draftwise.core import Comparison
from draftwise.decide.comparison.cell import ALL

__all__ = ["DEFINITION", "Conversion", "trace_conversion"]

DEFINITION = (
    "Acceptance length: tokens per verified draft. Steps without a draft bring it down to the tokens per step. A step "
    "that drafts and verifies takes longer than one of the baseline: tokens per step over the ratio of step times is "
    "the baseline's TPOT over the candidate's. The time to the first token (prefill, queueing) is not sped up, or "
    "grows: what is left is the speed-up of the whole request. Drafting and verification cannot be told apart from "
    "outside of the server."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """The stations of one comparison, all in multiples of the baseline."""

    workload: str
    temperature: float
    load: str
    """Label of the load."""
    candidate: str
    acceptance_length: float
    """What drafts are worth when every step drafts and costs what one of the baseline does."""
    tokens_per_step: float
    """The same with the steps that had no draft."""
    decoding: float
    """The baseline's TPOT over the candidate's: with what a step really costs."""
    realised: float
    """Tokens per second of a whole request: with the time to the first token."""

    @property
    def step_cost(self) -> float:
        """Seconds of a step of the candidate over those of one of the baseline, under this load."""
        return self.tokens_per_step / self.decoding

    @property
    def levels(self) -> tuple[float, float, float, float]:
        """The stations from what arrived back to the acceptance length."""
        return self.realised, self.decoding, self.tokens_per_step, self.acceptance_length


def trace_conversion(comparisons: Iterable[Comparison]) -> list[Conversion]:
    """Return the stations of every comparison on a single workload whose server reports its counters."""
    found = []
    for each in comparisons:
        length, tokens = each.counters.spec.acceptance_length, each.counters.tokens_per_step
        timed = each.tpot is not None and each.tpot.value > 0
        if each.workload != ALL and length is not None and tokens is not None and each.tpot is not None and timed:
            found.append(
                Conversion(
                    workload=each.workload,
                    temperature=each.condition.temperature,
                    load=each.condition.load.label,
                    candidate=each.candidate,
                    acceptance_length=length,
                    tokens_per_step=tokens,
                    decoding=1 / each.tpot.value,
                    realised=each.speedup.value,
                )
            )
    return found
