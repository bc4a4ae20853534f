"""What stands in for a token that is not known yet when several guesses are made in one pass.

Shape letters: F features of a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["MASK_KEYS", "Mask", "find_mask_token"]

MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")
"""Where a plain config.json keeps the mask's token id, in vLLM's order of search."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mask:
    """A token, and what a drafter is told in place of the target's states."""

    token_id: int
    features_F: Tensor | None = None
    """None for a network that reads no states."""


def find_mask_token(config: Mapping[str, Any]) -> int | None:
    """Return the token id of the masks that a plain config.json names; None: it names none."""
    return next((int(config[key]) for key in MASK_KEYS if config.get(key) is not None), None)
