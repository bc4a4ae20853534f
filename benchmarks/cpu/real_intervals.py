"""Real runs of `draftwise decide` on one pair of servers: are its intervals as wide as they should be?

    python benchmarks/cpu/real_intervals.py --runs 100 --out benchmarks/cpu/results/real_intervals.json

Two `draftwise serve` of the bundle, plain and with a drafter, stay up. Each run draws other prompts of one log and
measures for `--seconds`. The 95 % intervals should hold the mean of all runs' logarithms, whose error is a tenth of one
run's with 100 runs. z is a run's distance from that mean in standard errors, 1.96 at the end of its interval. RMS z is
1 if intervals are as wide as runs differ. `--pairs` pairs of servers share the runs, and the cores of the machine.
`--rows FILE` keeps every run there, and goes on after them. Runs without an interval are counted by reason.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections import Counter
from multiprocessing import Process
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from bounded_work import served
from provenance import provenance, write

import draftwise
from draftwise.core import DraftwiseError
from draftwise.deciding.conclusions import gather_evidence
from draftwise.runs import RunDirectory

BUNDLE = Path(__file__).parents[2] / "bundle"
SPECS = {
    "eagle3": {"model": str(BUNDLE / "eagle3"), "num_speculative_tokens": 3},
    "ngram": {"num_speculative_tokens": 4},
}


def run_one(plain: str, candidate: str, log: Path, seed: int, seconds: float) -> dict[str, Any]:
    """Return what one run says."""
    with TemporaryDirectory() as folder:
        try:
            result = draftwise.decide(
                url=plain,
                candidate_urls=(candidate,),
                workloads=(f"log:{log}",),
                minutes=seconds / 60,
                seed=seed,
                out=Path(folder) / "run",
            )
            (each,) = result.decision.comparisons
            (estimates,) = gather_evidence(RunDirectory(Path(folder) / "run").read()).estimates
        except (ValueError, DraftwiseError) as error:  # nothing was compared, or the time ran out
            return {"seed": seed, "verdict": str(error)[:80]}
    found, by_prompt = each.deciding, estimates.ratios.speedup.log_by_prompt
    return {"seed": seed, "verdict": str(each.verdict), "reason": each.reason.code if each.reason else None,
            "ratio": [found.value, found.low, found.high], "prompts": each.num_prompts,
            "logs": {str(unit): round(log, 4) for (_, unit), log in by_prompt.items()}}  # fmt: skip


def run_pair(given: argparse.Namespace, pair: int, seeds: list[int]) -> None:
    """Run these seeds on one pair of servers, and add each to the file of rows."""
    cores = (os.cpu_count() or 1) // given.pairs
    os.sched_setaffinity(0, range(pair * cores, (pair + 1) * cores))
    spec = json.dumps({"method": given.method, **SPECS[given.method]})
    log, model = BUNDLE / "heldout" / f"{given.workload}.jsonl", str(BUNDLE / "target")
    place = ["--device", given.device, *(["--gpu-memory-utilization", "0.1"] if given.device == "cuda" else [])]
    with served(model, place) as plain, served(model, [*place, "--speculative-config", spec]) as candidate:
        for seed in seeds:
            row = json.dumps({**run_one(plain, candidate, log, seed, given.seconds), "pair": pair})
            print(row, flush=True)
            with given.rows.open("a") as file:
                file.write(row + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=1, help="pairs of servers at once")
    parser.add_argument("--method", choices=SPECS, default="eagle3")
    parser.add_argument("--workload", choices=("code", "prose", "rewrite"), default="code")
    parser.add_argument("--rows", type=Path, default=Path("real_intervals.jsonl"), help="finished runs, appended to")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    done = {json.loads(line)["seed"] for line in given.rows.read_text().splitlines()} if given.rows.exists() else set()
    left = [seed for seed in range(given.runs) if seed not in done]
    pairs = [Process(target=run_pair, args=(given, pair, left[pair :: given.pairs])) for pair in range(given.pairs)]
    for act in (Process.start, Process.join):
        for each in pairs:
            act(each)
    rows = sorted(map(json.loads, given.rows.read_text().splitlines()), key=lambda row: int(row["seed"]))
    if len(measured := [row["ratio"] for row in rows if "ratio" in row]) < 2:
        parser.error(f"{given.rows} has fewer than two runs with an interval. Give more --runs or --seconds.")
    logs, ends = np.log([ratio[0] for ratio in measured]), np.log([ratio[1:] for ratio in measured])
    truth = logs.mean()
    z = 1.96 * (logs - truth) / ((ends[:, 1] - ends[:, 0]) / 2) * math.sqrt(len(logs) / (len(logs) - 1))
    result = {
        "what": "intervals of real runs, each with a draw of its own, compared with the mean of all",
        "command": f"python benchmarks/cpu/real_intervals.py --runs {given.runs} --seconds {given.seconds:g} "
        f"--pairs {given.pairs} --device {given.device} --method {given.method} --workload {given.workload}",
        **provenance(),
        "truth": math.exp(truth),
        "rms_z": float(np.sqrt(np.mean(z**2))),
        "covers": float(np.mean(np.abs(z) < 1.96)),
        "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "rows": rows,
    }
    write(result, given.out)
    print(json.dumps({name: value for name, value in result.items() if name != "rows"}, indent=1))


if __name__ == "__main__":
    main()
