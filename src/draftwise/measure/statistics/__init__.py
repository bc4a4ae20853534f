"""What paired readings say and how sure it is: ratios with intervals, early stopping, families of tests, crossovers."""

from draftwise.measure.statistics.clusters import Spread, spread
from draftwise.measure.statistics.crossover import Crossing, LoadPoint, find_crossing, next_load
from draftwise.measure.statistics.design import Array, Design
from draftwise.measure.statistics.estimate import CONFIDENCE, Estimate
from draftwise.measure.statistics.family import adjust_family
from draftwise.measure.statistics.percentiles import PERCENTILES, Samples, percentile_ratios
from draftwise.measure.statistics.power import POWER, detectable_ratio, passes_needed, prompts_needed
from draftwise.measure.statistics.ratios import goodput_change, prompt_ratio, server_ratio, total_ratio
from draftwise.measure.statistics.sequential import Looks, Outcome, conclude, settle
from draftwise.measure.statistics.student import student_quantile

__all__ = [
    "CONFIDENCE",
    "FEWEST_PROMPTS",
    "PERCENTILES",
    "POWER",
    "Array",
    "Crossing",
    "Design",
    "Estimate",
    "LoadPoint",
    "Looks",
    "Outcome",
    "Samples",
    "Spread",
    "adjust_family",
    "conclude",
    "detectable_ratio",
    "find_crossing",
    "goodput_change",
    "next_load",
    "passes_needed",
    "percentile_ratios",
    "prompt_ratio",
    "prompts_needed",
    "server_ratio",
    "settle",
    "spread",
    "student_quantile",
    "total_ratio",
]

FEWEST_PROMPTS = 6
"""From here on the intervals are worth reading; they are honest, but very wide, below."""
