"""Validity checks: findings about a measurement, of which errors block an adoption and the rest inform a reader."""

from draftwise.decide.validity.checks import check_comparison, check_run
from draftwise.decide.validity.text import TextQuality, assess_text

__all__ = ["TextQuality", "assess_text", "check_comparison", "check_run"]
