"""Makes drafter weights and writes checkpoints that vLLM loads."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftwise.train.method import Method

__all__ = ["METHODS", "get_method"]

METHODS: dict[str, tuple[str, str]] = {
    "medusa": ("medusa", "MedusaTraining"),
    "mlp_speculator": ("mlp_speculator", "MlpSpeculatorTraining"),
    "draft_model": ("draft_model", "DraftModelTraining"),
    "eagle": ("eagle", "EagleTraining"),
    "eagle3": ("eagle3", "Eagle3Training"),
    "mtp": ("mtp", "MtpTraining"),
    "dflash": ("dflash", "DFlashTraining"),
}
"""Trainable methods by vLLM's names: module of this package and class. Naming them must not import torch."""


def get_method(name: str) -> type[Method]:
    """Return the training class of a method of METHODS."""
    module, attribute = METHODS[name]
    method: type[Method] = getattr(import_module(f"draftwise.train.{module}"), attribute)
    return method
