"""Finds faults after the config was accepted: at start-up, per request, or silent ones."""

from draftwise.plan.check.serving.drafter_startup import find_serving

__all__ = ["find_serving"]
