"""Findings about a measurement: what takes a speed-up away, and what a reader must know beside it."""

from draftwise.measure.guards.caches import finds_prompts_cached
from draftwise.measure.guards.checks import check_cell, check_run
from draftwise.measure.guards.memory import has_memory
from draftwise.measure.guards.outputs import check_outputs
from draftwise.measure.guards.text import TextQuality, text_quality

__all__ = [
    "TextQuality",
    "check_cell",
    "check_outputs",
    "check_run",
    "finds_prompts_cached",
    "has_memory",
    "text_quality",
]
