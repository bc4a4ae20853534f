"""`draftwise decide` over real vLLM for CPU, from the command line to the report: does everything arrive?

    python benchmarks/interop/measure_vllm_cpu.py --vllm ~/vllm/bin/vllm --out results/measure_vllm_cpu.json

Three `vllm serve` children of the bundled target (plain, n-gram and a trained EAGLE-3 head) answer the same prompts at
temperature 0 under several loads. What is checked is the instrument, not vLLM: on a CPU, and on a machine that others
use, the speed-ups say nothing about a GPU. The exit code is 1 when a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1] / "h200"))

from record import command_line

from draftwise import __version__

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SERVE = "--enforce-eager --dtype float32 --kv-cache-memory-bytes 67108864 --max-model-len 1024"
CANDIDATES = (
    {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    {"method": "eagle3", "model": "bundle/eagle3", "num_speculative_tokens": 3},
)
VERDICTS = {"adopt", "reject", "inconclusive", "mixed", "blocked"}
ACCEPTANCE = {"ngram": (1.05, 2.0), "eagle3": (1.7, 3.0)}
"""Acceptance lengths on `code` that the bundle's own evaluation finds (drafters.json), with room for few prompts."""
WRONG = {
    "not-speculating",
    "plain-speculates",
    "config-not-as-asked",
    "outputs-differ",
    "arms-differ",
    "commands-differ",
}
"""Findings that would be false of these servers. Others (a shared machine, few prompts) may well be true."""

FOUND_ERRORS = 1
"""Exit status of a measurement that went through but does not count, say because others use the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must hold."""

    name: str
    holds: bool
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run left behind."""

    summary: Mapping[str, Any]
    turns: Sequence[Mapping[str, Any]]
    requests: Sequence[Mapping[str, Any]]
    report: str
    wall_s: float


def main() -> None:
    """Run, check, print, write."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--vllm", type=command_line, required=True, help="Command of a vLLM for CPU, up to `serve`.")
    parser.add_argument("--out", type=Path, default=HERE / "results/measure_vllm_cpu.json")
    parser.add_argument("--concurrency", default="1,2,4")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--keep", type=Path, help="Directory for the run, which is deleted otherwise.")
    given = parser.parse_args()
    with TemporaryDirectory() as scratch:
        outcome = decide(given, given.keep or Path(scratch) / "run")
    checks = [check(outcome) for check in CHECKS]
    show(outcome, checks)
    given.out.write_text(json.dumps(record(outcome, checks), indent=1) + "\n")
    sys.exit(not all(check.holds for check in checks))


def decide(given: argparse.Namespace, directory: Path) -> Outcome:
    """Measure with the command that an operator would use."""
    command = [sys.executable, "-m", "draftwise", "decide", "bundle/target", "--engine", "vllm", "--vllm", given.vllm]
    command += ["--serve-args", SERVE, "--workload", "code", "--out", str(directory), "--no-adaptive"]
    for name in ("concurrency", "prompts", "repeats", "max_tokens"):
        command += [f"--{name.replace('_', '-')}", str(getattr(given, name))]
    for candidate in CANDIDATES:
        command += ["--candidate", json.dumps(candidate)]
    began = time.monotonic()
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status not in (0, FOUND_ERRORS):
        sys.exit(status)
    return Outcome(
        summary=json.loads((directory / "summary.json").read_text()),
        turns=list(read_lines(directory / "turns.jsonl")),
        requests=list(read_lines(directory / "requests.jsonl")),
        report=(directory / "report.html").read_text(),
        wall_s=time.monotonic() - began,
    )


def read_lines(file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a JSON Lines file."""
    return map(json.loads, file.read_text().splitlines())


def check_verdicts(outcome: Outcome) -> Check:
    """Every candidate has a verdict under every load."""
    cells = [(row["candidate"], row["condition"], row["verdict"]) for row in measured_cells(outcome)]
    wanted = len(CANDIDATES) * len(outcome.summary["request_parameters"]["conditions"])
    holds = len(cells) == wanted and all(verdict in VERDICTS for *_, verdict in cells)
    return Check(name="a verdict in every cell", holds=holds, seen=f"{len(cells)} of {wanted}")


def check_requests(outcome: Outcome) -> Check:
    """No request failed."""
    failed = [row["error"] for row in outcome.requests if row.get("error")]
    return Check(name="no failed request", holds=not failed, seen=f"{len(failed)} of {len(outcome.requests)}")


def check_equal(outcome: Outcome) -> Check:
    """Greedy outputs are those of plain decoding."""
    pairs = [row["equal_outputs"] for row in measured_cells(outcome)]
    equal, total = (sum(pair[side] for pair in pairs) for side in (0, 1))
    return Check(name="greedy outputs equal", holds=equal == total > 0, seen=f"{equal} of {total}")


def check_resolved(outcome: Outcome) -> Check:
    """The servers' own words about their config are what was asked for."""
    servers = outcome.summary["context"]["servers"]
    asked = [None, *CANDIDATES]
    told = [server["version"].get("speculative_config") for server in servers.values()]
    same = [
        not resolved if config is None else all(config.get(key) == value for key, value in (resolved or {}).items())
        for config, resolved in zip(asked, told, strict=True)
    ]
    counts = [server["started"]["counts_drafts"] for server in servers.values()]
    return Check(
        name="config as resolved", holds=all(same) and counts == [False, True, True], seen=f"{told[1:]}, {counts}"
    )


def check_acceptance(outcome: Outcome) -> Check:
    """Acceptance lengths are the drafters'."""
    found = {row["candidate"].split()[0]: row["mean_acceptance_length"] for row in measured_cells(outcome)}
    holds = all(low < (found[method] or 0) < high for method, (low, high) in ACCEPTANCE.items())
    return Check(
        name="acceptance of the drafters", holds=holds, seen=", ".join(f"{k} {v:.2f}" for k, v in found.items())
    )


def check_per_request(outcome: Outcome) -> Check:
    """What requests say about their own drafts adds up to the server's counters, where none was withdrawn (c=1)."""
    alone = [turn for turn in outcome.turns if turn["condition"] == "c=1" and turn["arm"] != "plain"]
    counted = sum(turn["counters"]["spec"]["num_accepted_tokens"] for turn in alone)
    numbers = {turn["turn"] for turn in alone}
    told = sum(
        accepted * steps
        for row in outcome.requests
        if row["turn"] in numbers
        for accepted, steps in enumerate(row.get("acceptance") or ())
    )
    return Check(name="requests add up to counters", holds=told == counted > 0, seen=f"{told} and {counted} accepted")


def check_histogram(outcome: Outcome) -> Check:
    """Acceptance by temperature is a histogram over requests, told by the server."""
    rows = outcome.summary["acceptance"]
    holds = len(rows) == len(CANDIDATES) and all(row["source"] == "server" for row in rows)
    seen = ", ".join(f"{row['candidate']} P50 {row['tokens_per_step']['p50']:.2f}" for row in rows)
    return Check(name="acceptance per request", holds=holds, seen=seen)


def check_report(outcome: Outcome) -> Check:
    """The report names every arm, and its context is complete."""
    arms = [arm["name"] for arm in outcome.summary["arms"]]
    absent = [arm for arm in arms if arm not in outcome.report]
    missing = outcome.summary["missing_context"]
    return Check(name="report and context", holds=not absent and not missing, seen=f"lacks {absent + list(missing)}")


def check_guards(outcome: Outcome) -> Check:
    """The guards ran, and none says what is false of these servers."""
    codes = sorted({finding["code"] for finding in all_findings(outcome)})
    bad = WRONG & set(codes)
    return Check(name="guards", holds=not bad, seen=", ".join(codes) or "nothing to say")


def check_gone(outcome: Outcome) -> Check:
    """No server outlives the run."""
    left = []
    for name, server in outcome.summary["context"]["servers"].items():
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", urlsplit(server["url"]).port or 0)) == 0:
                left.append(name)
    return Check(name="nothing left running", holds=not left, seen=", ".join(left) or "nothing")


CHECKS: tuple[Callable[[Outcome], Check], ...] = (
    check_verdicts,
    check_requests,
    check_equal,
    check_resolved,
    check_acceptance,
    check_per_request,
    check_histogram,
    check_report,
    check_guards,
    check_gone,
)


def measured_cells(outcome: Outcome) -> list[Mapping[str, Any]]:
    """Return the comparisons of one workload under one load."""
    return [row for row in outcome.summary["comparisons"] if row["workload"] == "code"]


def all_findings(outcome: Outcome) -> Iterator[Mapping[str, Any]]:
    """Yield the findings of the run and of its cells."""
    yield from outcome.summary["findings"]
    for row in measured_cells(outcome):
        yield from row["findings"]


def show(outcome: Outcome, checks: Sequence[Check]) -> None:
    """Print the checks."""
    table = Table("check", "", "seen", title=outcome.summary["decision"])
    for check in checks:
        table.add_row(check.name, "ok" if check.holds else "FAILED", check.seen)
    Console().print(table)


def record(outcome: Outcome, checks: Sequence[Check]) -> dict[str, Any]:
    """Return what is kept, with what it depends on."""
    summary = outcome.summary
    servers = summary["context"]["servers"]
    keys = ("candidate", "condition", "verdict", "speedup", "throughput", "mean_acceptance_length")
    keys += ("acceptance_per_position", "tokens_per_step", "equal_outputs")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "draftwise": __version__,
        "vllm": servers["plain"]["version"]["version"],
        "python": platform.python_version(),
        "hardware": summary["context"]["hardware"],
        "load_average": round(os.getloadavg()[0], 1),
        "commands": dict(commands(servers)),
        "request_parameters": summary["request_parameters"],
        "num_requests": summary["num_requests"],
        "wall_s": round(outcome.wall_s),
        "started": {name: server["started"] for name, server in servers.items()},
        "checks": [asdict(check) for check in checks],
        "decision": summary["decision"],
        "cells": [{key: row[key] for key in keys} for row in measured_cells(outcome)],
        "findings": sorted({f"{finding['severity']} {finding['code']}" for finding in all_findings(outcome)}),
    }


def commands(servers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each arm's command from the name of the program on: where it lies is this machine's business."""
    for name, server in servers.items():
        program, *rest = server["command"].split(" ")
        yield name, " ".join([Path(program).name, *rest])


if __name__ == "__main__":
    main()
