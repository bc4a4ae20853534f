"""What a service's acceptance length usually is at a time of the week, and how far it strays from that by chance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftwise.watching.drift.rows import NUM_BINS, Rows

__all__ = ["Noise", "Season", "cross_fit"]

_PRIOR_SHARE = 0.2
"""Of an average bin's drafts: by so many drafts of the service's mean a bin is pulled towards it, so that a bin with
little data is no outlier."""
_FOLD_DAYS = 7
_SMALLEST = 1e-6


@dataclass(frozen=True, slots=True)
class Season:
    """Accepted draft tokens per draft by time of the week."""

    accepted_per_draft: NDArray[np.float64]
    """By `Rows.bins`."""

    @classmethod
    def fit(cls, rows: Rows) -> Season:
        """Return the season of rows: ratios of sums, pulled towards the mean where there is little data."""
        rows = rows[rows.counts]
        drafts = np.bincount(rows.bins, rows.drafts, NUM_BINS)
        accepted = np.bincount(rows.bins, rows.accepted, NUM_BINS)
        mean = accepted.sum() / max(drafts.sum(), 1.0)
        prior = _PRIOR_SHARE * drafts.sum() / max(np.count_nonzero(drafts), 1) + _SMALLEST
        return cls((accepted + mean * prior) / (drafts + prior))

    def shortfall(self, rows: Rows) -> NDArray[np.float64]:
        """Return the share of its expectation that each row's acceptance length lacks; 0 where it says nothing."""
        expected = 1 + self.accepted_per_draft[rows.bins]
        return np.where(rows.counts, 1 - rows.acceptance_length / expected, 0.0)


def cross_fit(rows: Rows) -> NDArray[np.float64]:
    """Return each row's shortfall from a season that was fitted without its week: so no row explains itself."""
    folds = (rows.days - rows.days[0]) // _FOLD_DAYS
    shortfall = np.zeros(len(rows))
    for fold in np.unique(folds):
        inside = folds == fold
        shortfall[inside] = Season.fit(rows[~inside]).shortfall(rows[inside])
    return shortfall


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Variance of a row's shortfall: what the traffic does between rows, and the chance in the drafts within one."""

    between: float
    within: float
    """Of one draft."""

    @classmethod
    def fit(cls, rows: Rows, shortfall: NDArray[np.float64]) -> Noise:
        """Return the two parts, by least squares of squared shortfalls on 1 and 1 / drafts."""
        counts = rows.counts
        inverse, squares = 1 / np.maximum(rows.drafts[counts], 1), shortfall[counts] ** 2
        scale = 1 / (np.median(squares) + squares.mean() * inverse / inverse.mean() + _SMALLEST)
        design = np.column_stack([np.ones_like(inverse), inverse])
        between, within = np.linalg.lstsq(design * scale[:, None], squares * scale, rcond=None)[0]
        # A part that comes out negative is none; the CUSUM would blow up on a variance of 0.
        return cls(between=max(float(between), 1e-4), within=max(float(within), _SMALLEST))

    def variance(self, drafts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the variance of the shortfall of rows with so many drafts."""
        return self.between + self.within / np.maximum(drafts, 1)
