"""How long `draftwise decide` says that it will take, and how long it takes: on a machine that does nothing else.

    python benchmarks/cpu/estimates.py two-arms     # one run of two to six minutes: a row more

Every run keeps its estimates: before the first request, and whenever a result is told. An estimate is held to the
turns that were measured after it, whose number it may not have known: verdicts settle early, and disturbed turns are
taken again. So beside the seconds stand the turns, and the error is that of a turn: seconds expected over those taken,
minus 1. `undisturbed` is the first estimate held to the turns that count: on a machine that others use as well it is
what can be judged. `tokens_under_load` depends on no machine: what turns of several streams come to by the lengths of
their answers, beside what the servers counted. (No server here remembers answers, so that all prompts are measured.)
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from draftwise import __version__
from draftwise.core import Prompt, Run
from draftwise.deciding.disturbance import set_aside_disturbed
from draftwise.deciding.thresholds import get_thresholds
from draftwise.machine.cores import cpu_name
from draftwise.measure.load.requests import fill_streams
from draftwise.reporting.estimates import find_undisturbed, hold_estimates
from draftwise.runs import RunDirectory
from draftwise.runs.schedule import plan_turns

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "estimates.jsonl"
CANDIDATES = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix"},
    "eagle3": {"method": "eagle3", "model": "bundle/eagle3", "num_speculative_tokens": 3},
    "draft_model": {"method": "draft_model", "model": "bundle/draft_model", "num_speculative_tokens": 4},
}
SHAPES = {
    "two-arms": (("eagle3",), "--minutes 2"),
    "sweep": (("eagle3",), "--minutes 3 --concurrency 1,4"),
    "one-at-a-time": (("eagle3",), "--minutes 3 --one-at-a-time"),
    "four-candidates": (tuple(CANDIDATES), "--minutes 3"),
    "sampled": (("ngram", "eagle3"), "--minutes 3 --temperature 0.8"),
}
DEMO = "demo"
FIRST_RESULTS = ("First verdict", "So far")


def list_words(shape: str) -> list[str]:
    """Return what follows `draftwise decide` in the command of a shape."""
    if shape == DEMO:
        said = subprocess.run(["make", "--dry-run", DEMO], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        _, _, command = said.partition("draftwise decide ")
        return shlex.split(command.replace("\\\n", " "))
    names, options = SHAPES[shape]
    return ["bundle/target", *shlex.split(options), *(f"--candidate={json.dumps(CANDIDATES[name])}" for name in names)]


def measure(shape: str, path: Path) -> dict[str, Any]:
    """Return what a run of a shape said and took; its directory is made."""
    load, began = os.getloadavg()[0], time.monotonic()
    words = [*list_words(shape), "--out", str(path)]
    lines, code = follow([sys.executable, "-m", "draftwise", "decide", *words])
    whole_s = time.monotonic() - began
    firsts = (at_s for at_s, line in lines if line.startswith(FIRST_RESULTS))
    return {
        "shape": shape,
        "load_before": round(load, 2),
        "whole_s": round(whole_s, 1),
        "first_result_s": next(firsts, None),
        "exit": code,
        **describe(path),
    }


def follow(command: Sequence[str]) -> tuple[list[tuple[float, str]], int]:
    """Return the lines that a command writes to stderr, each with the seconds since it began, and its exit code."""
    began = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            print(line, end="", file=sys.stderr, flush=True)
            lines.append((round(time.monotonic() - began, 1), line.rstrip("\n")))
    return lines, process.returncode


def describe(path: Path) -> dict[str, Any]:
    """Return the estimates of a run, what came of them, and what was measured."""
    whole = RunDirectory(path).read()
    run = set_aside_disturbed(whole, get_thresholds(whole))
    undisturbed = find_undisturbed(run)
    held = [each.to_dict() for each in hold_estimates(run.estimates)]
    return {
        "estimates": [{name: round(value, 3) for name, value in each.items()} for each in held],
        "undisturbed": undisturbed and {name: round(value, 3) for name, value in undisturbed.to_dict().items()},
        "tokens_under_load": hold_tokens(whole),
        "disturbed": len(run.disturbances),
        "left_out": [each.what for each in run.omissions],
        "arms": [arm.name for arm in run.plan.arms],
        "prompts": {each.name: len(each.prompts) for each in run.plan.workloads},
        "repetitions": run.plan.repeats,
        "loads": [condition.label for condition in run.plan.conditions],
    }


def hold_tokens(run: Run) -> dict[str, Any] | None:
    """Return the tokens of all turns under a load, measured or not: expected and counted; None where there are none."""
    lengths = {(each.workload, each.prompt_id): each.timing.num_tokens for each in run.answers if each.measured}
    loads = [condition for condition in run.conditions if (condition.concurrency or 1) > 1]
    repeats = range(1, run.plan.repeats + 1)
    planned = chain.from_iterable(
        plan_turns(run.plan, loads, repeat, added=run.added, settled=run.settled) for repeat in repeats
    )
    turns = {(*turn.block_key, turn.arm): turn for turn in planned}
    expected = counted = 0.0
    for each in run.turns:
        turn = turns.get((each.workload, each.condition, each.repeat, each.block, each.arm))
        if turn is None or not {(turn.workload, prompt.id) for prompt in turn.prompts} <= lengths.keys():
            continue
        streams = turn.condition.concurrency or 1
        _, of_each = fill_streams(turn, streams, partial(count_tokens, lengths, turn.workload))
        expected += streams * of_each
        counted += each.counters.generation_tokens or 0
    if not counted:
        return None
    return {"expected": round(expected), "counted": round(counted), "error": round(expected / counted - 1, 3)}


def count_tokens(lengths: Mapping[tuple[str, str], int], workload: str, prompt: Prompt) -> int:
    """Return the length of an answer, or of its beginning where the request was cut short to ramp the load up."""
    return min(lengths[workload, prompt.id], prompt.max_tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=[*SHAPES, DEMO])
    parser.add_argument("--keep", type=Path, help="directory for the run, which else is removed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    about = {"date": str(date.today()), "draftwise": __version__, "cpu": cpu_name(), "cores": os.cpu_count()}
    with TemporaryDirectory() as folder:
        row = about | measure(given.shape, given.keep or Path(folder) / "run")
    with given.out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
