"""The simulation of drift in small: how often a detector is wrong, and how fast it finds a fall."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwise.watching.drift import LEARN_DAYS, ROW_S, ROWS_PER_DAY, Drift, DriftModel, RowArrays, fit_model
from tests.support.drifting_services import REGIMES, Regime, Service, make_service

MONTH = 30 * ROWS_PER_DAY
LEARNED = LEARN_DAYS * ROWS_PER_DAY
WATCHED = 2 * ROWS_PER_DAY
FALLS_EACH = 8
FALLS = (0.10, 0.20)
FIRST_SEED = 500_000
Detector = Callable[[RowArrays, int], NDArray[np.bool_]]


def with_model(model: DriftModel) -> Detector:
    """Return draftwise's own; a sum that has raised an alarm begins at nothing again."""

    def fire(rows: RowArrays, begin: int) -> NDArray[np.bool_]:
        fired, at = np.zeros(len(rows) - begin, np.bool_), begin
        before = model.follow(rows[begin - ROWS_PER_DAY : begin])
        since = Drift(sums={form: min(each, 0.99 * model.limits[form]) for form, each in before.sums.items()})
        while at < len(rows):
            drift = model.follow(rows[at:], since)
            if drift.alarm_s is None:
                break
            at += int(drift.alarm_s - rows.began_s[at]) // ROW_S + 1
            fired[at - 1 - begin] = True
            since = Drift()
        return fired

    return fire


def rows_of_regime(regime: Regime, services: int) -> Iterator[dict[str, Any]]:
    """Yield a row a detector."""
    false: dict[str, list[int]] = {}
    delays: dict[tuple[str, float], list[float]] = {}
    for number in range(services):
        seed = FIRST_SEED + 1000 * REGIMES.index(regime) + number
        service = make_service(regime, LEARN_DAYS + 30 + 2, seed)
        for name, detector in _detectors(service).items():
            base = service.rows[0.0]
            false.setdefault(name, []).append(int(detector(base[: LEARNED + MONTH], LEARNED).sum()))
            for fall in FALLS:
                delays.setdefault((name, fall), []).extend(_find(service, detector, fall, seed))
    for name, counts in false.items():
        found = {f"{fall:.0%} fall": _summarise(np.array(delays[name, fall])) for fall in FALLS}
        yield {
            "regime": regime.name,
            "detector": name,
            "false_alarms_a_month": {"mean": round(float(np.mean(counts)), 2), "most": max(counts)},
            **found,
        }


def _find(service: Service, detector: Detector, fall: float, seed: int) -> Iterator[float]:
    """Yield the minutes until each fall is found; infinity where it is not."""
    rng = np.random.default_rng(seed)
    base, fallen = service.rows[0.0], service.rows[fall]
    for begin in rng.integers(LEARNED + ROWS_PER_DAY, LEARNED + MONTH, FALLS_EACH):
        parts = (base[:begin], fallen[begin : begin + WATCHED])
        rows = RowArrays(*(np.concatenate([getattr(part, each) for part in parts]) for each in RowArrays.__slots__))
        fired = np.flatnonzero(detector(rows, int(begin)))
        yield (int(fired[0]) + 1) * ROW_S / 60 if len(fired) else float("inf")


def _summarise(minutes: NDArray[np.float64]) -> dict[str, float | None]:
    def finite(value: float) -> float | None:
        return round(value) if np.isfinite(value) else None

    median, ninth = (finite(float(np.quantile(minutes, q, method="lower"))) for q in (0.5, 0.9))
    return {"median_minutes": median, "p90_minutes": ninth, "missed": round(float(np.isinf(minutes).mean()), 3)}


def _detectors(service: Service) -> Mapping[str, Detector]:
    model = fit_model(service.rows[0.0][: LEARNED + ROWS_PER_DAY])
    assert model is not None
    return {"draftwise": with_model(model)}
