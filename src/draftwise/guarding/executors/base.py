"""What every executor offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftwise.core.action import Action, Step

__all__ = ["Executor"]


class Executor(Protocol):
    """Something that was named to carry out steps."""

    @property
    def name(self) -> str:
        """As it was named on the command line, so that a step can be undone by what did it."""

    @property
    def steps(self) -> frozenset[Step]:
        """Those that it can carry out."""

    def prove(self, replicas: Sequence[str]) -> None:
        """Find out before anything is wrong whether steps could be carried out.

        Raises:
            BackendError: not on these replicas.
        """

    def carry_out(self, action: Action) -> None:
        """Carry out a step; to do it again changes nothing.

        Raises:
            BackendError: it was not done, or not on every replica.
        """

    def is_out(self, replica: str) -> bool | None:
        """Return whether a replica is out of the traffic; None where that cannot be seen."""
