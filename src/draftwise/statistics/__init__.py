"""What paired readings say and how sure it is: ratios with intervals, early stopping, families of tests, crossovers."""

from draftwise.statistics.crossover import Crossing, LoadPoint, find_crossing, next_load
from draftwise.statistics.estimate import (
    CONFIDENCE,
    POWER,
    PowerOutlook,
    RatioEstimate,
    Spread,
    find_outlook,
    shows_equivalence,
    student_quantile,
)
from draftwise.statistics.percentiles import PERCENTILES, percentile_ratios
from draftwise.statistics.ratios import (
    Array,
    Design,
    RatioChange,
    find_change,
    find_spread,
    goodput_change,
    prompt_ratio,
    server_ratio,
    total_ratio,
)
from draftwise.statistics.sequential import Conclusion, InterimAnalyses, adjust_family, conclude, settle

__all__ = [
    "CONFIDENCE",
    "FEWEST_PROMPTS",
    "PERCENTILES",
    "POWER",
    "Array",
    "Conclusion",
    "Crossing",
    "Design",
    "InterimAnalyses",
    "LoadPoint",
    "PowerOutlook",
    "RatioChange",
    "RatioEstimate",
    "Spread",
    "adjust_family",
    "conclude",
    "find_change",
    "find_crossing",
    "find_outlook",
    "find_spread",
    "goodput_change",
    "next_load",
    "percentile_ratios",
    "prompt_ratio",
    "server_ratio",
    "settle",
    "shows_equivalence",
    "student_quantile",
    "total_ratio",
]

FEWEST_PROMPTS = 6
"""From here on the intervals are worth reading; they are honest, but very wide, below."""
