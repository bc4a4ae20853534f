"""Our kernels and captured steps under compute-sanitizer: out-of-bounds accesses, and races in shared memory.

    python benchmarks/h200/sanitize.py --out benchmarks/h200/results/sanitize.json

The parts run one after the other, each under one tool:
  kernels        the tests of the CUDA kernels on small shapes; every tensor is an allocation of its own, so that a step
                 beyond its end is seen
  captured       methods of the bundle (`--methods`) replayed from CUDA graphs; torch's allocator then holds larger
                 blocks, which hides small steps
  eager          the same without CUDA graphs, each tensor an allocation of its own
  kernels-races  the tests again, under racecheck
Triton compiles before the tool watches: each part runs once without it first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

_SUMMARY = re.compile(r"(?:ERROR SUMMARY|RACECHECK SUMMARY): (\d+) (?:error|hazard)")
_OWN_ALLOCATIONS = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something to run under a tool."""

    tool: str
    command: tuple[str, ...]
    env: dict[str, str]
    share: float
    """Of the time that is left, if other parts follow."""


def parts(methods: list[str], processes: int) -> dict[str, Part]:
    """Return the parts in order of importance. Tests of kernels in more than one process need pytest-xdist."""
    split = ("-n", str(processes)) if processes > 1 else ()
    tests = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *split, "tests/engine/kernels")
    work = (sys.executable, str(Path(__file__)), "work", "--methods", *methods)
    on_cuda = {"DRAFTWISE_TEST_DEVICE": "cuda"}
    return {
        "kernels": Part(tool="memcheck", command=tests, env=on_cuda | _OWN_ALLOCATIONS, share=0.4),
        "captured": Part(tool="memcheck", command=work, env={}, share=0.5),
        "eager": Part(tool="memcheck", command=(*work, "--eager"), env=_OWN_ALLOCATIONS, share=0.6),
        "kernels-races": Part(tool="racecheck", command=tests, env=on_cuda, share=1.0),
    }


def run_part(name: str, part: Part, logs: Path, seconds: float) -> dict[str, Any]:
    """Run a part without the tool, then under it; return what the tool found."""
    began = time.monotonic()
    env = os.environ | part.env
    try:
        warm = subprocess.run(part.command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=seconds / 2)
    except subprocess.TimeoutExpired:
        return {"part": name, "tool": part.tool, "outcome": "out of time before the tool"}
    log = logs / f"{name}.%p.log"  # one for each process
    tool = ["compute-sanitizer", "--tool", part.tool, "--target-processes", "all", "--report-api-errors", "no"]
    command = [*tool, "--print-limit", "30", "--log-file", str(log), *part.command]
    left = seconds - (time.monotonic() - began)
    outcome: dict[str, Any] = {"part": name, "tool": part.tool, "exit_code_without_tool": warm.returncode}
    outcome |= {"seconds_without_tool": round(seconds - left, 1)}
    if warm.returncode:
        outcome["end_without_tool"] = (warm.stdout + warm.stderr)[-1500:]
    try:
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=left)
        outcome |= {"outcome": "ran", "exit_code": done.returncode, "end": done.stdout[-300:]}
    except subprocess.TimeoutExpired:
        outcome |= {"outcome": "out of time"}
    return outcome | {"seconds": round(time.monotonic() - began, 1)} | read_logs(logs, name)


def read_logs(logs: Path, name: str) -> dict[str, Any]:
    """Return the number of errors that the tool counted in all processes, and the first of them."""
    text = "".join(log.read_text(errors="replace") for log in sorted(logs.glob(f"{name}.*.log")))
    counts = [int(found) for found in _SUMMARY.findall(text)]
    lines = [line.removeprefix("========= ").strip() for line in text.splitlines()]
    told = re.compile(r"Invalid|Race|hazard|Uninit|Misaligned| at .+\+0x")
    shown = [line for line in lines if told.search(line) and "SUMMARY" not in line]
    return {"errors": sum(counts) if counts else None, "first": shown[:20]}


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
    parser.add_argument("--parts", nargs="+", choices=tuple(parts([], 1)), help="in place of all")
    parser.add_argument("--methods", nargs="+", default=["plain", "ngram", "draft_model", "eagle3", "mtp", "dflash"])
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--processes", type=int, default=1, help="for the tests of kernels")
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
    known = parts(args.methods, args.processes)
    wanted = [name for name in known if not args.parts or name in args.parts]
    for name in wanted:
        left = args.seconds - (time.monotonic() - began)
        share = 1.0 if name == wanted[-1] else known[name].share
        with TemporaryDirectory() as logs:
            found.append(run_part(name, known[name], Path(logs), left * share))
        print(json.dumps({key: value for key, value in found[-1].items() if not key.startswith("end")}), flush=True)
        args.out.write_text(json.dumps(about | {"parts": found}, indent=1) + "\n")
    sys.exit(any(part.get("errors") != 0 or part.get("exit_code") for part in found))


if __name__ == "__main__":
    main()
