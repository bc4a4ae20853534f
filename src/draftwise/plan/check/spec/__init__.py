"""SpeculativeConfig: from the first key of the JSON to the last check of the whole config."""

from draftwise.plan.check.spec.resolve import resolve

__all__ = ["resolve"]
