"""What paired readings say and how sure it is: ratios with intervals, early stopping, families of tests, crossovers."""

from draftwise.statistics.clusters import Spread
from draftwise.statistics.crossover import Crossing, LoadPoint, find_crossing, next_load
from draftwise.statistics.design import Array, Design
from draftwise.statistics.estimate import CONFIDENCE, Estimate
from draftwise.statistics.family import adjust_family
from draftwise.statistics.percentiles import PERCENTILES, Samples, percentile_ratios
from draftwise.statistics.power import POWER, detectable_ratio, prompts_needed, repetitions_needed
from draftwise.statistics.ratios import goodput_change, prompt_ratio, server_ratio, total_ratio
from draftwise.statistics.sequential import Conclusion, InterimAnalyses, conclude, settle
from draftwise.statistics.student import student_quantile

__all__ = [
    "CONFIDENCE",
    "FEWEST_PROMPTS",
    "PERCENTILES",
    "POWER",
    "Array",
    "Conclusion",
    "Crossing",
    "Design",
    "Estimate",
    "InterimAnalyses",
    "LoadPoint",
    "Samples",
    "Spread",
    "adjust_family",
    "conclude",
    "detectable_ratio",
    "find_crossing",
    "goodput_change",
    "next_load",
    "percentile_ratios",
    "prompt_ratio",
    "prompts_needed",
    "repetitions_needed",
    "server_ratio",
    "settle",
    "student_quantile",
    "total_ratio",
]

FEWEST_PROMPTS = 6
"""From here on the intervals are worth reading; they are honest, but very wide, below."""
