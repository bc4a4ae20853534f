"""The first load after a start beside the same load later: what a server still has to do once it says that it is ready.

    python benchmarks/h200/first_load.py --scale 8b 1.5b --out benchmarks/h200/results/first_load.json --commit COMMIT
    python benchmarks/h200/first_load.py --scale tiny --device cpu --out /tmp/first_load.json

`draftwise serve` starts twice with one folder of kernels: empty, then filled. Each time: seconds until `/health` says
ready and what they were spent on, then three loads of 192 requests, 64 at a time (512 tokens in, 128 out, random
prompts, streamed). With vLLM not beside it, the first load is held against the mean of the later two: output tokens/s
and the 99th percentile of the time to first token. No kernel may be compiled after the server is ready: the folder
tells, and so does the server's log. Weights are random, in the shapes of shapes.py.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cases import CASES, spec_config
from http_load import Load, Server, run_load
from record import machine
from shapes import SCALES, write_folders, write_tokenizer

from draftwise import __version__
from draftwise.engine.kernel_cache import count_kernels

GOALS = {"cold_ready_s": 20.0, "filled_ready_s": 8.0, "tokens_per_s_ratio": 0.95, "ttft_p99_ratio": 1.2}
_START_S = 150
_PHASE = re.compile(r"^(.+): (\d+\.\d) s$", re.MULTILINE)
_LATE = "was compiled while requests waited"


LOADS = {"cuda": Load(192, 64, (512, 512), (128, 128)), "cpu": Load(12, 4, (32, 32), (16, 16))}
LIMITS = {
    "cuda": {"max_num_seqs": 128, "max_num_batched_tokens": 8192, "max_model_len": 4096},
    "cpu": {"max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 128},
}
"""Of the server, by device."""


def start(target: Path, kernels: Path, device: str, spec: dict[str, Any] | None, *, by_default: bool) -> Server:
    """Start `draftwise serve` on a folder of kernels."""
    command = [sys.executable, "-m", "draftwise", "serve", str(target), "--load-format", "dummy"]
    command += ["--device", device, "--dtype", "bfloat16", "--served-model-name", "m", "--no-enable-prefix-caching"]
    command += () if by_default else ("--kernel-cache", str(kernels))
    for name, value in LIMITS[device].items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    if device == "cuda":
        command += ["--gpu-memory-utilization", "0.8"]
    if spec:
        command += ["--speculative-config", json.dumps(spec)]
    log = kernels.with_name(f"{time.time_ns()}.log")
    return Server(command, log, {"TRITON_CACHE_DIR": str(kernels)})  # which --kernel-cache sets itself


def measure_start(name: str, server: Server, kernels: Path, load: Load, vocab: int, loads: int) -> dict[str, Any]:
    """Return the row of a start: until it is ready, and the loads after it."""
    ready_s = server.wait(_START_S)
    phases = {phase: float(seconds) for phase, seconds in _PHASE.findall(server.log())}
    num_kernels, num_bytes = count_kernels(kernels)
    rows = [run_load(server.port, load, vocab, seed) for seed in range(1, loads + 1)]
    later = rows[1:]
    steady_rate = statistics.fmean(row["tokens_per_s"] for row in later)
    steady_p99 = statistics.fmean(row["ttft_ms"]["p99"] for row in later)
    log = server.log()
    return {
        "start": name,
        "ready_s": round(ready_s, 2),
        "phases_s": phases,
        "kernels_when_ready": num_kernels,
        "folder_mib": round(num_bytes / 2**20, 1),
        "compiled_after_ready": count_kernels(kernels)[0] - num_kernels,
        "named_in_the_log": [line[:200] for line in log.splitlines() if _LATE in line][:20],
        "log": [line[:200] for line in log.splitlines() if "compile ahead" in line or "WARNING" in line][:10],
        "tokens_per_s_ratio": round(rows[0]["tokens_per_s"] / steady_rate, 4),
        "ttft_p99_ratio": round(rows[0]["ttft_ms"]["p99"] / steady_p99, 4),
        "loads": rows,
    }


def judge(rows: Sequence[dict[str, Any]]) -> dict[str, bool]:
    """Return which goals the starts of a scale reach."""
    found = {}
    for row in rows:
        name = row["start"]
        found[f"{name}: ready in time"] = row["ready_s"] <= GOALS[f"{name}_ready_s"]
        found[f"{name}: tokens/s"] = row["tokens_per_s_ratio"] >= GOALS["tokens_per_s_ratio"]
        found[f"{name}: TTFT P99"] = row["ttft_p99_ratio"] <= GOALS["ttft_p99_ratio"]
        found[f"{name}: nothing compiled late"] = row["compiled_after_ready"] == 0 and not row["named_in_the_log"]
    return found


def about(args: argparse.Namespace) -> dict[str, Any]:
    """Return where and how the run takes place."""
    versions = {"draftwise": __version__}
    for package in ("torch", "triton", "numba"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return machine() | {"commit": args.commit, "versions": versions, "case": args.case, "goals": GOALS}


def main() -> None:
    """Measure each scale; what is known is on disk after every start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, nargs="+", default=["8b", "1.5b"])
    parser.add_argument("--case", choices=CASES, default="plain")
    parser.add_argument("--device", choices=LOADS, default="cuda")
    parser.add_argument("--by-default", action="store_true", help="no --kernel-cache: Triton keeps kernels as it does")
    parser.add_argument("--loads", type=int, default=3, help="after each start; at least 2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    load = LOADS[args.device]
    content: dict[str, Any] = {"about": about(args), "load": load._asdict() | LIMITS[args.device], "scales": {}}
    for scale_name in args.scale:
        scale = SCALES[scale_name]
        root = Path(tempfile.mkdtemp(prefix=f"first-load-{scale_name}-"))
        try:
            folders = write_folders(root, scale)
            write_tokenizer(folders.target, scale.target["vocab_size"])
            kernels, spec = root / "kernels", spec_config(CASES[args.case], folders)
            rows: list[dict[str, Any]] = []
            for name in ("cold", "filled"):
                with start(folders.target, kernels, args.device, spec, by_default=args.by_default) as server:
                    row = measure_start(name, server, kernels, load, scale.target["vocab_size"], max(2, args.loads))
                rows.append(row)
                content["scales"][scale_name] = {"starts": rows, "reached": judge(rows)}
                args.out.write_text(json.dumps(content, indent=1) + "\n")
                short = {key: value for key, value in row.items() if key != "loads"}
                print(scale_name, json.dumps(short), flush=True)
                for each in row["loads"]:
                    print(f"  {json.dumps(each)}", flush=True)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({name: each["reached"] for name, each in content["scales"].items()}, indent=1))


if __name__ == "__main__":
    main()
