"""Finds the prompts that a candidate slows down: by workload, or on one side of a trait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from draftwise.core import Answer
from draftwise.deciding.comparison.cell import Cell, Unit
from draftwise.statistics import Array, RatioEstimate

_FEWEST = 6
"""Minimum number of prompts for a split beyond chance."""
_SMALLEST_SHARE = 0.1
"""Smallest share of prompts on each side of the split: fewer are outliers, not a kind of traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSplit:
    """A split by a trait of the prompts: one side loses, the other gains."""

    trait: str
    """The trait, such as `prompt tokens`."""
    line: float
    """Value of the trait that separates the sides."""
    below: float
    """Geometric mean of the ratios below the line."""
    above: float
    num_below: int
    num_above: int

    @property
    def words(self) -> str:
        """The split as a part of a sentence."""
        low = f"{self.num_below} prompts with under {self.line:.3g} {self.trait} {self.below:.2f}x"
        high = f"{self.num_above} with more {self.above:.2f}x"
        return f"{low}, {high}"


def name_losers(cell: Cell, speedup: RatioEstimate) -> str:
    """Describe the prompts that a candidate slows down; empty if no trait separates them.

    For pooled workloads, the trait is the workload, because operators can route by it.
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
        "tokens per step": (cell.candidate, lambda answer: answer.tokens_per_step),
        "prompt tokens": (cell.baseline, lambda answer: answer.num_prompt_tokens),
        "output tokens": (cell.baseline, lambda answer: answer.timing.num_tokens),
    }
    for name, (arm, read) in reads.items():
        yield name, [_mean([read(answer) for answer in cell.outputs[arm, unit]]) for unit in units]


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else float("nan")


def find_split(ratios: Sequence[float], traits: Mapping[str, Sequence[float]]) -> PromptSplit | None:
    """Return the trait that best separates slower from faster prompts; None if no trait does.

    A trait counts if its rank correlation with the ratios is beyond chance (two standard errors of Spearman's rho,
    corrected for the number of traits) and the prompts on one side of the best split are slower on average.

    Args:
        ratios: speed-up of each prompt.
        traits: by name, one value per prompt; NaN if unknown.
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
    """Return the geometric mean of the ratios and their number by group, slowest first."""
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


def _best_line(trait: str, logs: Array, values: Array) -> PromptSplit | None:
    """Return the line that leaves the least spread on its two sides, None where all values are one."""
    order = np.argsort(values, kind="stable")
    logs, values = logs[order], values[order]
    least = max(2, math.ceil(_SMALLEST_SHARE * len(logs)))
    cuts = [cut for cut in range(least, len(logs) - least + 1) if values[cut - 1] < values[cut]]
    if not cuts:
        return None
    cut = min(cuts, key=lambda cut: float(logs[:cut].var() * cut + logs[cut:].var() * (len(logs) - cut)))
    return PromptSplit(
        trait=trait,
        line=float((values[cut - 1] + values[cut]) / 2),
        below=math.exp(float(logs[:cut].mean())),
        above=math.exp(float(logs[cut:].mean())),
        num_below=cut,
        num_above=len(logs) - cut,
    )
