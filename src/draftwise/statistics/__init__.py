"""Statistical inference from paired readings: ratios with intervals, early stopping, families of tests, crossovers."""

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
from draftwise.statistics.harm import (
    FEWEST_FOR,
    Guard,
    GuardReading,
    find_bar,
    find_unseen_share,
    guard_delay,
    guard_tail,
)
from draftwise.statistics.log_order import OrderBreak, bound_log_itself, find_order_break
from draftwise.statistics.pace import (
    PaceChange,
    find_drift_apart,
    find_pace_change,
    find_pauses,
    find_split_apart,
    find_step_noise,
    find_unrest,
    find_warm_noise,
    find_waves,
    has_moved,
    has_slowed,
)
from draftwise.statistics.percentiles import PERCENTILES, percentile_ratios
from draftwise.statistics.racing import RACE_LOOKS, Leaver, LeaveReason, find_lead, find_leavers, leads_surely
from draftwise.statistics.ratios import (
    FEWEST_CLUSTERS,
    Array,
    Design,
    find_spread,
    goodput_change,
    prompt_ratio,
    server_ratio,
    total_ratio,
    weigh,
)
from draftwise.statistics.rounding import find_rounding_scale, is_beyond_rounding
from draftwise.statistics.sequential import Conclusion, Looks, adjust_family, conclude, settle

__all__ = [
    "CONFIDENCE", "FEWEST_CLUSTERS", "FEWEST_FOR", "FEWEST_PROMPTS", "PERCENTILES", "POWER", "RACE_LOOKS", "Array",
    "Conclusion", "Crossing", "Design", "Guard", "GuardReading", "LeaveReason", "Leaver", "LoadPoint", "Looks",
    "OrderBreak", "PaceChange", "PowerOutlook", "RatioEstimate", "Spread", "adjust_family", "bound_log_itself",
    "conclude", "find_bar", "find_crossing", "find_drift_apart", "find_lead", "find_leavers", "find_order_break",
    "find_outlook", "find_pace_change", "find_pauses", "find_rounding_scale", "find_split_apart", "find_spread",
    "find_step_noise", "find_unrest", "find_unseen_share", "find_warm_noise", "find_waves", "goodput_change",
    "guard_delay", "guard_tail", "has_moved", "has_slowed", "is_beyond_rounding", "leads_surely", "next_load",
    "percentile_ratios", "prompt_ratio", "server_ratio", "settle", "shows_equivalence", "student_quantile",
    "total_ratio", "weigh",
]  # fmt: skip

FEWEST_PROMPTS = 6
"""Minimum number of prompts for a useful interval. With fewer, intervals are valid but very wide."""
