"""`draftwise decide` on the bundled model, with candidates that gain nothing, while something takes a core at random.

    python benchmarks/cpu/real_faults.py --quiet --runs 6      # on a machine that does nothing else: the truth
    python benchmarks/cpu/real_faults.py --runs 40             # disturbed; 1 to 2 minutes each
    python benchmarks/cpu/real_faults.py --runs 0              # the figures so far

Every run appends a row to `--rows` when it has ended, and is drawn from its number: an invocation that was cut off is
gone on with by the next one. The truth is what the quiet runs, ten minutes each, say of a candidate and a workload.
To adopt is false where their interval ends below 1 + margin, to reject where it begins above 1 - margin; verdicts on
what no quiet run has measured are counted apart. The simulated counterpart is `fault_injection.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

from fault_injection import wilson
from suffix_vs_arctic import cpu_name

from draftwise import __version__

TARGET = "bundle/target"
ROWS = Path(__file__).parent / "results" / "real_faults.jsonl"
MARGIN = 0.03
CANDIDATES = {
    "lookup of 20": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 20, "prompt_lookup_max": 24},
    "suffix": {"method": "suffix"},
}
"""Matches of 20 tokens are rare in prose and code; a suffix tree knows no more than the prompt when none comes back."""
WORKLOADS = ("prose", "code")
QUIET_MINUTES = 10.0
LONGEST_S = 900.0
BUSY = "while True: pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run measures, and when a core is taken."""

    number: int
    candidate: str
    workload: str
    concurrency: int
    minutes: float
    prompts: int | None
    busy: tuple[tuple[float, float], ...]
    """(begin, end) in seconds since it began: while so, another process computes."""

    @classmethod
    def draw(cls, number: int, *, quiet: bool) -> Run:
        """Return the run of a number: quiet ones go through candidates and workloads in turn."""
        rng = random.Random(number)
        names = list(CANDIDATES)
        both = [(candidate, workload) for candidate in names for workload in WORKLOADS]
        candidate, workload = both[number % len(both)]
        if quiet:
            return cls(
                number=number,
                candidate=candidate,
                workload=workload,
                concurrency=1,
                minutes=QUIET_MINUTES,
                prompts=None,
                busy=(),
            )
        minutes = rng.choice((1.0, 1.5, 2.0))
        return cls(
            number=number,
            candidate=candidate,
            workload=workload,
            concurrency=rng.choice((1, 1, 4)),
            minutes=minutes,
            prompts=rng.choice((4, 8, 12, None)),
            busy=tuple(_draw_busy(rng, 60 * minutes * 1.5)),
        )

    @property
    def words(self) -> list[str]:
        """The command, but for its directory."""
        prompts = [] if self.prompts is None else ["--prompts", str(self.prompts)]
        return [
            *(sys.executable, "-m", "draftwise", "decide", TARGET),
            *("--candidate", f"{self.candidate}={json.dumps(CANDIDATES[self.candidate])}"),
            *("--workload", self.workload, "--concurrency", str(self.concurrency)),
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
        path = Path(folder) / "run"
        ended = subprocess.run(
            [*run.words, "--out", str(path), "--json"],
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
    row = asdict(run) | {"date": str(date.today()), "draftwise": __version__, "cpu": cpu_name(), "load_before": load}
    row |= {"exit_code": ended.returncode, "seconds": round(time.monotonic() - began, 1)}
    return row | _read_result(ended.stdout, ended.stderr)


def _read_result(text: str, said: str) -> dict[str, Any]:
    try:
        (found,) = json.loads(text)["comparisons"]
    except (ValueError, KeyError):
        return {"verdict": "no result", "reason": said[-300:]}
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
    """Return whether the verdict of a disturbed run is `false`, `not false` or `not known`."""
    if row["verdict"] not in ("adopt", "reject"):
        return "not false"
    truth = truths.get((row["candidate"], row["workload"]))
    if truth is None:
        return "not known"
    low, high = truth
    is_false = high < 1 + MARGIN if row["verdict"] == "adopt" else low > 1 - MARGIN
    return "false" if is_false else "not false"


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of all rows."""
    truths = find_truths(rows)
    disturbed = [row for row in rows if row["busy"]]
    judged = Counter(judge(row, truths) for row in disturbed)
    return {
        "what": "draftwise decide on the bundled model while another process takes a core at random",
        "truths": {f"{candidate} on {workload}": ends for (candidate, workload), ends in sorted(truths.items())},
        "quiet_runs": len(rows) - len(disturbed),
        "disturbed_runs": len(disturbed),
        "verdicts": dict(Counter(row["verdict"] for row in disturbed).most_common()),
        "false": judged["false"],
        "false_share_95": wilson(judged["false"], len(disturbed)),
        "truth_not_known": judged["not known"],
        "longest_over_minutes": max((row["seconds"] / (60 * row["minutes"]) for row in disturbed), default=None),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="so many more")
    parser.add_argument("--quiet", action="store_true", help="undisturbed and long: what is true")
    parser.add_argument("--rows", type=Path, default=ROWS)
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.rows.read_text().splitlines()] if given.rows.exists() else []
    for _ in range(given.runs):
        number = sum(given.quiet != bool(row["busy"]) for row in rows)
        rows.append(take(Run.draw(number, quiet=given.quiet)))
        with given.rows.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(json.dumps({name: rows[-1][name] for name in ("number", "candidate", "verdict", "reason")}), flush=True)
    print(json.dumps(summarise(rows), indent=1))


if __name__ == "__main__":
    main()
