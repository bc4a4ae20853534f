"""Predicts ModelConfig: the values a release reads from both config.json, and models it cannot build or split."""

from draftwise.plan.check.model.model_config import Model
from draftwise.plan.check.model.target import find_target, is_unquantized, read_target

__all__ = ["Model", "find_target", "is_unquantized", "read_target"]
