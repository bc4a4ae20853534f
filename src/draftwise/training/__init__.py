"""Makes drafter weights and writes checkpoints that vLLM loads."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftwise.training.method import DrafterTraining

__all__ = ["get_training"]

_TRAINERS: Mapping[str, str] = {
    "medusa": "MedusaTraining",
    "mlp_speculator": "MlpSpeculatorTraining",
    "draft_model": "DraftModelTraining",
    "eagle": "EagleTraining",
    "eagle3": "Eagle3Training",
    "mtp": "MtpTraining",
    "dflash": "DFlashTraining",
}
"""Class by method, in the module of the method's name: those that `facts.methods` calls trainable."""


def get_training(name: str) -> type[DrafterTraining]:
    """Return the training class of a method; it is imported, and torch with it, only now."""
    method: type[DrafterTraining] = getattr(import_module(f"draftwise.training.{name}"), _TRAINERS[name])
    return method
