"""Diagnoses a service from counter windows and side information."""

from __future__ import annotations

from draftwise.watching.diagnose.diagnose import diagnose
from draftwise.watching.diagnose.pool_case import PoolExpectation, SideInfo

__all__ = ["PoolExpectation", "SideInfo", "diagnose"]
