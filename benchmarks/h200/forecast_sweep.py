"""A forecast written down before a sweep of real vLLM 0.26.0, and how far off it was.

    python benchmarks/h200/forecast_sweep.py forecast --vllm-python PYTHON --out OUT --commit $(git rev-parse HEAD)
    git add OUT/forecast.json && git commit         # the forecast is on record
    python benchmarks/h200/forecast_sweep.py sweep --vllm-python PYTHON --out OUT --commit $(git rev-parse HEAD) \
      --forecast OUT/forecast.json
    python benchmarks/h200/forecast_sweep.py table OUT/forecast_sweep.json
    python benchmarks/h200/forecast_sweep.py again OUT      # what the model says of the same readings now

`forecast` calibrates at four loads, takes acceptance from the calibration's own counters, and writes the speed-up of
every candidate at five loads and two prompt lengths. `sweep` measures these with `draftwise decide`, other prompts and
another seed, and holds them beside the file. Each ends within --seconds with what was measured until then. Without
--vllm-python both use the embedded engine and its bundled model: a rehearsal on any machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from operator import add
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from cases import CASES, spec_config
from measure_vllm import SERVE, end_after, serve_args
from record import about, command_line, result_file
from shapes import SCALES, write_folders, write_tokenizer

from draftwise.core import (
    Acceptance,
    AcceptanceAtK,
    CalibratedSetting,
    Calibration,
    Exactness,
    Profile,
    ReplayedLog,
    ReplayedTarget,
    Run,
)
from draftwise.core.documents import to_json
from draftwise.deciding.conclusions import conclude_run
from draftwise.deciding.disturbance import find_disturbances
from draftwise.deciding.thresholds import get_thresholds
from draftwise.measure.calibrating import find_firsts, find_points, make_calibration
from draftwise.plan.forecast.forecasting import forecast as make_forecast
from draftwise.runs import RunDirectory
from draftwise.runs.documents import read_calibration, read_profile, write_document
from draftwise.statistics.ratios import ratio_of_totals

BUNDLE = Path(__file__).parents[2] / "bundle"
FORECAST, RESULT, AGAIN = "forecast.json", "forecast_sweep.json", "forecast_again.json"
BEGAN = time.monotonic()
CLOSING_S = 75
"""Before the end of --seconds: the servers go down, the results are written, the readings are packed."""
PLANNED = 1.75
"""Times --seconds that are promised to the command: its plan keeps every cell, and its repetitions, in which cells
take turns, are cut off when the time is over."""
SURE = 0.05
"""A cell further from 1 than this is expected to be told on or off rightly."""
GOALS = {"median_percent": 5, "p90_percent": 15, "crossovers": "5 of 6", "on_or_off_percent": 95}


def predict(args: argparse.Namespace) -> None:
    """Calibrate, and write the forecast."""
    words = [*start(args, "calibrate", args.seed), "--concurrency", ",".join(map(str, args.calibrated))]
    words += ["--run", str(args.runs / "calibration-run"), "--out", str(args.out / "calibration.json")]
    execute(words, args, "calibrate")
    pack(args, "calibration-run")
    run, note = read_run(args.runs / "calibration-run")
    calibration = make_calibration(run, target=str(open_target(args)[0]))
    write_document(args.out / "calibration.json", calibration)
    profile = count_acceptance(run, calibration)
    write_document(args.out / "profile.json", profile)
    cells, crossovers = forecast_all(profile, calibration, describe(args))
    made_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    document = {"about": about(args), "made": made_at, "asked": describe(args), "calibrated_on": note}
    document |= {"left_out": list_left_out(run), "cells": cells, "ends": crossovers}
    (args.out / FORECAST).write_text(json.dumps(document, indent=1, default=str) + "\n")
    for each in cells:
        print(each["workload"], each["setting"], each["load"], {n: round(v, 3) for n, v in each["speedup"].items()})


def forecast_all(
    profile: Profile, calibration: Calibration, asked: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the cells that were asked for, and the crossovers of their sweeps."""
    cells, ends = [], []
    largest = {each.name: each.k for each in calibration.candidates}
    for tokens in asked["prompt_tokens"]:
        name = f"p{tokens}"
        made = make_forecast(
            profile,
            calibration,
            concurrency=asked["concurrency"],
            prompt_tokens=tokens,
            output_tokens=asked["output_tokens"],
        )
        same = [each for each in made.cells if each.group == name and each.k == largest[each.setting]]
        cells += [{"workload": name, **to_json(each)} for each in same]
        ends += [
            {"workload": name, "setting": e.setting, "value": e.value, "low": e.low, "high": finite(e.high)}
            for e in made.crossovers
            if e.group == name and e.k == largest[e.setting]
        ]
    return cells, ends


def sweep(args: argparse.Namespace) -> None:
    """Measure what was forecast, and hold both beside each other."""
    before = json.loads((args.forecast or args.out / FORECAST).read_text())
    if before["asked"] != json.loads(json.dumps(describe(args), default=str)):
        raise SystemExit(f"The forecast was made for something else: {before['asked']}")
    words = [*start(args, "decide", args.seed + 1), "--concurrency", ",".join(map(str, args.concurrency))]
    words += ["--no-adaptive", "--repeats", str(args.repeats), "--out", str(args.runs / "sweep-run")]
    execute(words, args, "decide")
    pack(args, "sweep-run")
    run, note = read_run(args.runs / "sweep-run")
    decision = conclude_run(run).decision
    rows = list(hold(before, decision.comparisons))
    ends = list(hold_crossovers(before, decision.crossovers))
    content = {"about": about(args), "forecast_made": before["made"], "goals": GOALS, "summary": summarise(rows, ends)}
    content |= {"measured_on": note, "left_out": list_left_out(run), "rows": rows, "crossovers": ends}
    (args.out / RESULT).write_text(json.dumps(content, indent=1, default=str) + "\n")
    show(content)


def again(args: argparse.Namespace) -> None:
    """Hold a sweep beside what this draftwise forecasts of the same readings: no forecast, as the sweep is known."""
    before, measured = (json.loads((args.folder / name).read_text()) for name in (FORECAST, RESULT))
    profile = read_profile(args.folder / "profile.json")
    calibration = read_calibration(args.folder / "calibration.json")
    if args.run:
        run, lengths = RunDirectory(args.run).read(), {each.name: each.k for each in calibration.settings}
        calibration = replace(calibration, points=find_points(run, lengths), firsts=find_firsts(run, lengths))
        write_document(args.folder / "calibration.json", calibration)
    cells, ends = forecast_all(profile, calibration, before["asked"])
    made = {(each["workload"], each["setting"], each["load"]): each["speedup"] for each in cells}
    rows = [
        each | as_held(made[each["workload"], each["candidate"], float(each["load"])], each["measured"])
        for each in measured["rows"]
    ]
    lines = {(each["workload"], each["setting"]): each for each in ends}
    crossovers = [
        each | place(lines[each["workload"], each["candidate"]], each["measured"]) for each in measured["crossovers"]
    ]
    content = {
        "what": "the same sweep beside what the model forecasts since it was mended by it: no forecast",
        "made": datetime.now(UTC).strftime("%Y-%m-%d"),
        "goals": GOALS,
        "summary": summarise(rows, crossovers),
        "rows": rows,
        "crossovers": crossovers,
    }
    (args.folder / AGAIN).write_text(json.dumps(content, indent=1) + "\n")
    show(content)


def start(args: argparse.Namespace, verb: str, seed: int) -> list[str]:
    """Return the beginning of a `draftwise` command over all candidates and both prompt lengths."""
    target, candidates = open_target(args)
    words = [sys.executable, "-m", "draftwise", verb, str(target)]
    if args.vllm_python:
        shared = SimpleNamespace(**{**vars(args), "prompt_tokens": max(args.prompt_tokens)})
        words += ["--engine", "vllm", "--vllm", f"{args.vllm_python} {SERVE}"]
        words += ["--serve-args", shlex.join(serve_args(shared, spare=1.0))]  # four caches beside four models
        words += ["--context", f"model={args.scale} shape of shapes.py, dummy weights"]
    for name, config in candidates.items():
        words += ["--candidate", f"{name}={json.dumps(config)}"]
    for tokens in args.prompt_tokens:
        sizes = f"synthetic:prompt={tokens},output={args.output_tokens},n={args.prompts}"
        words += ["--workload", f"{sizes},source=code,seed={seed},name=p{tokens}"]
    return words


def open_target(args: argparse.Namespace) -> tuple[Path, dict[str, Any]]:
    """Return the target, and the candidates by name."""
    if not args.vllm_python:
        eagle = {"method": "eagle3", "model": str(BUNDLE / "eagle3"), "num_speculative_tokens": 3}
        mlp = {"method": "mlp_speculator", "model": str(BUNDLE / "mlp_speculator"), "num_speculative_tokens": 2}
        return BUNDLE / "target", {"eagle3": eagle, "mlp": mlp, "ngram": CASES["ngram-k5"].spec}
    scale = SCALES[args.scale]
    folders = write_folders(args.folders / args.scale, scale)
    write_tokenizer(folders.target, scale.target["vocab_size"])
    drawn = {"synthetic": args.acceptance == "synthetic", "acceptance": args.token_acceptance}
    return folders.target, {name: spec_config(CASES[name], folders, **drawn) for name in args.cases}


def execute(words: Sequence[str], args: argparse.Namespace, name: str) -> None:
    """Run a command into a log and onto stdout, until little of --seconds is left."""
    words = [*words, "--minutes", f"{PLANNED * args.seconds / 60:.1f}"]
    print(shlex.join(words), flush=True)
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ)
    copying = threading.Thread(target=copy_lines, args=(child, args.out / f"{name}.log"))
    copying.start()
    status = end_after(child, args.seconds - CLOSING_S - (time.monotonic() - BEGAN))
    copying.join(timeout=5)
    print(f"{name} ended with {status} after {time.monotonic() - BEGAN:.0f} s", flush=True)


def copy_lines(child: subprocess.Popen[bytes], path: Path) -> None:
    """Copy what a command says to a file, and to stdout with the seconds."""
    assert child.stdout is not None
    with path.open("wb", buffering=0) as log:
        for line in child.stdout:
            log.write(line)
            print(f"[{time.monotonic() - BEGAN:.0f} s] {line.decode(errors='replace').rstrip()}", flush=True)


def read_run(folder: Path) -> tuple[Run, str]:
    """Return what was measured, and which turns count: where the machine's own counters (CPU time that others took)
    would set aside most turns, as they do where many share a host, the pace of the turns alone tells."""
    if not (folder / "manifest.json").exists():
        raise SystemExit("Nothing was measured: see what the servers say.")
    run = RunDirectory(folder).read()
    by_pace = replace(run, turns=tuple(replace(turn, device={}) for turn in run.turns))
    found, left = (len(list(find_disturbances(each, get_thresholds(each)))) for each in (run, by_pace))
    told = f"{len(run.turns)} turns, {found} of them disturbed"
    if 2 * found <= len(run.turns):
        return run, told
    return by_pace, f"{told}; {left} going by their pace alone, and these are left out"


def list_left_out(run: Run) -> list[str]:
    """Return what a run did not measure, in words."""
    return [f"{each.what}: {each.reason}" for each in run.omissions]


def pack(args: argparse.Namespace, name: str) -> None:
    """Keep the raw readings of a run, and what its servers logged, as one file."""
    if not (args.runs / name).is_dir():
        return
    with tarfile.open(args.out / f"{name}.tar.xz", "w:xz", preset=1) as tar:
        tar.add(args.runs / name, arcname=name)
    print(f"packed {name} after {time.monotonic() - BEGAN:.0f} s", flush=True)


def count_acceptance(run: Run, calibration: Calibration) -> Profile:
    """Return what the counters of a run say of acceptance, by workload; turns are the unit of doubt."""
    entries = [
        found
        for setting in calibration.candidates
        for workload in run.plan.workloads
        if (found := _count(run, setting, workload.name)) is not None
    ]
    tokens = sum(each.timing.num_tokens for each in run.answers)
    log = ReplayedLog(rows=len(run.answers), used=len(run.answers), tokens_out=tokens)
    return Profile(target=ReplayedTarget(name=calibration.target), log=log, entries=tuple(entries))


def _count(run: Run, setting: CalibratedSetting, workload: str) -> Acceptance | None:
    num = Counter(each.turn for each in run.answers if not each.error)
    same = [each for each in run.turns if (each.arm, each.workload) == (setting.name, workload)]
    same = [each for each in same if each.counters.generation_tokens]
    if not same or setting.spec is None:
        return None
    turns = [each.counters for each in same]
    whole = reduce(add, turns)
    # The first token of an answer comes with its prompt, not with a step that decodes.
    emitted_T = np.array([each.counters.generation_tokens - num[each.turn] for each in same], float)
    accepted_T, drafts_T = (
        np.array([getattr(each.spec, name) for each in turns], float) for name in ("num_accepted_tokens", "num_drafts")
    )
    # What stands behind an answer's end is counted as accepted: then the drafts tell the steps.
    steps_T = np.maximum(emitted_T - accepted_T, drafts_T)
    length, steps = ratio_of_totals(emitted_T, steps_T), float(steps_T.sum())
    found = AcceptanceAtK(
        steps=steps,
        emitted=float(emitted_T.sum()),
        drafts=whole.spec.num_drafts,
        drafted=whole.spec.num_draft_tokens,
        accepted=whole.spec.num_accepted_tokens,
        tokens_per_step=length,
        per_request=(length.value,) * 3,
    )
    return Acceptance(
        candidate=setting.spec,
        temperature=0.0,
        group=workload,
        exactness=Exactness.EXACT,
        requests=len(turns),
        by_k={setting.k: found},
    )


def hold(before: dict[str, Any], comparisons: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield forecast and measurement of every cell that has both."""
    made = {(each["workload"], each["setting"], each["load"]): each["speedup"] for each in before["cells"]}
    for each in comparisons:
        at = each.workload, each.candidate, float(each.condition.concurrency or 0)
        if at in made:
            measured = [round(getattr(each.deciding, end), 4) for end in ("value", "low", "high")]
            named = {"workload": each.workload, "candidate": each.candidate, "load": each.condition.concurrency}
            yield named | as_held(made[at], measured) | {"verdict": str(each.verdict)}


def as_held(expected: dict[str, float], measured: Sequence[float]) -> dict[str, Any]:
    """Return a forecast beside what was measured, as value and ends of the interval."""
    return {
        "forecast": [round(expected[end], 4) for end in ("value", "low", "high")],
        "measured": measured,
        "error_percent": round(100 * (expected["value"] / measured[0] - 1), 2),
    }


def hold_crossovers(before: dict[str, Any], found: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the crossovers of both."""
    made = {(each["workload"], each["setting"]): each for each in before["ends"]}
    for each in found:
        if (at := (each.workload, each.candidate)) in made:
            named = {"workload": each.workload, "candidate": each.candidate}
            yield named | place(made[at], [each.value, each.low, finite(each.high)])


def place(expected: dict[str, Any], measured: Sequence[float | None]) -> dict[str, Any]:
    """Return a forecast crossover beside the measured one; beyond all loads is one place."""
    value, (_, low, high) = expected["value"], measured
    beyond = value is None and expected["low"] > 0
    inside = high is None if beyond else value is not None and (low or 0) <= value <= (high or np.inf)
    forecast = [expected[end] for end in ("value", "low", "high")]
    return {"forecast": forecast, "measured": list(measured), "is_inside": bool(inside)}


def summarise(rows: Sequence[dict[str, Any]], ends: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what is held against the goals."""
    if not rows:
        return {"cells": 0}
    errors = np.array([abs(each["error_percent"]) for each in rows])
    sure = [each for each in rows if abs(each["measured"][0] - 1) > SURE]
    right = sum((each["forecast"][0] > 1) == (each["measured"][0] > 1) for each in sure)
    covered = sum(each["forecast"][1] <= each["measured"][0] <= each["forecast"][2] for each in rows)
    return {
        "cells": len(rows),
        "median_percent": round(float(np.median(errors)), 1),
        "p90_percent": round(float(np.quantile(errors, 0.9)), 1),
        "max_percent": round(float(errors.max()), 1),
        "measured_in_forecast_interval": f"{covered} of {len(rows)}",
        "on_or_off_right": f"{right} of {len(sure)}",
        "crossovers_inside": f"{sum(each['is_inside'] for each in ends)} of {len(ends)}",
    }


def describe(args: argparse.Namespace) -> dict[str, Any]:
    """Return what a forecast and a sweep must have in common."""
    names = ("scale", "cases", "concurrency", "prompt_tokens", "output_tokens", "dtype", "acceptance")
    return {name: getattr(args, name) for name in (*names, "token_acceptance")} | {"vllm": bool(args.vllm_python)}


def finite(value: float) -> float | None:
    """Return None for infinity."""
    return None if value == float("inf") else value


def show(content: dict[str, Any]) -> None:
    """Print the table of a result."""
    for each in content["rows"]:
        forecast, measured = ("{:.2f} ({:.2f}-{:.2f})".format(*each[name]) for name in ("forecast", "measured"))
        print(
            f"{each['workload']:6} c={each['load']:<4} {each['candidate']:12} forecast {forecast} measured {measured}"
        )
    print(json.dumps(content["summary"], indent=1))


def main() -> None:
    """Run one of the three modes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    for mode in ("forecast", "sweep"):
        each = modes.add_parser(mode)
        each.add_argument(
            "--vllm-python", type=command_line, help="command line of a Python with vLLM; left out: our engine"
        )
        each.add_argument("--out", type=Path, required=True)
        each.add_argument("--commit", default="unknown")
        each.add_argument("--seconds", type=float, default=570, help="for everything")
        each.add_argument("--seed", type=int, default=1)
        each.add_argument("--cases", nargs="+", default=["eagle3-k3", "dflash-k7", "ngram-k5"], choices=list(CASES))
        each.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32, 64, 128])
        each.add_argument("--calibrated", type=int, nargs="+", default=[1, 12, 40, 96])
        each.add_argument("--repeats", type=int, default=2)
        each.add_argument("--prompts", type=int, default=8)
        each.add_argument("--prompt-tokens", type=int, nargs="+", default=[128, 384])
        each.add_argument("--output-tokens", type=int, default=64)
        each.add_argument("--scale", choices=SCALES, default="8b")
        each.add_argument("--dtype", default="bfloat16")
        each.add_argument("--acceptance", choices=("synthetic", "real"), default="synthetic")
        each.add_argument("--token-acceptance", type=float, default=0.5)
        each.add_argument("--serve-args", default="", help="more for `vllm serve`")
        each.add_argument("--folders", type=Path, default=Path("/dev/shm/draftwise-bench"))
        each.add_argument(
            "--forecast", type=result_file, help="that `sweep` is held beside  [default: OUT/forecast.json]"
        )
    modes.add_parser("table").add_argument("result", type=result_file)
    other = modes.add_parser("again")
    other.add_argument("folder", type=Path, help="with the four files of both halves")
    other.add_argument("--run", type=Path, help="the unpacked calibration run, to read its steps anew")
    args = parser.parse_args()
    if args.mode == "again":
        needed = [args.folder / name for name in (FORECAST, RESULT, "profile.json", "calibration.json")]
        if missing := [str(path) for path in (*needed, args.run) if path and not path.exists()]:
            parser.error(f"there is no {', '.join(missing)}")
        again(args)
        return
    if args.mode == "table":
        show(json.loads(args.result.read_text()))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    args.runs = args.folders / f"runs-{os.getpid()}"
    (predict if args.mode == "forecast" else sweep)(args)


if __name__ == "__main__":
    main()
