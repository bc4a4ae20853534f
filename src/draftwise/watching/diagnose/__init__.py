"""Diagnosis: what is wrong with a service, from windows of its counters and what is known beside them."""

from __future__ import annotations

from draftwise.watching.diagnose.case import Asked, Expectation
from draftwise.watching.diagnose.diagnose import diagnose

__all__ = ["Asked", "Expectation", "diagnose"]
