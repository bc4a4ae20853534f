"""Makes drafter weights and writes checkpoints that vLLM loads."""

from __future__ import annotations

<<<<<<< e9587aa5bb34c10f5122c37405eecd70bfd22229
=======
from importlib import import_module
>>>>>>> f949382b6b09ab40139fb4255183ec6047de79b6
from typing import TYPE_CHECKING

from draftwise.knowledge.methods import get_method

if TYPE_CHECKING:
    from draftwise.training.method import DrafterTraining

__all__ = ["get_training"]


def get_training(name: str) -> type[DrafterTraining]:
<<<<<<< e9587aa5bb34c10f5122c37405eecd70bfd22229
    """Return the training class of a method; it is imported, and torch with it, only now."""
    training: type[DrafterTraining] = get_method(name).load("trainer")
=======
    """Return the training class of a method: `TRAINING` of the module that bears its name.

    The module, and torch with it, is imported only now.

    Args:
        name: a row of `facts.methods` that is `trainable`.

    Raises:
        KeyError: there is no such row.
    """
    training: type[DrafterTraining] = import_module(f"{__name__}.{get_method(name).name}_trainer").TRAINING
>>>>>>> f949382b6b09ab40139fb4255183ec6047de79b6
    return training
