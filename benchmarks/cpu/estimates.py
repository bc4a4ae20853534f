"""How long `draftwise decide` says that it will take, and how long it takes: on a machine that does nothing else.

    python benchmarks/cpu/estimates.py --shape two-arms     # one run of two to four minutes: a row more
    python benchmarks/cpu/estimates.py --run RUN --log LOG  # a run that was made by hand: `make demo`

Every run keeps its estimates: before the first request, and whenever a result is told. An estimate is held to the
turns that were measured after it, whose number it may not have known: verdicts settle early, and disturbed turns are
taken again. So beside the seconds stand the turns, and the error is that of a turn: seconds expected over those taken,
minus 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from suffix_vs_arctic import cpu_name

from draftwise import __version__
from draftwise.decide.disturbance import set_aside_disturbed
from draftwise.report.estimates import hold_estimates
from draftwise.runs import RunDirectory

BUNDLE = Path(__file__).parents[2] / "bundle"
RESULTS = Path(__file__).parent / "results" / "estimates.jsonl"
CANDIDATES = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix"},
    "eagle3": {"method": "eagle3", "model": str(BUNDLE / "eagle3"), "num_speculative_tokens": 3},
    "draft_model": {"method": "draft_model", "model": str(BUNDLE / "draft_model"), "num_speculative_tokens": 4},
}
SHAPES = {
    "two-arms": (("eagle3",), ("--minutes", "2")),
    "sweep": (("eagle3",), ("--minutes", "3", "--concurrency", "1,4")),
    "one-at-a-time": (("eagle3",), ("--minutes", "3", "--one-at-a-time")),
    "four-candidates": (tuple(CANDIDATES), ("--minutes", "3")),
    "sampled": (("ngram", "eagle3"), ("--minutes", "4", "--temperature", "0.8", "--no-adaptive")),
}
FIRST_WORDS = ("First verdict", "So far")


def measure(shape: str) -> dict[str, Any]:
    """Return what a run of a shape said and took."""
    names, options = SHAPES[shape]
    chosen = [f"--candidate={name}={json.dumps(CANDIDATES[name])}" for name in names]
    with TemporaryDirectory() as folder:
        path, log = Path(folder) / "run", Path(folder) / "log"
        command = [sys.executable, "-m", "draftwise", "decide", str(BUNDLE / "target"), *options, *chosen]
        load, began = os.getloadavg()[0], time.monotonic()
        with log.open("w") as file:
            for line, at_s in follow([*command, "--out", str(path)], began):
                print(f"{at_s:.1f} {line}", file=file, flush=True)
        whole_s = time.monotonic() - began
        return {"shape": shape, "load_before": round(load, 2), "whole_s": round(whole_s, 1), **describe(path, log)}


def follow(command: Sequence[str], began: float) -> Iterator[tuple[str, float]]:
    """Yield the lines that a command writes, each with the seconds since a moment."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            yield line.rstrip("\n"), time.monotonic() - began
    yield f"exit code {process.returncode}", time.monotonic() - began


def describe(path: Path, log: Path) -> dict[str, Any]:
    """Return the estimates of a run, and what came of them.

    Args:
        path: its directory.
        log: its lines, each behind the seconds since the command.
    """
    lines = [line.split(" ", 1) for line in log.read_text().splitlines() if " " in line]
    run = RunDirectory(path).read()
    return {
        "first_result_s": next((float(at) for at, text in lines if text.startswith(FIRST_WORDS)), None),
        "exit": next((int(text.split()[-1]) for _, text in lines if text.startswith("exit code ")), None),
        "estimates": [
            {name: round(value, 3) for name, value in each.to_dict().items()} for each in hold_estimates(run.estimates)
        ],
        "turns": len(run.turns),
        "disturbed": len(set_aside_disturbed(run).disturbances),
        "left_out": [each.what for each in run.omissions],
        "plan": {
            "arms": [arm.name for arm in run.plan.arms],
            "prompts": {each.name: len(each.prompts) for each in run.plan.workloads},
            "repetitions": run.plan.repeats,
            "loads": [condition.label for condition in run.plan.conditions],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--run", type=Path, help="directory of a run that was made by hand")
    parser.add_argument("--log", type=Path, help="its lines, each behind the seconds since the command")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    row = measure(given.shape) if given.shape else {"shape": "demo", **describe(given.run, given.log)}
    about = {"date": str(date.today()), "draftwise": __version__, "cpu": cpu_name(), "cores": os.cpu_count()}
    with given.out.open("a") as file:
        file.write(json.dumps({**about, **row}) + "\n")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
