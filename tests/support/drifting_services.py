"""Imaginary services whose acceptance falls when it is said to: tenants, sessions, holidays, gaps and restarts.

Nothing here is the detector's model. Traffic comes from tenants, each with its own hours, its own acceptance and
requests of heavy-tailed length; batch jobs come and go for hours; shares of tenants wander; requests come in sessions
that have their quality in common; weeks have a holiday now and then; scrapes are missed, and replicas restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftwise.watching.drift import ROW_S, ROWS_PER_DAY, RowArrays

K = 3
FALLS = (0.0, 0.10, 0.20)
_POOL = 39_999
_SESSION = 3
"""Requests that have their quality in common."""
_START_S = 1_767_571_200  # a Monday, 2026-01-05


@dataclass(frozen=True)
class Regime:
    """How busy a service is and how much its mix of tenants wanders."""

    name: str
    per_minute: float
    wander: float


REGIMES = tuple(
    Regime(f"{per_minute}/min, {word} mix", per_minute, wander)
    for per_minute in (2, 10, 60)
    for word, wander in (("steady", 0.25), ("wandering", 0.5))
)


@dataclass(frozen=True)
class Service:
    """One service over some days."""

    rows: Mapping[float, RowArrays]
    """By the share that its acceptance length fell by: the same requests, other acceptance."""


def make_service(regime: Regime, days: int, seed: int) -> Service:
    """Return a service's rows; everything is drawn from the seed."""
    rng = np.random.default_rng(seed)
    num = days * ROWS_PER_DAY
    rates = _rates(rng, regime, num)
    totals = {fall: np.zeros((num, 2)) for fall in FALLS}
    for tenant in range(rates.shape[1]):
        pool = _requests(rng)
        sessions = rng.poisson(rates[:, tenant] / _SESSION)
        row = np.repeat(np.arange(num), _SESSION * sessions)
        # The requests of a session lie one behind the other in the pool.
        chosen = np.repeat(rng.integers(0, _POOL // _SESSION, sessions.sum()) * _SESSION, _SESSION)
        chosen += np.tile(np.arange(_SESSION), sessions.sum())
        for fall in FALLS:
            drafts, accepted = pool[fall][chosen].T
            totals[fall] += np.column_stack([np.bincount(row, drafts, num), np.bincount(row, accepted, num)])
    usable, seen = _interruptions(rng, num)
    began = _START_S + ROW_S * np.arange(num)
    return Service(
        {fall: RowArrays(began, each[:, 0] * seen, each[:, 1] * seen, usable) for fall, each in totals.items()}
    )


def _rates(rng: np.random.Generator, regime: Regime, num: int) -> NDArray[np.float64]:
    """Return requests by row and tenant."""
    tenants = int(rng.integers(5, 12))
    hour = np.arange(num) * ROW_S / 3600 % 24
    day = np.arange(num) // ROWS_PER_DAY
    holidays = rng.random(day[-1] + 1) < 1 / 25
    resting = (day % 7 >= 5) | holidays[day]
    share = rng.dirichlet(np.full(tenants, 1.5))
    peak, depth = rng.normal(14, 3, tenants), rng.uniform(0.2, 0.9, tenants)
    at_rest = rng.uniform(0.2, 1.1, tenants)
    daily = 1 + depth * np.cos(2 * np.pi * (hour[:, None] - peak) / 24)
    wander = _wander(rng, num, tenants, hours=rng.uniform(1, 8, tenants)) * regime.wander
    jobs = 1 + _jobs(rng, num, tenants) * rng.uniform(0, 2, tenants) * (rng.random(tenants) < 0.3) * regime.wander * 2
    rate = share * daily * np.where(resting[:, None], at_rest, 1.0) * np.exp(wander) * jobs
    return rate * regime.per_minute * ROW_S / 60 / rate.sum(axis=1).mean()


def _wander(rng: np.random.Generator, num: int, tenants: int, hours: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return stationary noise of variance 1 that forgets within some hours; its shocks are Student's t with 5."""
    keep = np.exp(-ROW_S / 3600 / hours)
    shocks = rng.standard_t(5, (num, tenants)) * np.sqrt(3 / 5) * np.sqrt(1 - keep**2)
    out = np.empty((num, tenants))
    now = rng.normal(0, 1, tenants)
    for row in range(num):
        now = keep * now + shocks[row]
        out[row] = now
    return out


def _jobs(rng: np.random.Generator, num: int, tenants: int) -> NDArray[np.float64]:
    """Return whether a tenant's batch job runs: every other day or so, for some hours."""
    switch = np.where(rng.random((num, tenants)) < 1 / 400, 1, 0)
    length = rng.integers(12, 60, (num, tenants))
    running = np.zeros((num, tenants))
    for row, tenant in np.argwhere(switch):
        running[row : row + length[row, tenant], tenant] = 1
    return running


def _requests(rng: np.random.Generator) -> Mapping[float, NDArray[np.float64]]:
    """Return drafts and accepted tokens of a tenant's requests, by fall: triples have their quality in common."""
    level = np.clip(rng.normal(0.55, 0.13) - 0.02 * np.arange(K), 0.15, 0.85)
    quality = np.repeat(rng.normal(0, 0.5, _POOL // _SESSION), _SESSION) + rng.normal(0, 0.5, _POOL)
    drafts = np.minimum(rng.pareto(1.8, _POOL) * 60 * rng.uniform(0.6, 1.6) + 5, 4000).astype(int)
    odds = np.log(level / (1 - level)) + quality[:, None]
    conditional = 1 / (1 + np.exp(-odds))
    return {fall: _accept(rng, drafts, conditional * _factor(conditional, fall)) for fall in FALLS}


def _factor(conditional: NDArray[np.float64], fall: float) -> float:
    """Return by what to lower every position's acceptance so that the mean acceptance length falls so much."""
    length = 1 + np.cumprod(conditional, axis=1).sum(axis=1).mean()
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        fallen = 1 + np.cumprod(conditional * middle, axis=1).sum(axis=1).mean()
        low, high = (middle, high) if fallen < length * (1 - fall) else (low, middle)
    return high


def _accept(
    rng: np.random.Generator, drafts: NDArray[np.int64], conditional: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return drafts and accepted tokens of each request: position after position, until one is rejected."""
    reached, accepted = drafts, np.zeros(len(drafts))
    for position in range(K):
        reached = rng.binomial(reached, conditional[:, position])
        accepted += reached
    return np.column_stack([drafts, accepted]).astype(np.float64)


def _interruptions(rng: np.random.Generator, num: int) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which rows follow no restart, and the share of each that was scraped."""
    usable, seen = np.ones(num, np.bool_), np.ones(num)
    for row in np.flatnonzero(rng.random(num) < 1 / (7 * ROWS_PER_DAY)):
        usable[row : row + 2] = False
        seen[row : row + 2] = rng.random(len(seen[row : row + 2]))
    for row in np.flatnonzero(rng.random(num) < 1 / (3 * ROWS_PER_DAY)):
        seen[row : row + int(rng.geometric(1 / 8))] = 0.0
    return usable, seen
