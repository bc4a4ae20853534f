"""How often drift of acceptance is told where there is none, and how soon a fall is, beside simpler alarms.

    python benchmarks/cpu/drift_simulation.py --out benchmarks/cpu/results/drift_simulation.json

Services of `tests/support/drifting_services.py`, twelve in each of six regimes: 21 days to learn from, then a month
without a fall in which every alarm is false, and falls that begin at any time of that month. The probe is simulated by
the spread of prompts that was measured on the embedded engine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from provenance import provenance, write

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.drifting_services import REGIMES, Regime, Service, make_service

from draftwise.watching.drift import LEARN_DAYS, ROW_S, ROWS_PER_DAY, Drift, DriftModel, RowArrays, fit_model

MONTH = 30 * ROWS_PER_DAY
LEARNED = LEARN_DAYS * ROWS_PER_DAY
WATCHED = 2 * ROWS_PER_DAY
"""Rows after a fall in which it has to be found."""
FALLS_EACH = 8
FALLS = (0.10, 0.20)
FIRST_SEED = 500_000

Detector = Callable[[RowArrays, int], NDArray[np.bool_]]
"""Rows of a whole history and where the judged part begins -> in which of its rows the alarm fires."""


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


def held(low: NDArray[np.bool_], rows: int) -> NDArray[np.bool_]:
    """Return where a condition has held for so many rows: once an episode."""
    length = np.zeros(len(low), int)
    for i, each in enumerate(low):
        length[i] = (length[i - 1] if i else 0) + 1 if each else 0
    return length == rows


def below_half(rows: RowArrays, begin: int, k: int = 3) -> NDArray[np.bool_]:
    """Acceptance rate under 0.5 for half an hour, as guides say."""
    rate = rows.accepted / np.maximum(k * rows.drafts, 1)
    return held((rate < 0.5) & (rows.drafts > 0), 6)[begin:]


def below_yesterday(rows: RowArrays, begin: int) -> NDArray[np.bool_]:
    """Acceptance length under 0.85 of the same time yesterday for half an hour."""
    length = rows.acceptance_length
    before = np.concatenate([np.full(ROWS_PER_DAY, np.nan), length[:-ROWS_PER_DAY]])
    return held((length < 0.85 * before) & (rows.drafts > 0), 6)[begin:]


def below_average(rows: RowArrays, begin: int) -> NDArray[np.bool_]:
    """Moving average over an hour under 0.9 of the one over a week."""
    fast, slow = (_average(rows, span) for span in (12, 7 * ROWS_PER_DAY))
    return held(fast < 0.9 * slow, 1)[begin:]


def _average(rows: RowArrays, span: int) -> NDArray[np.float64]:
    kept, now = 1 - 1 / span, float(rows.acceptance_length[rows.drafts > 0][:ROWS_PER_DAY].mean())
    out = np.empty(len(rows))
    for i, (each, counts) in enumerate(zip(rows.acceptance_length, rows.drafts > 0, strict=True)):
        now = kept * now + (1 - kept) * each if counts else now
        out[i] = now
    return out


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


def _detectors(service: Service) -> Mapping[str, Detector]:
    model = fit_model(service.rows[0.0][: LEARNED + ROWS_PER_DAY])
    assert model is not None, "21 days of traffic are enough"
    return {
        "draftwise": with_model(model),
        "acceptance rate < 0.5": below_half,
        "0.85 of yesterday": below_yesterday,
        "0.9 of the week's average": below_average,
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


def rows_of_probes(trials: int = 200_000) -> Iterator[dict[str, Any]]:
    """Yield how often a probe tells a fall by the mean of its prompts, under -5 %.

    Measured on the embedded engine: 2 of 24 prompts take other steps without a cause, by 14 % one way or the other,
    which is 4 % over all; with a changed drafter prompts spread by 16 %.
    """
    rng = np.random.default_rng(1)
    for prompts in (24, 48):
        null = np.where(rng.random((trials, prompts)) < 2 / 24, rng.normal(0, 0.14, (trials, prompts)), 0).mean(axis=1)
        fallen = rng.normal(-0.10, 0.16, (trials, prompts)).mean(axis=1)
        told = {"false": (null < -0.05).mean(), "power_at_10_percent": (fallen < -0.05).mean()}
        yield {"prompts": prompts, **{name: round(float(value), 4) for name, value in told.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=12, help="in each regime")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began = time.monotonic()
    rows = []
    for regime in REGIMES:
        rows += rows_of_regime(regime, given.services)
        print(regime.name, f"{time.monotonic() - began:.0f} s", flush=True)
    result = {
        "what": "21 days to learn from, a month without a fall, falls at any time of it; five-minute rows",
        "command": f"python benchmarks/cpu/drift_simulation.py --services {given.services}",
        **provenance("numpy"),
        "services_each": given.services,
        "falls_each": given.services * FALLS_EACH,
        "rows": rows,
        "probe": list(rows_of_probes()),
    }
    print(json.dumps(result, indent=1))
    write(result, given.out)


if __name__ == "__main__":
    main()
