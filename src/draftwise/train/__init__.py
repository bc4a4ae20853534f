"""Makes drafter weights and writes checkpoints that vLLM loads."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftwise.train.method import Method

__all__ = ["get_training"]

_TRAINERS: Mapping[str, tuple[str, str]] = {
    "medusa": ("medusa", "MedusaTraining"),
    "mlp_speculator": ("mlp_speculator", "MlpSpeculatorTraining"),
    "draft_model": ("draft_model", "DraftModelTraining"),
    "eagle": ("eagle", "EagleTraining"),
    "eagle3": ("eagle3", "Eagle3Training"),
    "mtp": ("mtp", "MtpTraining"),
    "dflash": ("dflash", "DFlashTraining"),
}
"""Module of this package and class, by method: those that `facts.methods` calls trainable."""


def get_training(name: str) -> type[Method]:
    """Return the training class of a method; it is imported, and torch with it, only now."""
    module, attribute = _TRAINERS[name]
    method: type[Method] = getattr(import_module(f"draftwise.train.{module}"), attribute)
    return method
