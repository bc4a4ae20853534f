"""`draftwise decide` on the bundled model, with candidates that gain nothing, while something takes a core at random.

    python benchmarks/cpu/real_faults.py --quiet --runs 4      # on a machine that does nothing else: the truth
    python benchmarks/cpu/real_faults.py --runs 40             # disturbed; about a minute each
    python benchmarks/cpu/real_faults.py --runs 0              # the figures so far

Every run appends a row to `--rows` when it has ended, and is drawn from its number: an invocation that was cut off is
gone on with by the next one. The truth is what the quiet runs, three minutes each, say of a candidate and a workload.
To adopt is false where their interval ends below 1 + margin, to reject where it begins above 1 - margin, and right
where all of it lies on the other side; where it lies on both, or no quiet run has measured that, nobody knows. The
simulated counterpart is `fault_injection.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

from fault_injection import wilson
from suffix_vs_arctic import cpu_name

from draftwise import __version__
from draftwise.runs.row_files import RowFile, cut_unfinished, write_whole

TARGET = Path(__file__).parents[2] / "bundle" / "target"
RESULTS = Path(__file__).parent / "results"
MARGIN = 0.03
CANDIDATES = {
    "lookup of 20": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 20, "prompt_lookup_max": 24},
    "suffix": {"method": "suffix"},
}
"""Matches of 20 tokens are rare in prose and code; a suffix tree knows no more than the prompt when none comes back."""
WORKLOADS = ("prose", "code")
PAIRS = tuple(product(CANDIDATES, WORKLOADS))
MAX_TOKENS = 64
"""Of an answer: in a minute on a busy core there is time for some prompts only."""
QUIET_MINUTES = 3.0
MINUTES = (0.75, 1.0, 1.25)
LONGEST = 2.0
"""Of the minutes that a run is given: one that takes longer is ended."""
ENDING_S = 30.0
"""In which it takes its servers down then."""
BUSY = "while True: pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run measures, and when a core is taken."""

    number: int
    candidate: str
    workload: str
    minutes: float
    prompts: int | None
    busy: tuple[tuple[float, float], ...]
    """(begin, end) in seconds since it began: while so, another process computes."""

    @classmethod
    def draw(cls, number: int, *, quiet: bool) -> Run:
        """Return the run of a number; runs go through candidates and workloads in turn."""
        rng = random.Random(number)
        candidate, workload = PAIRS[number % len(PAIRS)]
        minutes = QUIET_MINUTES if quiet else rng.choice(MINUTES)
        return cls(
            number=number,
            candidate=candidate,
            workload=workload,
            minutes=minutes,
            prompts=None if quiet else rng.choice((8, 12, None)),
            busy=() if quiet else tuple(_draw_busy(rng, 60 * minutes * LONGEST)),
        )

    @property
    def words(self) -> list[str]:
        """The command, but for its directory."""
        prompts = [] if self.prompts is None else ["--prompts", str(self.prompts)]
        return [
            *(sys.executable, "-m", "draftwise", "decide", str(TARGET)),
            *("--candidate", f"{self.candidate}={json.dumps(CANDIDATES[self.candidate])}"),
            *("--workload", self.workload, "--concurrency", "1", "--max-tokens", str(MAX_TOKENS)),
            *("--minutes", f"{self.minutes:g}", "--seed", str(self.number), *prompts),
        ]


def _draw_busy(rng: random.Random, seconds: float) -> Iterator[tuple[float, float]]:
    """Yield spells of 2 to 60 s, a tenth to six tenths of the time; half of the runs are busy from the start."""
    share = rng.uniform(0.1, 0.6)
    at = 0.0 if rng.random() < 0.5 else rng.uniform(0, 20)
    while at < seconds:
        length = math.exp(rng.uniform(math.log(2), math.log(60)))
        yield round(at, 1), round(at + length, 1)
        at += length + rng.expovariate(share / ((1 - share) * length))


def take(run: Run) -> dict[str, Any]:
    """Return the row of a run."""
    began, load = time.monotonic(), os.getloadavg()[0]
    with TemporaryDirectory() as folder, keep_busy(run.busy):
        code, printed, said = _execute([*run.words, "--out", str(Path(folder) / "run"), "--json"], 60 * run.minutes)
    row = asdict(run) | {"date": str(date.today()), "draftwise": __version__, "cpu": cpu_name(), "load_before": load}
    row |= {"exit_code": code, "seconds": round(time.monotonic() - began, 1)}
    return row | _read_result(printed, said)


def _execute(words: Sequence[str], seconds: float) -> tuple[int, str, str]:
    """Return exit code, output and errors of a command, which is ended when it takes far too long."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for patience_s, end in ((LONGEST * seconds, process.terminate), (ENDING_S, process.kill)):
            try:
                printed, said = process.communicate(timeout=patience_s)
                break
            except subprocess.TimeoutExpired:
                end()
        else:
            printed, said = process.communicate()
    return process.returncode, printed, said


def _read_result(text: str, said: str) -> dict[str, Any]:
    try:
        (found,) = json.loads(text)["comparisons"]
    except (ValueError, KeyError):
        return {"verdict": "no result", "reason": re.sub(r" Report: \S+", "", " ".join(said.split()))[-300:]}
    deciding = found["throughput"] or found["speedup"]
    return {name: found[name] for name in ("verdict", "reason", "num_prompts")} | {
        "ratio": [deciding["low"], deciding["value"], deciding["high"]]
    }


@contextmanager
def keep_busy(spells: Sequence[tuple[float, float]]) -> Iterator[None]:
    """Let another process compute in these spells, from now on, on whichever core it gets."""
    over, began = Event(), time.monotonic()

    def follow() -> None:
        for begin, end in spells:
            if over.wait(max(0.0, began + begin - time.monotonic())):
                return
            with subprocess.Popen([sys.executable, "-c", BUSY]) as process:
                over.wait(max(0.0, began + end - time.monotonic()))
                process.kill()

    thread = Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def find_truths(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[float, float]]:
    """Return by candidate and workload the ends of the interval that quiet runs give, on average."""
    measured: dict[tuple[str, str], list[Sequence[float]]] = {}
    for row in rows:
        if not row["busy"] and "ratio" in row:
            measured.setdefault((row["candidate"], row["workload"]), []).append(row["ratio"])
    return {
        key: (fmean(low for low, _, _ in each), fmean(high for _, _, high in each)) for key, each in measured.items()
    }


def judge(row: Mapping[str, Any], truths: Mapping[tuple[str, str], tuple[float, float]]) -> str:
    """Return whether a verdict is `false`, `right` or `not known` to be either; `none` where there is none."""
    if row["verdict"] not in ("adopt", "reject"):
        return "none"
    truth = truths.get((row["candidate"], row["workload"]))
    if truth is None:
        return "not known"
    low, high = truth
    if row["verdict"] == "adopt":
        is_false, is_right = high < 1 + MARGIN, low >= 1 + MARGIN
    else:
        is_false, is_right = low > 1 - MARGIN, high <= 1 - MARGIN
    return "false" if is_false else "right" if is_right else "not known"


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of all rows."""
    truths = find_truths(rows)
    disturbed = [row for row in rows if row["busy"]]
    judged = Counter(judge(row, truths) for row in disturbed)
    return {
        "what": "draftwise decide on the bundled model, one request at a time, while another process takes a core at "
        "random; margin 3 %; false: adopted or rejected against what quiet runs say",
        "machines": sorted({f"{row['cpu']}, {row['date']}, draftwise {row['draftwise']}" for row in rows}),
        "truths": {f"{candidate} on {workload}": ends for (candidate, workload), ends in sorted(truths.items())},
        "quiet_runs": len(rows) - len(disturbed),
        "disturbed_runs": len(disturbed),
        "verdicts": dict(Counter(row["verdict"] for row in disturbed).most_common()),
        "false": judged["false"],
        "false_share_95": wilson(judged["false"], len(disturbed)),
        "right": judged["right"],
        "truth_not_known": judged["not known"],
        "longest_over_minutes": max((row["seconds"] / (60 * row["minutes"]) for row in disturbed), default=None),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="so many more")
    parser.add_argument("--quiet", action="store_true", help="undisturbed and longer: what is true")
    parser.add_argument("--rows", type=Path, default=RESULTS / "real_faults.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS / "real_faults.json", help="the figures")
    given = parser.parse_args()
    rows = list(RowFile(given.rows, dict).read())
    cut_unfinished(given.rows)
    for _ in range(given.runs):
        number = sum(given.quiet != bool(row["busy"]) for row in rows)
        rows.append(take(Run.draw(number, quiet=given.quiet)))
        with given.rows.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        write_whole(given.out, json.dumps(summarise(rows), indent=1) + "\n")
        print(json.dumps({name: rows[-1][name] for name in ("number", "candidate", "verdict", "reason")}), flush=True)
    print(json.dumps(summarise(rows), indent=1))


if __name__ == "__main__":
    main()
