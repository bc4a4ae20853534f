"""Detects drift of acceptance in a service's own counters, with season, noise and limits fitted to the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROW_S = 300
"""Seconds per row: long enough for drafts at two requests a minute, short compared with an hour."""
ROWS_PER_DAY = 86_400 // ROW_S
MIN_DRAFTS = 50
"""Minimum drafts in a row. With fewer, the statistics pause, as in gaps."""
_DAY_S, _BIN_S = 86_400, 7_200
_BINS = _DAY_S // _BIN_S
_NUM_BINS = 2 * _BINS
"""Number of bins per week: two-hour bins of working days, then of weekends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRow:
    """Drafts of all speculating replicas in five minutes."""

    began_s: int
    """Seconds since the epoch, a multiple of `ROW_S`."""
    drafts: int
    accepted: int
    """Draft tokens."""
    usable: bool = True
    """False if a replica restarted or received no traffic: this is not the service that was learned."""


@dataclass(frozen=True, slots=True)
class RowArrays:
    """Rows as arrays of equal length, in time order."""

    began_s: NDArray[np.int64]
    drafts: NDArray[np.float64]
    accepted: NDArray[np.float64]
    usable: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[DriftRow]) -> RowArrays:
        """Convert rows to arrays."""
        return cls(
            np.array([row.began_s for row in rows], np.int64),
            np.array([row.drafts for row in rows], np.float64),
            np.array([row.accepted for row in rows], np.float64),
            np.array([row.usable for row in rows], np.bool_),
        )

    def __getitem__(self, which: slice | NDArray[np.bool_]) -> RowArrays:
        return RowArrays(self.began_s[which], self.drafts[which], self.accepted[which], self.usable[which])

    def __len__(self) -> int:
        return len(self.began_s)

    @property
    def counts(self) -> NDArray[np.bool_]:
        """Which rows have enough drafts and are usable."""
        return self.usable & (self.drafts >= MIN_DRAFTS)

    @property
    def acceptance_length(self) -> NDArray[np.float64]:
        """Tokens per draft; 1 without drafts."""
        return 1 + self.accepted / np.maximum(self.drafts, 1)

    @property
    def days(self) -> NDArray[np.int64]:
        """Days since the epoch, in UTC."""
        return self.began_s // _DAY_S

    @property
    def bins(self) -> NDArray[np.int64]:
        """Bin of the week: two hours of a working day or of a weekend day (UTC)."""
        weekend = (self.days + 3) % 7 >= 5  # the epoch began on a Thursday
        return (self.began_s % _DAY_S) // _BIN_S + _BINS * weekend


_PRIOR_SHARE = 0.2
"""Strength of the prior: each bin is shrunk toward the mean by this share of an average bin's drafts, so that a bin
with little data is no outlier."""
_FOLD_DAYS = 7
_SMALLEST = 1e-6


@dataclass(frozen=True, slots=True)
class Season:
    """Accepted draft tokens per draft by time of the week."""

    accepted_per_draft: NDArray[np.float64]
    """Ratios indexed by `RowArrays.bins`."""

    @classmethod
    def fit(cls, rows: RowArrays) -> Season:
        """Fit the season: ratios of sums, pulled toward the mean if data is scarce."""
        rows = rows[rows.counts]
        drafts = np.bincount(rows.bins, rows.drafts, _NUM_BINS)
        accepted = np.bincount(rows.bins, rows.accepted, _NUM_BINS)
        mean = accepted.sum() / max(drafts.sum(), 1.0)
        prior = _PRIOR_SHARE * drafts.sum() / max(np.count_nonzero(drafts), 1) + _SMALLEST
        return cls((accepted + mean * prior) / (drafts + prior))

    def shortfall(self, rows: RowArrays) -> NDArray[np.float64]:
        """Return by which share each row's acceptance length falls short of the season; 0 if it does not count."""
        expected = 1 + self.accepted_per_draft[rows.bins]
        return np.where(rows.counts, 1 - rows.acceptance_length / expected, 0.0)


def cross_fit(rows: RowArrays) -> NDArray[np.float64]:
    """Return each row's shortfall from a season fitted without its week, so no row explains itself."""
    folds = (rows.days - rows.days[0]) // _FOLD_DAYS
    shortfall = np.zeros(len(rows))
    for fold in np.unique(folds):
        inside = folds == fold
        shortfall[inside] = Season.fit(rows[~inside]).shortfall(rows[inside])
    return shortfall


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Variance of a row's shortfall: variation of traffic between rows, and chance within a row."""

    between: float
    within: float
    """Variance per draft."""

    @classmethod
    def fit(cls, rows: RowArrays, shortfall: NDArray[np.float64]) -> Noise:
        """Fit the two parts by least squares of squared shortfalls on 1 and 1 / drafts."""
        counts = rows.counts
        inverse, squares = 1 / np.maximum(rows.drafts[counts], 1), shortfall[counts] ** 2
        scale = 1 / (np.median(squares) + squares.mean() * inverse / inverse.mean() + _SMALLEST)
        design = np.column_stack([np.ones_like(inverse), inverse])
        between, within = np.linalg.lstsq(design * scale[:, None], squares * scale, rcond=None)[0]
        # A negative part counts as 0; the CUSUM would blow up on a variance of 0.
        return cls(between=max(float(between), 1e-4), within=max(float(within), _SMALLEST))

    def variance(self, drafts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the variance of rows' shortfalls, given their numbers of drafts."""
        return self.between + self.within / np.maximum(drafts, 1)


_FALL = 0.10
"""The fall of acceptance length that the likelihood ratio is made for."""
_SLACK = 0.05
"""What the slack form takes off each shortfall: traffic that wanders less adds up to nothing."""
_CLIP = 0.5
"""A shortfall beyond half is no more evidence than half: one odd row decides nothing."""
_MONTH_DAYS = 30
_MONTHS = 400
_SEED = 17


class DriftSum(StrEnum):
    """The two sums of evidence. Neither always detects a fall first, so both are tracked."""

    LIKELIHOOD = "likelihood"
    """Page's CUSUM: log-likelihood ratio of a 10 % fall to no fall, with each row's own variance. Faster with many rows
    and steady traffic."""
    SLACK = "slack"
    """Sum of shortfalls beyond 5 % (Page-Hinkley). Faster if the traffic wanders."""


def _increments(
    rows: RowArrays, shortfall: NDArray[np.float64], noise: Noise
) -> Mapping[DriftSum, NDArray[np.float64]]:
    """Return what each row adds; 0 where it says nothing, so that the sums stand still over gaps."""
    bounded = np.clip(shortfall, -_CLIP, _CLIP)
    ratio = _FALL * (bounded - _FALL / 2) / noise.variance(rows.drafts)
    added = {DriftSum.LIKELIHOOD: ratio, DriftSum.SLACK: bounded - _SLACK}
    return {form: np.where(rows.counts, each, 0.0) for form, each in added.items()}


def run(added: NDArray[np.float64], start: float = 0.0) -> NDArray[np.float64]:
    """Return the running sum `s = max(0, s + added)` after each row, along the last axis, from `start`.

    Computed as the plain cumulative sum minus its running minimum.
    """
    total = start + np.cumsum(added, axis=-1)
    return np.asarray(total - np.minimum(np.minimum.accumulate(total, axis=-1), 0.0))


def _fit_limits(
    added: Mapping[DriftSum, NDArray[np.float64]], days: NDArray[np.int64], *, alarms_per_month: float, margin: float
) -> Mapping[DriftSum, float]:
    """Return for each form the limit that chance passes so often: months are put together from whole days.

    A day keeps what wanders for hours. A month without an alarm has the probability exp(-alarms_per_month), and either
    form can raise one, so that each gets half.
    """
    blocks = np.split(np.arange(len(days)), np.flatnonzero(np.diff(days)) + 1)
    blocks = [block for block in blocks if len(block) > ROWS_PER_DAY // 2]
    drawn = np.random.default_rng(_SEED).integers(0, len(blocks), (_MONTHS, _MONTH_DAYS))
    quantile = float(np.exp(-alarms_per_month / len(added)))
    return {form: margin * float(np.quantile(_peaks(each, blocks, drawn), quantile)) for form, each in added.items()}


def _peaks(
    added: NDArray[np.float64], blocks: list[NDArray[np.int64]], drawn: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the highest sum of each month."""
    width = max(map(len, blocks))
    padded = np.stack([np.pad(added[block], (0, width - len(block))) for block in blocks])
    return np.asarray(run(padded[drawn].reshape(len(drawn), -1)).max(axis=-1))


LEARN_DAYS = 21
"""Three of each weekday: with fewer, no week remains to test a season."""
CONFOUNDERS = ("traffic", "drafter", "engine")
"""Possible causes of a lower acceptance length. Counters alone do not distinguish them; a probe does."""
_LEAST_OF_A_DAY = ROWS_PER_DAY // 4
"""RowArrays that say something; a service that sleeps at night is learned by its days."""
_ALARMS_PER_MONTH = 1.0
_MARGIN = 1.25
"""Three weeks hold fewer kinds of days than a month does (benchmarks/cpu/results/drift_simulation.json)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Current state of the sums of evidence."""

    sums: Mapping[DriftSum, float] = field(default_factory=dict)
    alarm_s: int | None = None
    """Start of the row with which the first sum exceeded its limit. It stays until acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftModel:
    """A service's learned behavior."""

    season: Season
    noise: Noise
    limits: Mapping[DriftSum, float]
    until_s: int
    """End of the rows used for learning, in seconds since the epoch."""

    def follow(self, rows: RowArrays, since: Drift | None = None) -> Drift:
        """Return the sums after further rows, which begin at `until_s` or later."""
        since = since or Drift()
        if not len(rows):
            return since
        added = _increments(rows, self.season.shortfall(rows), self.noise)
        sums = {form: run(each, since.sums.get(form, 0.0)) for form, each in added.items()}
        passed = np.any([each > self.limits[form] for form, each in sums.items()], axis=0)
        alarm_s = int(rows.began_s[int(np.argmax(passed))]) if passed.any() else None
        return Drift(
            sums={form: float(each[-1]) for form, each in sums.items()},
            alarm_s=alarm_s if since.alarm_s is None else since.alarm_s,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON."""
        return {
            "accepted_per_draft": [round(float(each), 6) for each in self.season.accepted_per_draft],
            "variance": {"between": self.noise.between, "within": self.noise.within},
            "limits": {str(form): limit for form, limit in self.limits.items()},
            "until_s": self.until_s,
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> DriftModel:
        """Restore a model from `to_dict`."""
        return cls(
            season=Season(np.array(given["accepted_per_draft"], np.float64)),
            noise=Noise(**given["variance"]),
            limits={DriftSum(form): float(limit) for form, limit in given["limits"].items()},
            until_s=int(given["until_s"]),
        )


def find_learned_days(rows: RowArrays) -> NDArray[np.int64]:
    """Return the days since the epoch with enough drafts to learn from."""
    days, counts = np.unique(rows.days[rows.counts], return_counts=True)
    return days[counts >= _LEAST_OF_A_DAY]


def fit_model(rows: RowArrays) -> DriftModel | None:
    """Learn from the first 21 days with enough drafts; None if there are fewer."""
    days = find_learned_days(rows)
    if len(days) < LEARN_DAYS:
        return None
    learned = rows[np.isin(rows.days, days[:LEARN_DAYS])]
    shortfall = cross_fit(learned)
    noise = Noise.fit(learned, shortfall)
    limits = _fit_limits(
        _increments(learned, shortfall, noise), learned.days, alarms_per_month=_ALARMS_PER_MONTH, margin=_MARGIN
    )
    return DriftModel(season=Season.fit(learned), noise=noise, limits=limits, until_s=int(learned.began_s[-1]) + ROW_S)
