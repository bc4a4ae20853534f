"""Validity checks: findings about a measurement, of which errors block an adoption and the rest inform a reader."""

from draftwise.decide.validity.checks import Checked, check_validity
from draftwise.decide.validity.outputs import TextQuality

__all__ = ["Checked", "TextQuality", "check_validity"]
