"""Computes the accepted share of drafts, and how much of it becomes speed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from draftwise.core import Answer, Comparison, SpecStats
from draftwise.core.comparison import ALL
from draftwise.core.documents import HIDDEN, json_form
from draftwise.core.grouping import group_by
from draftwise.deciding.comparison.cell import Cell
from draftwise.deciding.comparison.latencies import name_quantiles

ACCEPTANCE_QUANTILES = (10, 50, 90)
_BIN = 0.25
"""Width of a bar in tokens per step."""
DEFINITION = (
    "Acceptance length: tokens per verified draft. Tokens per step also counts the steps without a draft, so it is "
    "never higher. A step that drafts and verifies takes longer than a baseline step. Dividing tokens per step by the "
    "ratio of step times gives the baseline's TPOT over the candidate's. Speculation does not shorten the time to the "
    "first token (prefill, queueing), and may lengthen it. What remains is the speed-up of the whole request. A "
    "client cannot separate drafting from verification."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledAcceptance:
    """One candidate's acceptance on one workload at one temperature, over all loads.

    Load changes the cost of a step, not its acceptance, so all loads are pooled.
    """

    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("per_position", "mean_acceptance_length")
    workload: str
    candidate: str
    temperature: float
    num_requests: int
    source: str
    """`server`: counted by the server per request. `chunks`: tokens per chunk after the first, with a chunk taken as
    one step, which flatters a server that sends several steps at once. `none`: unknown."""
    quantiles: tuple[float, ...] = field(
        metadata=json_form(
            key="tokens_per_step",
            wire=Mapping[str, float],
            to_wire=lambda values: name_quantiles(values, ACCEPTANCE_QUANTILES),
        )
    )
    """Tokens per step of a request, in the order of ACCEPTANCE_QUANTILES; empty if unknown."""
    edges: tuple[float, ...] = field(metadata=json_form(key="histogram.edges"))
    """Edges of the histogram's bars, in tokens per step."""
    counts: tuple[int, ...] = field(metadata=json_form(key="histogram.counts"))
    """Requests in each bar."""
    stats: SpecStats = field(metadata=HIDDEN)
    """Acceptance by position, from the server's counters over these turns."""

    @property
    def per_position(self) -> tuple[float, ...]:
        """Share of all drafts whose token at a position was accepted."""
        return self.stats.rate_per_pos

    @property
    def mean_acceptance_length(self) -> float | None:
        """Mean tokens emitted per verified draft; null without drafts."""
        return self.stats.acceptance_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Steps from acceptance to speed-up of one comparison, as multiples of the baseline."""

    JSON_DERIVED: ClassVar[tuple[str, ...]] = ("step_cost",)
    workload: str
    temperature: float
    load: str
    """Label of the load."""
    candidate: str
    acceptance_length: float
    """Speed-up if every step drafted and cost as much as a baseline step."""
    tokens_per_step: float
    """The same, with steps that had no draft."""
    decoding: float
    """The baseline's TPOT over the candidate's: includes the real cost of a step."""
    realised: float
    """Speed-up in tokens per second of a whole request: includes the time to first token."""

    @property
    def step_cost(self) -> float:
        """Seconds of a candidate's step over those of a baseline's step, under this load."""
        return self.tokens_per_step / self.decoding

    @property
    def levels(self) -> tuple[float, float, float, float]:
        """The steps in reverse order, from the realized speed-up to the acceptance length."""
        return self.realised, self.decoding, self.tokens_per_step, self.acceptance_length


def pool_acceptance(cells: Iterable[Cell]) -> list[PooledAcceptance]:
    """Return the acceptance of every candidate, by workload and temperature.

    Args:
        cells: cells with the comparisons' repetitions, because a cross-request cache would flatter later ones.
    """
    single = (cell for cell in cells if len(cell.workloads) == 1)
    groups = group_by(lambda cell: (cell.workload, cell.candidate, cell.condition.temperature), single)
    return [_pool(key, group) for key, group in groups.items()]


def _pool(key: tuple[str, str, float], group: Sequence[Cell]) -> PooledAcceptance:
    workload, candidate, temperature = key
    answers = [each for cell in group for each in cell.requests[candidate] if each.error is None]
    source, known = _known(answers)
    edges, counts = _histogram(known)
    return PooledAcceptance(
        workload=workload,
        candidate=candidate,
        temperature=temperature,
        num_requests=len(known),
        source=source,
        quantiles=tuple(map(float, np.percentile(known, ACCEPTANCE_QUANTILES))) if known else (),
        edges=edges,
        counts=counts,
        stats=sum((cell.counters[candidate].spec for cell in group), SpecStats()),
    )


def _known(answers: Sequence[Answer]) -> tuple[str, list[float]]:
    """Return the source of all values and the values: one source, as the two count differently."""
    told = (answer.told_steps for answer in answers)
    seen = (answer.seen_steps for answer in answers if answer.counts_exact)
    for source, counts in (("server", told), ("chunks", seen)):
        values = [tokens / steps for steps, tokens in counts if steps]
        if len(values) > len(answers) / 2:
            return source, values
    return "none", []


def _histogram(values: Sequence[float]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the edges from 1 token per step up to the most that was seen, and the requests between them."""
    if not values:
        return (), ()
    bars = max(1, math.ceil((max(values) - 1) / _BIN + 1e-9))
    edges = 1 + _BIN * np.arange(bars + 1)
    counts, _ = np.histogram(np.clip(values, 1, edges[-1]), edges)
    return tuple(map(float, edges)), tuple(map(int, counts))


def trace_conversion(comparisons: Iterable[Comparison]) -> list[Conversion]:
    """Return the conversion of every comparison on a single workload whose server reports counters."""
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
