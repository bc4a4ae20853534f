"""Makes drafter weights and writes checkpoints that vLLM loads."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from draftwise.facts.methods import get_method

if TYPE_CHECKING:
    from draftwise.train.method import DrafterTraining

__all__ = ["get_training"]


def get_training(name: str) -> type[DrafterTraining]:
    """Return the training class of a method: `TRAINING` of the module that bears its name.

    The module, and torch with it, is imported only now.

    Args:
        name: a row of `facts.methods` that is `trainable`.

    Raises:
        KeyError: there is no such row.
    """
    training: type[DrafterTraining] = import_module(f"{__name__}.{get_method(name).name}_trainer").TRAINING
    return training
