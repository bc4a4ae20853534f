"""A forecast of the published model's candidates beside what a run of `make demo-real`'s kind measured.

Acceptance is that of replaying the run's plain answers, as if they were a log; the steps are those of a calibration
that was measured on other prompts. Neither has seen a candidate answer the run's prompts.

    draftwise calibrate MODEL --concurrency 1 --candidate ... --out calibration.json
    draftwise decide MODEL --workload ... --candidate ... --out RUN
    python benchmarks/cpu/forecast_real.py RUN calibration.json --model MODEL --folder FOLDER --out OUT
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from draftwise.core import Answer, Calibration, Comparison, Profile, Run
from draftwise.deciding.conclusions import conclude_run
from draftwise.plan.forecast.forecast import forecast
from draftwise.runs import RunDirectory
from draftwise.runs.documents import read_calibration, read_profile
from draftwise.version import __version__

GOALS = {"median_percent": 5, "p90_percent": 12}


def main() -> None:
    """Replay, forecast, compare and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="directory of the run")
    parser.add_argument("calibration", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="what the run served")
    parser.add_argument("--folder", type=Path, required=True, help="of the replay, which goes on where it was")
    parser.add_argument("--what", default="", help="how the run and the calibration were made, to keep")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if missing := [str(path) for path in (given.run, given.calibration, given.model) if not path.exists()]:
        parser.error(f"there is no {', '.join(missing)}")
    run, calibration = RunDirectory(given.run).read(), read_calibration(given.calibration)
    answers = select(run)
    given.folder.mkdir(parents=True, exist_ok=True)
    profile = replay(given, run, answers, calibration)
    rows = list(compare(run, answers, profile, calibration))
    for row in rows:
        print(f"{row['workload']:8} {row['candidate']:18} {row['forecast']} {row['measured']} {row['error_percent']:+}")
    about = {
        "what": given.what,
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "draftwise": __version__,
        "hardware": calibration.hardware,
        "calibrated": calibration.made,
        "measured": run.context.started,
        "calibrated_on": sorted({each.workload for each in calibration.points}),
        "requests": len(answers),
    }
    summary = summarise(rows)
    given.out.write_text(
        json.dumps({"about": about, "goals": GOALS, "summary": summary, "rows": rows}, indent=1) + "\n"
    )
    print(json.dumps(summary, indent=1))


def select(run: Run) -> list[Answer]:
    """Return the plain answers to the prompts that every arm has answered, one of each."""
    by_arm: dict[str, dict[tuple[str, str], Answer]] = {each.name: {} for each in run.plan.arms}
    for each in run.answers:
        if each.measured and not each.error:
            by_arm[each.arm].setdefault((each.workload, each.prompt_id), each)
    common = set.intersection(*(set(answers) for answers in by_arm.values()))
    plain = by_arm[run.plan.arms[0].name]
    return [answer for key, answer in plain.items() if key in common]


def replay(given: argparse.Namespace, run: Run, answers: list[Answer], calibration: Calibration) -> Profile:
    """Write the answers as a log, and replay it with every candidate."""
    log = given.folder / "log.jsonl"
    log.write_text("".join(json.dumps(write_row(run, each)) + "\n" for each in answers), encoding="utf-8")
    words = [sys.executable, "-m", "draftwise", "replay", str(log), "--target", str(given.model)]
    words += ["--group-by", "route", "--out", str(given.folder / "profile")]
    for each in calibration.candidates:
        assert each.spec is not None
        words += ["--candidate", json.dumps(each.spec.to_dict())]
    subprocess.run(words, check=False, stdout=subprocess.DEVNULL)
    return read_profile(given.folder / "profile")


def write_row(run: Run, answer: Answer) -> dict[str, Any]:
    """Return a line of a log."""
    prompts = next(each.prompts for each in run.plan.workloads if each.name == answer.workload)
    limit = next(each.max_tokens for each in prompts if each.id == answer.prompt_id)
    request = {"prompt": list(answer.prompt_token_ids), "temperature": 0, "max_tokens": limit}
    return {
        "id": answer.prompt_id,
        "route": answer.workload,
        "request": request,
        "response": {"choices": [{"text": answer.text, "token_ids": list(answer.token_ids)}]},
    }


def compare(run: Run, answers: list[Answer], profile: Profile, calibration: Calibration) -> Iterator[dict[str, Any]]:
    """Yield every candidate and workload with the forecast speed-up and the measured one."""
    comparisons = conclude_run(run).decision.comparisons
    largest = {each.name: each.k for each in calibration.candidates}
    for workload in dict.fromkeys(each.workload for each in answers):
        own = [each for each in answers if each.workload == workload]
        made = forecast(
            profile,
            calibration,
            concurrency=(1,),
            prompt_tokens=fmean(len(each.prompt_token_ids) for each in own),
            output_tokens=fmean(each.timing.num_tokens for each in own),
        )
        cells = {
            each.setting: each for each in made.cells if each.k == largest[each.setting] and each.group == workload
        }
        for each in comparisons:
            if each.workload == workload and each.candidate in cells:
                yield spell(each, cells[each.candidate])


def spell(measured: Comparison, cell: Any) -> dict[str, Any]:
    """Return a comparison beside its forecast."""
    ends = ("value", "low", "high")
    truth = measured.deciding
    return {
        "workload": measured.workload,
        "candidate": measured.candidate,
        "prompts": measured.num_prompts,
        "forecast": [round(getattr(cell.speedup, end), 3) for end in ends],
        "measured": [round(getattr(truth, end), 3) for end in ends],
        "error_percent": round(100 * (cell.speedup.value / truth.value - 1), 1),
        "tokens_per_step": [round(cell.tokens_per_step, 3), round(measured.counters.tokens_per_step or 1.0, 3)],
    }


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the errors, and what following the forecast loses of what the measurement would choose."""
    errors = np.abs([each["error_percent"] for each in rows])
    inside = sum(each["forecast"][1] <= each["measured"][0] <= each["forecast"][2] for each in rows)
    lost = {}
    for workload in dict.fromkeys(each["workload"] for each in rows):
        here = [each for each in rows if each["workload"] == workload]
        picked = max(here, key=lambda each: each["forecast"][0])
        best = max(here, key=lambda each: each["measured"][0])
        lost[workload] = {
            "forecast": picked["candidate"],
            "measured": best["candidate"],
            "loss_percent": round(100 * (1 - picked["measured"][0] / best["measured"][0]), 1),
        }
    return {
        "cells": len(rows),
        "median_percent": round(float(np.median(errors)), 1),
        "p90_percent": round(float(np.quantile(errors, 0.9)), 1),
        "max_percent": round(float(errors.max()), 1),
        "mean_percent": round(float(np.mean([each["error_percent"] for each in rows])), 1),
        "measured_in_forecast_interval": f"{inside} of {len(rows)}",
        "best": lost,
    }


if __name__ == "__main__":
    main()
