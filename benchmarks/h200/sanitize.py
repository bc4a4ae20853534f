"""Our kernels and captured steps under compute-sanitizer: out-of-bounds accesses, and races in shared memory.

    python benchmarks/h200/sanitize.py --out benchmarks/h200/results/sanitize.json

The parts run one after the other, each under one tool:
  kernels        the tests of the CUDA kernels on small shapes; every tensor is an allocation of its own, so that a step
                 beyond its end is seen
  captured       methods of the bundle (`--methods`) replayed from CUDA graphs; torch's allocator then holds larger
                 blocks, which hides small steps
  eager          the same without CUDA graphs, each tensor an allocation of its own
  kernels-races  the tests again, under racecheck
  partitions     only where it is asked for: partitions that share nothing but barriers, under racecheck, to see what it
                 reports of Triton's part of `warp_specialize`
Each test function, or `--cases` of its parameters, has a process of its own, as many side by side as there are cores:
the tool works on one processor, and what the time cuts off is not lost for the others. Triton compiles before the tool
watches: each runs once without it first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

_SUMMARY = re.compile(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+) (?:error|hazard)")
_REPEATED = re.compile(r"\+0x[0-9a-f]+| \[\d+ hazards\]")  # what differs between reports of one place
_UNUSED = "Target application terminated before first instrumented API call"
_OWN_ALLOCATIONS = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something to run under a tool."""

    tool: str
    commands: Mapping[str, tuple[str, ...]]
    """Run side by side, by name."""
    env: dict[str, str]
    share: float
    """Of the time that is left, if other parts follow."""


def parts(methods: list[str], tests: Mapping[str, tuple[str, ...]]) -> dict[str, Part]:
    """Return the parts in order of importance."""
    work = (sys.executable, str(Path(__file__)), "work", "--methods", *methods)
    script = str(Path(__file__).parent / "kernels" / "partitions.py")
    apart = {
        f"{what} {registers}": (sys.executable, script, what, "--registers", str(registers))
        for what in ("nothing", "sums", "ring")
        for registers in (24, 168)
    }
    on_cuda = {"DRAFTWISE_TEST_DEVICE": "cuda"}
    return {
        "kernels": Part(tool="memcheck", commands=tests, env=on_cuda | _OWN_ALLOCATIONS, share=0.4),
        "captured": Part(tool="memcheck", commands={"": work}, env={}, share=0.5),
        "eager": Part(tool="memcheck", commands={"": (*work, "--eager")}, env=_OWN_ALLOCATIONS, share=0.6),
        "kernels-races": Part(tool="racecheck", commands=tests, env=on_cuda, share=1.0),
        "partitions": Part(tool="racecheck", commands=apart, env={}, share=1.0),
    }


def collect(selected: str, cases: int) -> dict[str, tuple[str, ...]]:
    """Return the command for each test of the kernels that pytest's -k selects, in groups of so many cases.

    Raises:
        ValueError: it selects none, or the tests cannot be collected.
    """
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    files = [str(file.relative_to(ROOT)) for file in sorted((ROOT / "tests/engine/kernels").glob("test_cuda_*.py"))]
    env = os.environ | {"DRAFTWISE_TEST_DEVICE": "cuda"}
    listing = (*pytest, "--collect-only", "-k", selected, *files)
    listed = subprocess.run(listing, env=env, cwd=ROOT, text=True, capture_output=True)
    if listed.returncode:
        raise ValueError(f"there are no tests {selected!r}: {(listed.stdout + listed.stderr).strip()[-300:]}")
    ids = [line for line in listed.stdout.splitlines() if "::" in line]
    commands = dict[str, tuple[str, ...]]()
    for function, members in groupby(ids, lambda each: each.split("[")[0]):
        file, name = function.split("::")
        stem = Path(file).stem.removeprefix("test_cuda_")
        waiting = list(members)
        for first in range(0, len(waiting), cases):
            commands[f"{stem} {name} {first}"] = (*pytest, *waiting[first : first + cases])
    return commands


def run_part(name: str, part: Part, seconds: float) -> list[dict[str, Any]]:
    """Run each command of a part without the tool, then under it; return what the tool found in each."""
    env = os.environ | part.env
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(os.cpu_count()) as pool, TemporaryDirectory() as logs:
        waiting = [
            pool.submit(_run, f"{name} {of}".strip(), part.tool, command, env, Path(logs), until)
            for of, command in part.commands.items()
        ]
        return [each.result() for each in waiting]


def _run(
    name: str, tool: str, command: tuple[str, ...], env: Mapping[str, str], logs: Path, until: float
) -> dict[str, Any]:
    began = time.monotonic()
    outcome: dict[str, Any] = {"part": name, "tool": tool}
    half = max((until - began) / 2, 0)
    try:
        exit_code, end = _call(command, env, half)
    except subprocess.TimeoutExpired:
        return outcome | {"outcome": "out of time before the tool"}
    stem = name.replace(" ", "-")
    log = logs / f"{stem}.%p.log"  # one for each process
    watched = ["compute-sanitizer", "--tool", tool, "--target-processes", "all", "--report-api-errors", "no"]
    watched += ["--print-limit", "1000", "--show-backtrace", "device", "--log-file", str(log), *command]
    left = until - time.monotonic()
    outcome |= {"exit_code_without_tool": exit_code, "seconds_without_tool": round(until - left - began, 1)}
    if exit_code:
        outcome["end_without_tool"] = end[-1500:]
    try:
        exit_code, end = _call(watched, env, left)
        outcome |= {"outcome": "ran", "exit_code": exit_code, "end": end[-300:]}
    except subprocess.TimeoutExpired:
        outcome |= {"outcome": "out of time"}
    found = read_logs(logs, stem)
    if outcome["outcome"] == "ran" and found["errors"] is None and _UNUSED in "".join(found["first"]):
        outcome |= {"outcome": "used no GPU"}
    return outcome | {"seconds": round(time.monotonic() - began, 1)} | found


def _call(command: Sequence[str], env: Mapping[str, str], seconds: float) -> tuple[int, str]:
    """Return exit code and output of a command; ends it and what it started when the time is over."""
    out, err = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(
        command, env=env, cwd=ROOT, text=True, start_new_session=True, stdout=out, stderr=err
    ) as child:
        try:
            output, _ = child.communicate(timeout=max(seconds, 0))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            raise
        return child.returncode, output


def read_logs(logs: Path, name: str) -> dict[str, Any]:
    """Return how many errors the tool counted in all processes (None where none used a GPU), and the first places."""
    text = "".join(log.read_text(errors="replace") for log in sorted(logs.glob(f"{name}.*.log")))
    counts = [int(found) for found in _SUMMARY.findall(text)]
    lines = [line.removeprefix("========= ").strip() for line in text.splitlines()]
    told = re.compile(rf"Invalid|Race|hazard|Uninit|Misaligned| at .+\+0x|{_UNUSED}")
    places = [_REPEATED.sub("", line) for line in lines if told.search(line) and "SUMMARY" not in line]
    return {"errors": sum(counts) if counts else None, "first": list(dict.fromkeys(places))[:20]}


def work(methods: list[str], *, eager: bool) -> None:
    """Decode a few tokens with every method, greedy and sampled, so that every kind of step runs."""
    from greedy_equality import METHODS

    from draftwise import LLM, SamplingParams

    prompts = [{"prompt_token_ids": [(7 * i * j + 300) % 4000 for j in range(20 + 9 * i)]} for i in range(3)]
    settings = {"device": "cuda", "max_model_len": 256, "max_num_seqs": 4, "num_gpu_blocks_override": 64}
    mixed = [
        SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
        SamplingParams(temperature=0.8, top_p=0.9, top_k=40, seed=1, max_tokens=12, ignore_eos=True),
        SamplingParams(temperature=1.0, repetition_penalty=1.2, logprobs=2, seed=2, max_tokens=8, ignore_eos=True),
    ]
    for method in methods:
        folder = ROOT / "bundle" / method
        spec = None if method == "plain" else METHODS[method] | ({"model": str(folder)} if folder.is_dir() else {})
        llm = LLM(str(ROOT / "bundle/target"), speculative_config=spec, enforce_eager=eager, **settings)
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
        llm.generate(prompts, mixed)
        print(method, "ran", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("all", "work"), nargs="?", default="all")
    parser.add_argument("--parts", nargs="+", choices=tuple(parts([], {})), help="in place of all but partitions")
    parser.add_argument("--tests", default="", help="of the kernels, as for pytest's -k")
    parser.add_argument("--cases", type=int, default=50, help="of a test's parameters, most in one process")
    parser.add_argument("--methods", nargs="+", default=["plain", "ngram", "draft_model", "eagle3", "mtp", "dflash"])
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--out", type=Path, default=Path("sanitize.json"))
    args = parser.parse_args()
    if args.mode == "work":
        work(args.methods, eager=args.eager)
        return
    if shutil.which("compute-sanitizer") is None:
        parser.error("there is no program compute-sanitizer")
    began, found = time.monotonic(), list[dict[str, Any]]()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    version = subprocess.run(["compute-sanitizer", "--version"], capture_output=True, text=True).stdout.split("\n")
    about = {"date": date.today().isoformat(), "command": " ".join(["python", *sys.argv]), "tool": version[-2:]}
    try:
        tests = collect(args.tests, args.cases)
    except ValueError as error:
        parser.error(str(error))
    known = parts(args.methods, tests)
    wanted = [name for name in known if name in (args.parts or known.keys() - {"partitions"})]
    for name in wanted:
        left = args.seconds - (time.monotonic() - began)
        for row in run_part(name, known[name], left * (1.0 if name == wanted[-1] else known[name].share)):
            found.append(row)
            print(json.dumps({key: value for key, value in row.items() if not key.startswith("end")}), flush=True)
        args.out.write_text(json.dumps(about | {"parts": found}, indent=1) + "\n")
    watched = [part for part in found if part["outcome"] != "used no GPU"]
    sys.exit(any(part.get("errors") != 0 or part.get("exit_code") for part in watched))


if __name__ == "__main__":
    main()
