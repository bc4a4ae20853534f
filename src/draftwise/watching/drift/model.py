"""Whether acceptance has drifted: learned from 21 days of a service, then followed row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise.watching.drift.cusum import Form, fit_limits, increments, run
from draftwise.watching.drift.rows import ROW_S, ROWS_PER_DAY, Rows
from draftwise.watching.drift.season import Noise, Season, cross_fit

__all__ = ["CONFOUNDERS", "LEARN_DAYS", "Drift", "DriftModel", "find_learned_days", "fit_model"]

LEARN_DAYS = 21
"""Three of each day of the week: fewer leave no week to hold a season against."""
CONFOUNDERS = ("traffic", "drafter", "engine")
"""What can lower a service's acceptance length; its counters alone do not tell which of them it was, a probe does."""
_LEAST_OF_A_DAY = ROWS_PER_DAY // 4
"""Rows that say something; a service that sleeps at night is learned by its days."""
_ALARMS_PER_MONTH = 1.0
_MARGIN = 1.25
"""Three weeks hold fewer kinds of days than a month does (benchmarks/cpu/results/drift_simulation.json)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Where the sums of evidence stand."""

    sums: Mapping[Form, float] = field(default_factory=dict)
    alarm_s: int | None = None
    """Begin of the row with which the first of them passed its limit; it stays until the change is acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftModel:
    """What a service was learned to be."""

    season: Season
    noise: Noise
    limits: Mapping[Form, float]
    until_s: int
    """End of the rows that it was learned from."""

    def follow(self, rows: Rows, since: Drift | None = None) -> Drift:
        """Return where the sums stand after more rows, which begin at `until_s` or later."""
        since = since or Drift()
        if not len(rows):
            return since
        added = increments(rows, self.season.shortfall(rows), self.noise)
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
        """Return what `to_dict` wrote."""
        return cls(
            season=Season(np.array(given["accepted_per_draft"], np.float64)),
            noise=Noise(**given["variance"]),
            limits={Form(form): float(limit) for form, limit in given["limits"].items()},
            until_s=int(given["until_s"]),
        )


def find_learned_days(rows: Rows) -> NDArray[np.int64]:
    """Return the days, counted from the epoch, on which enough was drafted to learn from them."""
    days, counts = np.unique(rows.days[rows.counts], return_counts=True)
    return days[counts >= _LEAST_OF_A_DAY]


def fit_model(rows: Rows) -> DriftModel | None:
    """Return what is learned from the first 21 days of rows on which enough was drafted; None where they are fewer."""
    days = find_learned_days(rows)
    if len(days) < LEARN_DAYS:
        return None
    learned = rows[np.isin(rows.days, days[:LEARN_DAYS])]
    shortfall = cross_fit(learned)
    noise = Noise.fit(learned, shortfall)
    limits = fit_limits(
        increments(learned, shortfall, noise), learned.days, alarms_per_month=_ALARMS_PER_MONTH, margin=_MARGIN
    )
    return DriftModel(season=Season.fit(learned), noise=noise, limits=limits, until_s=int(learned.began_s[-1]) + ROW_S)
