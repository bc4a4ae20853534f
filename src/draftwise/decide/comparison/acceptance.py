"""What acceptance comes to: request by request, in tokens per step; on the way to the speed-up; and for which prompts.

How much of what was drafted was accepted at each temperature, where on the way from acceptance length to realised
speed-up the rest is lost, and which prompts a candidate slows down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from draftwise.core import Answer, Comparison, SpecStats
from draftwise.core.comparison import ALL
from draftwise.core.grouping import group_by
from draftwise.decide.comparison.cell import Cell, Unit
from draftwise.statistics import Array, Estimate

__all__ = [
    "ACCEPTANCE_QUANTILES",
    "DEFINITION",
    "Acceptance",
    "Conversion",
    "Split",
    "count_steps",
    "find_split",
    "find_tokens_per_step",
    "group_ratios",
    "name_losers",
    "pool_acceptance",
    "trace_acceptance",
    "trace_conversion",
]
ACCEPTANCE_QUANTILES = (10, 50, 90)
_BIN = 0.25
"""Width of a bar in tokens per step."""
DEFINITION = (
    "Acceptance length: tokens per verified draft. Steps without a draft bring it down to the tokens per step. A step "
    "that drafts and verifies takes longer than one of the baseline: tokens per step over the ratio of step times is "
    "the baseline's TPOT over the candidate's. The time to the first token (prefill, queueing) is not sped up, or "
    "grows: what is left is the speed-up of the whole request. Drafting and verification cannot be told apart from "
    "outside of the server."
)
_FEWEST = 6
"""Prompts from which a line between them can be more than chance."""
_SMALLEST_SHARE = 0.1
"""Of the prompts, on either side of the line: fewer are outliers, not a kind of traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What one candidate's drafts were worth on one workload at one temperature, over all loads.

    Load changes what a step costs, not what it accepts, so requests of all loads are pooled.
    """

    workload: str
    candidate: str
    temperature: float
    num_requests: int
    source: str
    """`server`: counted by the server for each request. `chunks`: tokens per chunk after the first, a chunk taken for
    one step; a server that sends several steps at once looks better than it is. `none`: neither is known."""
    quantiles: tuple[float, ...]
    """Tokens per step of a request, in the order of ACCEPTANCE_QUANTILES; empty where it is not known."""
    edges: tuple[float, ...]
    """Of the histogram's bars, in tokens per step."""
    counts: tuple[int, ...]
    """Requests in each bar."""
    stats: SpecStats
    """From the server's counters, over all of these turns: acceptance by position."""


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


def trace_acceptance(
    cells: Iterable[Cell], comparisons: Iterable[Comparison]
) -> tuple[list[Acceptance], list[Conversion]]:
    """Return what was accepted, and where on the way from there to the realised speed-up the rest is lost.

    Args:
        cells: with the repetitions that the comparisons rest on, as a cross-request cache would flatter later ones.
    """
    return pool_acceptance(cells), trace_conversion(comparisons)


def pool_acceptance(cells: Iterable[Cell]) -> list[Acceptance]:
    """Return the acceptance of every candidate on every workload at every temperature that it was measured at."""
    single = (cell for cell in cells if len(cell.workloads) == 1)
    groups = group_by(lambda cell: (cell.workload, cell.candidate, cell.condition.temperature), single)
    return [_pool(key, group) for key, group in groups.items()]


def _pool(key: tuple[str, str, float], group: Sequence[Cell]) -> Acceptance:
    workload, candidate, temperature = key
    answers = [each for cell in group for each in cell.requests[candidate] if each.error is None]
    source, known = _known(answers)
    edges, counts = _histogram(known)
    return Acceptance(
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
    told = map(_told_by_server, answers)
    seen = (_seen_in_chunks(answer) for answer in answers if answer.counts_exact)
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


def find_tokens_per_step(answer: Answer) -> float | None:
    """Return the output tokens per decoding step of a request, None where it is not known.

    From the server's own count for the request where it gives one; else the tokens per chunk after the first chunk,
    which prefill emits. Where a server does not say how many tokens a chunk holds, chunks tell nothing.
    """
    steps, tokens = count_steps(answer)
    return tokens / steps if steps and (any(answer.acceptance) or answer.counts_exact) else None


def count_steps(answer: Answer) -> tuple[int, int]:
    """Return the decoding steps of a request and the tokens that they brought.

    As the server told for this request, else a step per chunk after the first: a server sends what each step brings.
    """
    told = _told_by_server(answer)
    return told if told[0] else _seen_in_chunks(answer)


def _told_by_server(answer: Answer) -> tuple[int, int]:
    steps = sum(answer.acceptance)
    return steps, steps + sum(accepted * count for accepted, count in enumerate(answer.acceptance))


def _seen_in_chunks(answer: Answer) -> tuple[int, int]:
    chunks = answer.timing.chunks
    return (len(chunks) - 1, answer.timing.num_tokens - chunks[0][1]) if chunks else (0, 0)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A line through a trait of the prompts: those on one side lose, the others gain."""

    trait: str
    """What is counted, e.g. `prompt tokens`."""
    line: float
    """Prompts below it are on the one side, the others on the other."""
    below: float
    """Geometric mean of the ratios below the line."""
    above: float
    num_below: int
    num_above: int

    @property
    def words(self) -> str:
        """The split as part of a sentence."""
        low = f"{self.num_below} prompts with under {self.line:.3g} {self.trait} {self.below:.2f}x"
        high = f"{self.num_above} with more {self.above:.2f}x"
        return f"{low}, {high}"


def name_losers(cell: Cell, speedup: Estimate) -> str:
    """Return which prompts a candidate slows down, in words; empty where nothing tells them apart.

    Of several workloads together it is the workload, for by that an operator can route.
    """
    units = [unit for unit in cell.units if unit in speedup.log_by_prompt]
    ratios = [math.exp(speedup.log_by_prompt[unit]) for unit in units]
    groups = group_ratios(ratios, [workload for workload, _ in units])
    if len(groups) > 1 and next(iter(groups.values()))[0] < 1:
        return ", ".join(f"{name} {ratio:.2f}x" for name, (ratio, _) in groups.items())
    split = find_split(ratios, dict(_traits(cell, units)))
    return "" if split is None else split.words


def _traits(cell: Cell, units: Sequence[Unit]) -> Iterator[tuple[str, Sequence[float]]]:
    """Yield what is known of each prompt, by name."""
    reads: Mapping[str, tuple[str, Callable[[Answer], float | None]]] = {
        "tokens per step": (cell.candidate, find_tokens_per_step),
        "prompt tokens": (cell.baseline, lambda answer: answer.num_prompt_tokens),
        "output tokens": (cell.baseline, lambda answer: answer.timing.num_tokens),
    }
    for name, (arm, read) in reads.items():
        yield name, [_mean([read(answer) for answer in cell.outputs[arm, unit]]) for unit in units]


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else float("nan")


def find_split(ratios: Sequence[float], traits: Mapping[str, Sequence[float]]) -> Split | None:
    """Return the trait that best tells slowed prompts from quickened ones, None where none does.

    A trait counts when its rank correlation with the ratios is beyond chance (two standard errors of Spearman's rho,
    each as strict as the number of traits asks) and the prompts on one side of the best line are slower on the whole.

    Args:
        ratios: speed-up of each prompt.
        traits: by name, a value of each prompt beside it; NaN where it is not known.
    """
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    found = [
        (abs(rho), split)
        for name, values in traits.items()
        if (rho := _rank_correlation(logs, np.asarray(values, dtype=np.float64))) is not None
        and (split := _best_line(name, logs, np.asarray(values, dtype=np.float64))) is not None
        and abs(rho) > _least_correlation(len(logs), len(traits))
    ]
    losing = [(rho, split) for rho, split in found if min(split.below, split.above) < 1]
    return max(losing, key=lambda each: each[0])[1] if losing else None


def group_ratios(ratios: Sequence[float], groups: Sequence[str]) -> dict[str, tuple[float, int]]:
    """Return, by group, the geometric mean of its ratios and their number, the slowest first."""
    members: dict[str, list[float]] = {}
    for ratio, group in zip(ratios, groups, strict=True):
        members.setdefault(group, []).append(math.log(ratio))
    means = {group: (math.exp(sum(logs) / len(logs)), len(logs)) for group, logs in members.items()}
    return dict(sorted(means.items(), key=lambda item: item[1][0]))


def _least_correlation(num_prompts: int, num_traits: int) -> float:
    """Return the rank correlation from which chance is not the explanation (1 / sqrt(n - 1) is its standard error)."""
    if num_prompts < _FEWEST:
        return 1.0
    errors = 2.0 + 0.4 * math.log(max(num_traits, 1))
    return min(errors / math.sqrt(num_prompts - 1), 0.95)


def _rank_correlation(logs: Array, values: Array) -> float | None:
    """Return Spearman's rho, None where a trait is unknown for a prompt or the same for all."""
    if len(logs) < _FEWEST or not np.all(np.isfinite(values)) or np.ptp(values) == 0 or np.ptp(logs) == 0:
        return None
    return float(np.corrcoef(_ranks(logs), _ranks(values))[0, 1])


def _ranks(values: Array) -> Array:
    """Return ranks from 0, equal values sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts + 1) / 2)[inverse], dtype=np.float64)


def _best_line(trait: str, logs: Array, values: Array) -> Split | None:
    """Return the line that leaves the least spread on its two sides, None where all values are one."""
    order = np.argsort(values, kind="stable")
    logs, values = logs[order], values[order]
    least = max(2, math.ceil(_SMALLEST_SHARE * len(logs)))
    cuts = [cut for cut in range(least, len(logs) - least + 1) if values[cut - 1] < values[cut]]
    if not cuts:
        return None
    cut = min(cuts, key=lambda cut: float(logs[:cut].var() * cut + logs[cut:].var() * (len(logs) - cut)))
    return Split(
        trait=trait,
        line=float((values[cut - 1] + values[cut]) / 2),
        below=math.exp(float(logs[:cut].mean())),
        above=math.exp(float(logs[cut:].mean())),
        num_below=cut,
        num_above=len(logs) - cut,
    )
