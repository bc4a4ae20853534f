"""Forecasts of the demo's candidates beside what the demo measured: acceptance, minutes of steps, and nothing else.

The acceptance is that of the demo's own counters (`results/decide_demo.json`): this tells how good the cost of steps,
and putting the two together, is. For what drafts from text alone it is also that of a replay of the plain answers to
the same prompts (`results/demo_profile.json`). The calibration is a run of its own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from provenance import provenance, write

from draftwise.core import (
    Acceptance,
    AcceptanceAtK,
    Calibration,
    Exactness,
    Expectation,
    Interval,
    Profile,
    ReplayedLog,
    ReplayedTarget,
    SpecConfig,
)
from draftwise.deciding.thresholds import Thresholds
from draftwise.plan.forecast.forecasting import forecast
from draftwise.plan.forecast.run_cells import find_hopeless
from draftwise.runs.documents import read_calibration, read_profile

__all__ = ["RESULTS", "compare", "make_profile", "read_demo", "screen", "summarize"]

RESULTS = Path(__file__).parent / "results"
_SURE = 1.0


def read_demo() -> dict[str, Any]:
    """Return what the demo measured, and the lengths of its requests."""
    demo: dict[str, Any] = json.loads((RESULTS / "decide_demo.json").read_text(encoding="utf-8"))
    return {**demo, "lengths": _find_lengths(demo)}


def make_profile(demo: Mapping[str, Any], workload: str, calibration: Calibration) -> Profile:
    """Return the acceptance of a workload, as the demo's counters have it."""
    lengths = {each.name: each for each in calibration.candidates}
    rows = [each for each in demo["comparisons"] if each["workload"] == workload and each["candidate"] in lengths]
    entries = []
    for row in rows:
        setting = lengths[row["candidate"]]
        assert setting.spec is not None
        spec, k = setting.spec, setting.k
        entries.append(_read_acceptance(row, spec, k))
    log = ReplayedLog(rows=len(rows), used=len(rows), tokens_out=10**6)
    return Profile(target=ReplayedTarget(name=calibration.target), log=log, entries=tuple(entries))


def _read_acceptance(row: Mapping[str, Any], spec: SpecConfig, k: int) -> Acceptance:
    stats, tokens = row["counters"]["spec"], row["counters"]["generation_tokens"]
    # Tokens accepted behind an answer's end are counted: there were more steps than the counters' difference.
    steps = max(tokens - stats["num_accepted_tokens"], stats["num_drafts"])
    length = row["tokens_per_step"]
    found = AcceptanceAtK(
        steps=steps,
        emitted=tokens,
        drafts=stats["num_drafts"],
        drafted=stats["num_draft_tokens"],
        accepted=stats["num_accepted_tokens"],
        tokens_per_step=Interval(value=length, low=length / 1.05, high=length * 1.05),
        per_request=(length, length, length),
    )
    return Acceptance(
        candidate=spec,
        temperature=0.0,
        exactness=Exactness.EXACT,
        requests=row["num_prompts"],
        by_k={k: found},
    )


def compare(
    demo: Mapping[str, Any], calibration: Calibration, replayed: Profile | None = None
) -> Iterator[dict[str, Any]]:
    """Yield every candidate and workload of the demo with the forecast speed-up.

    Args:
        demo: what it measured.
        calibration: how long its servers' steps last.
        replayed: acceptance by workload; None for that of the demo's counters.
    """
    lengths = demo["lengths"]
    for workload in (each["name"] for each in demo["workloads"]):
        prompt, output = lengths[workload]
        made = forecast(
            replayed or make_profile(demo, workload, calibration),
            calibration,
            concurrency=(1,),
            prompt_tokens=prompt,
            output_tokens=output,
        )
        largest = {each.name: each.k for each in calibration.candidates}
        group = None if replayed is None else workload
        expected = {e.setting: e for e in made.cells if e.k == largest[e.setting] and e.group == group}
        for row in demo["comparisons"]:
            if row["workload"] == workload and row["candidate"] in expected:
                found = expected[row["candidate"]]
                yield {
                    "workload": workload,
                    "candidate": row["candidate"],
                    "forecast": [round(value, 3) for value in _ends(found.speedup)],
                    "measured": [round(row["speedup"][end], 3) for end in ("value", "low", "high")],
                    "verdict": row["verdict"],
                }


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.value, interval.low, interval.high


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return errors, how often the forecast's interval held, and whether on and off were right where that was sure."""
    errors = np.array([abs(np.log(each["forecast"][0] / each["measured"][0])) for each in rows])
    sure = [each for each in rows if each["measured"][1] > _SURE or each["measured"][2] < _SURE]
    right = sum((each["forecast"][0] > 1) == (each["measured"][0] > 1) for each in sure)
    best = {}
    for workload in dict.fromkeys(each["workload"] for each in rows):
        here = [each for each in rows if each["workload"] == workload]
        picked = max(here, key=lambda each: each["forecast"][0])["measured"][0]
        most = max(each["measured"][0] for each in here)
        best[workload] = round(100 * (1 - max(1.0, picked) / max(1.0, most)), 1)
    return {
        "rows": len(rows),
        "median_percent": round(100 * float(np.median(errors)), 1),
        "p90_percent": round(100 * float(np.quantile(errors, 0.9)), 1),
        "max_percent": round(100 * float(errors.max()), 1),
        "measured_in_forecast_interval": sum(e["forecast"][1] <= e["measured"][0] <= e["forecast"][2] for e in rows),
        "on_or_off_right": f"{right} of {len(sure)}",
        "regret_of_the_pick_percent": best,
    }


def screen(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return by workload what `decide` would leave out on these forecasts, and what that loses of the best."""
    found: dict[str, Any] = {}
    for workload in dict.fromkeys(each["workload"] for each in rows):
        here = {each["candidate"]: each for each in rows if each["workload"] == workload}
        expected = [
            Expectation(candidate=name, workload=workload, load="c=1", value=value, low=low, high=high)
            for name, each in here.items()
            for value, low, high in [each["forecast"]]
        ]
        left_out = find_hopeless(expected, here, num_cells=1, margin=Thresholds().margin)
        kept = max(each["measured"][0] for name, each in here.items() if name not in left_out)
        best = max(each["measured"][0] for each in here.values())
        found[workload] = {"left_out": list(left_out), "loss_percent": round(100 * (1 - kept / best), 1)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calibration", type=Path, default=RESULTS / "demo_calibration.json")
    parser.add_argument("--out", type=Path, help="JSON to write.")
    given = parser.parse_args()
    if not given.calibration.exists():
        parser.error(f"there is no {given.calibration}")
    demo, calibration = read_demo(), read_calibration(given.calibration)
    rows = list(compare(demo, calibration))
    replayed = list(compare(demo, calibration, read_profile(RESULTS / "demo_profile.json")))
    found = {
        "summary": summarize(rows),
        "screened": screen(rows),
        "rows": rows,
        "replayed": {"summary": summarize(replayed), "rows": replayed},
    }
    for row in rows:
        print(f"{row['workload']:8} {row['candidate']:22} {row['forecast'][0]:.2f} measured {row['measured'][0]:.2f}")
    print(json.dumps(found["summary"], indent=1))
    print("left out:", json.dumps(found["screened"]))
    print("from a replay:", json.dumps(found["replayed"]["summary"]))
    write(provenance() | found, given.out)


def _find_lengths(demo: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return tokens of prompts and answers by workload: of a single pass of the first candidate's counters."""
    found = {}
    for workload in (each["name"] for each in demo["workloads"]):
        row = next(each for each in demo["comparisons"] if each["workload"] == workload)
        requests = row["num_prompts"] * len(row["passes"])
        answers = row["counters"]["generation_tokens"] / requests
        found[workload] = (row["counters"]["prefix_queries"] / requests, answers)
    return found


if __name__ == "__main__":
    main()
