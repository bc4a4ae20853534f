"""The history of a service as drift is judged on it: how many drafts were made and accepted in each five minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["MIN_DRAFTS", "NUM_BINS", "ROWS_PER_DAY", "ROW_S", "Rows", "WindowRow"]

ROW_S = 300
"""Seconds of a row: long enough for a service of two requests a minute to draft, short beside an hour."""
ROWS_PER_DAY = 86_400 // ROW_S
MIN_DRAFTS = 50
"""Fewer drafts in a row say nothing: the statistics stand still, as they do in gaps."""
_DAY_S, _BIN_S = 86_400, 7_200
_BINS = _DAY_S // _BIN_S
NUM_BINS = 2 * _BINS
"""Times of the week: two-hour bins of working days, then of weekends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """Drafts of all speculating replicas in five minutes."""

    began_s: int
    """Since the epoch, a multiple of `ROW_S`."""
    drafts: int
    accepted: int
    """Draft tokens."""
    usable: bool = True
    """False where a replica restarted or was out of the traffic: another service than the one that was learned."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as arrays of one length, in their order of time."""

    began_s: NDArray[np.int64]
    drafts: NDArray[np.float64]
    accepted: NDArray[np.float64]
    usable: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[WindowRow]) -> Rows:
        """Return rows as arrays."""
        return cls(
            np.array([row.began_s for row in rows], np.int64),
            np.array([row.drafts for row in rows], np.float64),
            np.array([row.accepted for row in rows], np.float64),
            np.array([row.usable for row in rows], np.bool_),
        )

    def __getitem__(self, which: slice | NDArray[np.bool_]) -> Rows:
        return Rows(self.began_s[which], self.drafts[which], self.accepted[which], self.usable[which])

    def __len__(self) -> int:
        return len(self.began_s)

    @property
    def counts(self) -> NDArray[np.bool_]:
        """Which rows say something."""
        return self.usable & (self.drafts >= MIN_DRAFTS)

    @property
    def acceptance_length(self) -> NDArray[np.float64]:
        """Tokens per draft; 1 where nothing was drafted."""
        return 1 + self.accepted / np.maximum(self.drafts, 1)

    @property
    def days(self) -> NDArray[np.int64]:
        """Days since the epoch, in UTC."""
        return self.began_s // _DAY_S

    @property
    def bins(self) -> NDArray[np.int64]:
        """The time of the week: two hours of a working day, or of a day of the weekend (UTC)."""
        weekend = (self.days + 3) % 7 >= 5  # the epoch began on a Thursday
        return (self.began_s % _DAY_S) // _BIN_S + _BINS * weekend
