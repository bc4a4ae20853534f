"""Findings about a measurement: what takes a speed-up away, and what a reader must know beside it."""

from draftwise.decide.validity.caches import finds_prompts_cached
from draftwise.decide.validity.checks import check_cell, check_run
from draftwise.decide.validity.memory import has_memory
from draftwise.decide.validity.outputs import check_outputs
from draftwise.decide.validity.text import TextQuality, text_quality

__all__ = [
    "TextQuality",
    "check_cell",
    "check_outputs",
    "check_run",
    "finds_prompts_cached",
    "has_memory",
    "text_quality",
]
