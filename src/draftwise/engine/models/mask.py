"""What stands in for a token that is not known yet when several tokens are drafted in one pass.

Shape letters: F features of a token.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Mask"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mask:
    """A token, and what a drafter is told in place of the target's states."""

    token_id: int
    features_F: Tensor | None = None
    """None for a network that reads no states."""
