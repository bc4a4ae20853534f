"""`draftwise decide` on the bundled model, with candidates that gain nothing, on machines and servers in trouble.

    python benchmarks/cpu/real_faults.py --quiet --runs 4      # on a machine that does nothing else: the truth
    python benchmarks/cpu/real_faults.py --runs 24             # disturbed; one to three minutes each, kinds in turn
    python benchmarks/cpu/real_faults.py --runs 0              # the figures so far

Every run appends a row to `--rows` when it has ended, and is drawn from its kind and number: an invocation that was cut
off is gone on with by the next one. The truth is what the quiet runs, three minutes each, say of a candidate and a
workload: to adopt is right where their interval lies above 1 + margin, to reject where it lies below 1 - margin. Every
other verdict of the two counts as false, also where nobody has measured the truth. The simulated counterpart is
`fault_injection.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import date
from itertools import product
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory, TemporaryFile
from threading import Event, Thread, Timer
from typing import Any
from uuid import uuid4

from scipy.stats import binomtest

from draftwise import __version__
from draftwise.machine.cores import cpu_name
from draftwise.machine.files import write_whole
from draftwise.runs.row_files import RowFile, cut_unfinished

TARGET = Path(__file__).parents[2] / "bundle" / "target"
RESULTS = Path(__file__).parent / "results"
TROUBLED_SERVERS = Path(__file__).parent / "troubled_servers"
MARGIN = 0.03
CANDIDATES = {
    "lookup of 20": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 20, "prompt_lookup_max": 24},
    "suffix": {"method": "suffix"},
}
"""Matches of 20 tokens are rare in prose and code; a suffix tree knows no more than the prompt when none comes back."""
WORKLOADS = ("prose", "code")
PAIRS = tuple(product(CANDIDATES, WORKLOADS))
TAILS = ("#output=lognormal:24:3.4,force", "#output=lognormal:24:2.0,force")
"""Answers as long as a heavy-tailed distribution says, whatever the model would do."""
QUIET_PAIRS = PAIRS + tuple((name, workload + tail) for tail, name, workload in product(TAILS, CANDIDATES, WORKLOADS))
MAX_TOKENS = 64
"""Of an answer: in a minute on a busy core there is time for some prompts only."""
QUIET_MINUTES = 3.0
SHORT = (0.75, 1.0, 1.25)
MINUTES = (1.5, 2.0, 2.5)
"""Of disturbed runs; those with a busy core have the short ones."""
LONGEST = 2.0
"""Of the minutes that a run is given: one that takes longer is ended."""
ENDING_S = 30.0
"""In which it takes its servers down then."""
BUSY = "while True: pass"
PERIOD_S = 0.01
"""Of the stops that make a machine slower."""
URL = re.compile(r"http://127\.0\.0\.1:\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run measures, and its trouble; times are in seconds since it began."""

    number: int
    kind: str = "quiet"
    candidate: str
    workload: str
    minutes: float
    prompts: int | None = None
    busy: tuple[tuple[float, float], ...] = ()
    """(begin, end): while so, another process computes."""
    slower: float = 0.0
    """By which share of the time the engines stand still in the end; it grows from none."""
    server: Mapping[str, Any] | None = None
    """DRAFTWISE_TROUBLE of `troubled_servers/sitecustomize.py`."""
    tells_config: bool = True
    """Whether draftwise starts the servers; else it is given their URLs, and no config."""
    seed: int = 0

    @classmethod
    def draw(cls, kind: str, number: int) -> Run:
        """Return the run of a kind and a number."""
        rng = random.Random(number if kind in ("quiet", "busy-core") else f"{kind}/{number}")
        pairs = QUIET_PAIRS if kind == "quiet" else PAIRS
        candidate, workload = pairs[number % len(pairs)]
        minutes = QUIET_MINUTES if kind == "quiet" else rng.choice(SHORT if kind == "busy-core" else MINUTES)
        run = cls(number=number, kind=kind, candidate=candidate, workload=workload, minutes=minutes, seed=number)
        return run if kind == "quiet" else KINDS[kind](run, rng)

    @property
    def words(self) -> list[str]:
        """The command, but for its directory, and what names the servers."""
        prompts = [] if self.prompts is None else ["--prompts", str(self.prompts)]
        whole = ["--no-adaptive"] if self.kind == "quiet" else []
        return [
            *(sys.executable, "-m", "draftwise", "decide", "--workload", self.workload, "--concurrency", "1"),
            *(
                "--max-tokens",
                str(MAX_TOKENS),
                "--minutes",
                f"{self.minutes:g}",
                "--seed",
                str(self.seed),
                *prompts,
                *whole,
            ),
        ]


def _take_a_core(run: Run, rng: random.Random) -> Run:
    prompts = rng.choice((8, 12, None))
    return replace(run, prompts=prompts, busy=tuple(_draw_busy(rng, 60 * run.minutes * LONGEST)))


def _compile_late(run: Run, rng: random.Random) -> Run:
    begin = rng.uniform(0.3, 0.8) * 60 * run.minutes
    return replace(run, server={"arm": _either(rng), "compile": (round(begin, 1), round(rng.uniform(4, 20), 1))})


def _drift(run: Run, rng: random.Random) -> Run:
    return replace(run, slower=round(rng.uniform(0.1, 0.5), 2))


def _remember(run: Run, rng: random.Random) -> Run:
    """In turn: a suffix tree behind a URL, of which nothing is told, and a prefix cache on one side only."""
    if run.number % 2:
        return replace(
            run,
            candidate="lookup of 20",
            server={"arm": _either(rng), "arguments": ["--no-enable-prefix-caching"]},
        )
    return replace(run, candidate="suffix", workload=WORKLOADS[run.number // 2 % 2], tells_config=False)


def _take_few_prompts(run: Run, rng: random.Random) -> Run:
    run = replace(run, prompts=rng.randint(3, 10))
    return replace(_take_a_core(run, rng), prompts=run.prompts) if rng.random() < 0.5 else run


def _vary_prompts(run: Run, rng: random.Random) -> Run:
    return replace(run, workload=run.workload + rng.choice(TAILS))


def _start_later(run: Run, rng: random.Random) -> Run:
    late = {"start_s": round(rng.uniform(5, 12), 1), "compile": (0.0, round(rng.uniform(15, 30), 1))}
    return replace(run, server={"arm": _either(rng), **late})


KINDS: Mapping[str, Callable[[Run, random.Random], Run]] = {
    "busy-core": _take_a_core,
    "late-compiling": _compile_late,
    "drift": _drift,
    "memory": _remember,
    "few-prompts": _take_few_prompts,
    "heavy-tails": _vary_prompts,
    "late-start": _start_later,
}
"""What each kind of run does to a quiet one."""


def _either(rng: random.Random) -> str:
    return rng.choice(("plain", "candidate"))


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
    load = os.getloadavg()[0]
    trouble = json.dumps({"run": uuid4().hex, "arm": None, **(run.server or {})})
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TROUBLED_SERVERS), os.environ.get("PYTHONPATH", "")]),
        "DRAFTWISE_TROUBLE": trouble,
    }
    with TemporaryDirectory() as folder, ExitStack() as stack:
        servers = stack.enter_context(_name_servers(run, environment))
        began = time.monotonic()
        stack.enter_context(keep_busy(run.busy))
        if run.slower:
            stack.enter_context(slow_down(trouble, run.slower, 60 * run.minutes))
        words = [*run.words, *servers, "--out", str(Path(folder) / "run"), "--json"]
        code, printed, said = _execute(words, 60 * run.minutes, environment)
        seconds = round(time.monotonic() - began, 1)
    row = asdict(run) | {"date": str(date.today()), "draftwise": __version__, "cpu": cpu_name(), "load_before": load}
    lines = " ".join(line for _, line in said)
    return row | {"exit_code": code, "seconds": seconds} | _check_estimate(said) | _read_result(printed, lines)


@contextmanager
def _name_servers(run: Run, environment: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the words that name the servers, which run meanwhile where the command does not start them itself."""
    config = json.dumps(CANDIDATES[run.candidate])
    if run.tells_config:
        yield [str(TARGET), "--candidate", f"{run.candidate}={config}"]
        return
    serve = [sys.executable, "-m", "draftwise", "serve", str(TARGET), "--port", "0"]
    with ExitStack() as stack:
        urls = []
        for more in ([], ["--speculative-config", config]):
            server = subprocess.Popen(
                [*serve, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
            )
            stack.callback(server.wait)
            stack.callback(server.terminate)
            urls.append(next(found[0] for line in server.stdout or () if (found := URL.search(line))))
        yield ["--url", urls[0], "--candidate-url", urls[1]]


def _execute(
    words: Sequence[str], seconds: float, environment: Mapping[str, str]
) -> tuple[int, str, list[tuple[float, str]]]:
    """Return exit code, output, and lines of errors with their times; a command that takes far too long is ended."""
    with (
        TemporaryFile("w+") as output,
        subprocess.Popen(words, stdout=output, stderr=subprocess.PIPE, text=True, env=environment) as process,
    ):
        ends = [Timer(LONGEST * seconds, process.terminate), Timer(LONGEST * seconds + ENDING_S, process.kill)]
        for end in ends:
            end.start()
        said = [(time.monotonic(), line) for line in process.stderr or ()]
        code = process.wait()
        for end in ends:
            end.cancel()
        output.seek(0)
        return code, output.read(), said


def _check_estimate(said: Sequence[tuple[float, str]]) -> dict[str, float]:
    """Return how long measuring was to take, by what was printed before it, and how long it took to the end."""
    for at, line in said:
        if found := re.search(r"requests, about ([\d.]+) (s|min)", line):
            estimate = float(found[1]) * (60 if found[2] == "min" else 1)
            return {"estimated_s": round(estimate, 1), "measuring_s": round(said[-1][0] - at, 1)}
    return {}


def _read_result(text: str, said: str) -> dict[str, Any]:
    try:
        (found,) = json.loads(text)["comparisons"]
    except (ValueError, KeyError):
        return {"verdict": "no result", "reason": _shorten(said)}
    deciding = found["throughput"] or found["speedup"]
    return {name: found[name] for name in ("verdict", "reason", "num_prompts")} | {
        "ratio": [deciding["low"], deciding["value"], deciding["high"]]
    }


def _shorten(said: str) -> str:
    """Return the end of what was said, without the places of this machine."""
    return re.sub(r" Report: \S+", "", " ".join(said.split()).replace(str(TARGET), "bundle/target"))[-300:]


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


@contextmanager
def slow_down(trouble: str, share: float, seconds: float) -> Iterator[None]:
    """Let the engines of a run stand still for a growing part of the time, as if the processor's clock fell."""
    over, began = Event(), time.monotonic()

    def follow() -> None:
        engines: list[int] = []
        for number in range(1_000_000):
            if number % 200 == 0:
                engines = list(_find_engines(trouble))
            pause = PERIOD_S * share * min(1.0, (time.monotonic() - began) / seconds)
            _signal(engines, signal.SIGSTOP)
            over.wait(pause)
            _signal(engines, signal.SIGCONT)
            if over.wait(PERIOD_S - pause):
                return

    thread = Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _find_engines(trouble: str) -> Iterator[int]:
    """Yield the processes that `troubled_servers/sitecustomize.py` has marked."""
    marks = (b"DRAFTWISE_ENGINE_OF=", trouble.encode())
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit():
                environment = (folder / "environ").read_bytes()
                if all(mark in environment for mark in marks):
                    yield int(folder.name)


def _signal(processes: Sequence[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def kind_of(row: Mapping[str, Any]) -> str:
    """Return the kind of a row; before there were several, all disturbed runs had a busy core."""
    return row.get("kind", "busy-core" if row["busy"] else "quiet")


def find_truths(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[float, float]]:
    """Return by candidate and workload the ends of the interval that quiet runs give, on average.

    A run on a machine that turned out not to be quiet tells no truth.
    """
    measured: dict[tuple[str, str], list[Sequence[float]]] = {}
    for row in rows:
        if kind_of(row) == "quiet" and "ratio" in row and "were disturbed" not in row["reason"]:
            measured.setdefault((row["candidate"], row["workload"]), []).append(row["ratio"])
    return {
        key: (fmean(low for low, _, _ in each), fmean(high for _, _, high in each)) for key, each in measured.items()
    }


def is_false(row: Mapping[str, Any], truths: Mapping[tuple[str, str], tuple[float, float]]) -> bool:
    """Return whether a row adopts or rejects what quiet runs do not show to be better, or worse, by the margin."""
    low, high = truths.get((row["candidate"], row["workload"]), (1.0, 1.0))
    return (row["verdict"] == "adopt" and low < 1 + MARGIN) or (row["verdict"] == "reject" and high > 1 - MARGIN)


def count(rows: Sequence[Mapping[str, Any]], truths: Mapping[tuple[str, str], tuple[float, float]]) -> dict[str, Any]:
    """Return the figures of some disturbed runs."""
    measured = sum("ratio" in row for row in rows)
    false = sum(is_false(row, truths) for row in rows)
    share = binomtest(false, measured).proportion_ci(0.95, "exact") if measured else None
    return {
        "runs": len(rows),
        "with_a_result": measured,
        "verdicts": dict(Counter(row["verdict"] for row in rows).most_common()),
        "false": false,
        "false_share_at_most": None if share is None else round(float(share.high), 3),
        "longest_over_minutes": max((round(row["seconds"] / (60 * row["minutes"]), 2) for row in rows), default=None),
    }


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of all rows."""
    truths = find_truths(rows)
    disturbed = [row for row in rows if kind_of(row) != "quiet"]
    return {
        "what": "draftwise decide on the bundled model, one request at a time, with candidates that gain nothing, in "
        "trouble; margin 3 %; false: adopted or rejected where quiet runs do not show it to be right; at most: upper "
        "end of the 95 % interval of Clopper and Pearson, of the runs with a result",
        "machines": sorted({f"{row['cpu']}, {row['date']}, draftwise {row['draftwise']}" for row in rows}),
        "truths": {f"{candidate} on {workload}": ends for (candidate, workload), ends in sorted(truths.items())},
        "quiet_runs": len(rows) - len(disturbed),
        "disturbed": count(disturbed, truths),
        "with_10_prompts_or_fewer": count([row for row in disturbed if (row["prompts"] or 11) <= 10], truths),
        "kinds": {kind: count([row for row in disturbed if kind_of(row) == kind], truths) for kind in KINDS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="so many more")
    parser.add_argument("--quiet", action="store_true", help="undisturbed and longer: what is true")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="in turn")
    parser.add_argument("--rows", type=Path, default=RESULTS / "real_faults.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS / "real_faults.json", help="the figures")
    given = parser.parse_args()
    rows = list(RowFile(given.rows, dict).read())
    cut_unfinished(given.rows)
    for _ in range(given.runs):
        done = Counter(map(kind_of, rows))
        kind = "quiet" if given.quiet else min(given.kinds, key=lambda each: done[each])
        rows.append(take(Run.draw(kind, done[kind])))
        with given.rows.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        print(json.dumps({name: rows[-1][name] for name in ("kind", "number", "verdict", "reason")}), flush=True)
    summary = json.dumps(summarise(rows), indent=1)
    write_whole(given.out, summary + "\n")
    print(summary)


if __name__ == "__main__":
    main()
