"""Trains drafters and writes checkpoints that vLLM loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.knowledge.methods import get_method

if TYPE_CHECKING:
    from draftwise.training.method import DrafterTraining

__all__ = ["get_training"]


def get_training(name: str) -> type[DrafterTraining]:
    """Return the training class of a method. Imports it, and torch, only now."""
    training: type[DrafterTraining] = get_method(name).load("trainer")
    return training
