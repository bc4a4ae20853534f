"""Real vLLM 0.26.0 under draftwise's own sweep, twice: where does each method stop paying, and is that found again?

    python benchmarks/h200/measure_vllm.py run --vllm-python PYTHON --out OUT --commit $(git rev-parse HEAD) --seeds 1
    python benchmarks/h200/measure_vllm.py table OUT1/measure_vllm.json OUT2/measure_vllm.json --out MERGED.json

Each run is one `draftwise decide TARGET --engine vllm ...`, from starting the servers to the report; runs differ in
their seeds, and so in prompts, order and draws of acceptance. README.md says how the time is spent.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cases import CASES, spec_config
from record import about, command_line, result_file
from shapes import SCALES, Folders, Scale, write_folders, write_tokenizer

from draftwise.core import Comparison, Crossover, Decision, Interval
from draftwise.core.documents import to_json
from draftwise.deciding.conclusions import conclude_run
from draftwise.reporting.conditions import describe_unmeasured
from draftwise.reporting.sentences import describe_decision
from draftwise.runs import RunDirectory

NO_END = "inf"


def as_rows(decision: Decision) -> dict[str, Any]:
    """Return what is kept of a decision beside its whole summary."""
    return {
        "sentence": describe_decision(decision),
        "unmeasured": describe_unmeasured(decision),
        "crossovers": [_crossover(each) for each in decision.crossovers],
        "cells": [_cell(each) for each in decision.comparisons],
    }


def _crossover(each: Crossover) -> dict[str, Any]:
    row = {name: getattr(each, name) for name in ("candidate", "value", "low", "high", "adopt_below")}
    return {name: _rounded(value) for name, value in row.items()}


def _cell(each: Comparison) -> dict[str, Any]:
    ratio, length = each.throughput or each.speedup, each.counters.spec.acceptance_length
    row = {"candidate": each.candidate, "condition": each.condition.label, "verdict": str(each.verdict)}
    row |= {"passes": len(each.repetitions), "acceptance_length": length}
    row |= {"speedup": each.speedup.value, "speedup_low": each.speedup.low, "speedup_high": each.speedup.high}
    row |= {"throughput": ratio.value, "throughput_low": ratio.low, "throughput_high": ratio.high}
    row |= {"ttft": each.ttft and each.ttft.value}
    return {name: _rounded(value) for name, value in row.items()}


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) and math.isfinite(value) else value


def merged(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return results as one, with the verdict on the first two runs: did each find the crossovers of the other?"""
    runs = [run for result in results for run in result["runs"]]
    found = [run["crossovers"] for run in runs if "crossovers" in run]
    again = list(compare_crossovers(found[0], found[1])) if len(found) > 1 else []
    loaded = list({json.dumps(each): each for result in results for each in result.get("loaded", ())}.values())
    return {"about": results[0]["about"], "found_again": again, "loaded": loaded, "runs": runs}


def write(path: Path, content: dict[str, Any], *, hide: str = "") -> None:
    """Write a result; infinity becomes a text, and the folder of the runs a name."""
    text = json.dumps(content, indent=1, default=str).replace("Infinity", f'"{NO_END}"')
    path.write_text((text.replace(hide, "RUNS") if hide else text) + "\n")


def compare_crossovers(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield, for each candidate of both runs, whether each run's crossover lies in the other's interval."""
    for one in first:
        for other in second:
            if one["candidate"] == other["candidate"]:
                yield {
                    "candidate": one["candidate"],
                    "first": [one[name] for name in ("low", "value", "high")],
                    "second": [other[name] for name in ("low", "value", "high")],
                    "second_in_first": _lies_in(other, one),
                    "first_in_second": _lies_in(one, other),
                }


def _lies_in(found: dict[str, Any], interval: dict[str, Any]) -> bool:
    """Whether a crossover lies in an interval; one beyond the largest load only in an interval without an end."""
    ends = (NO_END, math.inf)
    low, high = interval["low"], math.inf if interval["high"] in ends else interval["high"]
    if found["value"] is None:
        beyond = found["high"] in ends
        return high == math.inf if beyond else interval["value"] is None and high < math.inf
    return bool(low <= found["value"] <= high)


def as_table(content: dict[str, Any]) -> str:
    """Return the speed-ups of all runs and the crossovers as Markdown."""
    lines = []
    for run in content["runs"]:
        labels = list(dict.fromkeys(cell["condition"] for cell in run.get("cells", ())))
        labels.sort(key=lambda label: int("".join(filter(str.isdigit, label)) or 0))
        lines += ["", f"seed {run['seed']}: {run.get('sentence', 'nothing measured')}", ""]
        lines += [f"| candidate | {' | '.join(labels)} | crossover |", "|---" * (len(labels) + 2) + "|"]
        crossovers = {each["candidate"]: "{low}..{value}..{high}".format(**each) for each in run.get("crossovers", ())}
        for candidate in dict.fromkeys(cell["candidate"] for cell in run.get("cells", ())):
            cells = {cell["condition"]: cell for cell in run["cells"] if cell["candidate"] == candidate}
            shown = [_shown(cells.get(label)) for label in labels]
            lines.append(f"| {candidate} | {' | '.join(shown)} | {crossovers.get(candidate, '-')} |")
    return "\n".join([*lines, "", *(json.dumps(each) for each in content.get("found_again", ()))])


def _shown(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "-"
    value, low, high = (float(cell[key]) for key in ("speedup", "speedup_low", "speedup_high"))
    return f"{value:.2f} ({Interval(value=value, low=low, high=high).span}) {cell['verdict']}"


SERVE = os.path.relpath(Path(__file__).parent / "vllm_serve.py")
RESULT = "measure_vllm.json"
GRACE_S = 60
"""For a run that is told to end: its servers go down and the report is written."""
PACKING_S = 25
"""What is left at the end for packing the readings."""


def command(args: argparse.Namespace, folders: Folders, seed: int, minutes: float, out: Path) -> list[str]:
    """Return the `draftwise decide` of a run."""
    synthetic = args.acceptance == "synthetic"
    drawn: dict[str, Any] = {"synthetic": synthetic, "acceptance": args.token_acceptance}
    configs = {name: spec_config(CASES[name], folders, **drawn) for name in args.cases}
    workload = f"synthetic:prompt={args.prompt_tokens},output={args.output_tokens},n={args.prompts}"
    words = [sys.executable, "-m", "draftwise", "decide", str(folders.target), "--engine", "vllm"]
    words += ["--vllm", f"{args.vllm_python} {SERVE}", "--serve-args", shlex.join(serve_args(args))]
    for name, config in configs.items():
        words += ["--candidate", f"{name}={json.dumps(config)}"]
    words += ["--workload", f"{workload},source=code,seed={seed},name=code"]
    words += ["--concurrency", ",".join(map(str, args.concurrency)), "--repeats", str(args.repeats)]
    words += ["--minutes", f"{minutes:.2f}", "--seed", str(seed), "--out", str(out)]
    return [*words, "--context", f"model={args.scale} shape of shapes.py, dummy weights", *shlex.split(args.more)]


def serve_args(args: argparse.Namespace, spare: float = 1.25) -> list[str]:
    """Return what all servers are started with; everything else is vLLM's default.

    Args:
        args: of the command line.
        spare: times the cache that the largest load needs.
    """
    most = max(args.concurrency)
    words = ["--load-format", "dummy_without_files", "--dtype", args.dtype, "--max-num-seqs", str(most)]
    words += ["--max-model-len", str(SCALES[args.scale].max_model_len), "--generation-config", "vllm"]
    # A fixed cache lets all servers start side by side: none has to measure what memory the others leave.
    return [*words, "--kv-cache-memory-bytes", str(kv_bytes(args, spare)), *shlex.split(args.serve_args)]


def kv_bytes(args: argparse.Namespace, spare: float = 1.25) -> int:
    """Return a cache that holds the largest load in full, of the arm with the most layers, and a share more."""
    config, scale = SCALES[args.scale].target, SCALES[args.scale]
    layers = config["num_hidden_layers"] + len(scale.dflash_aux_layers)
    per_token = 2 * layers * config["num_key_value_heads"] * config["head_dim"] * (4 if args.dtype == "float32" else 2)
    tokens = args.prompt_tokens + args.output_tokens + 64  # drafts, and blocks that are not full
    return round(spare * max(args.concurrency) * tokens * per_token)


class Runs:
    """The runs of one sitting, with a deadline."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.ends = time.monotonic() + args.seconds
        self.work = args.folders / f"runs-{os.getpid()}"
        self.loaded = self.work / "loaded.jsonl"
        drawn = {"acceptance": args.token_acceptance} if args.acceptance == "synthetic" else {}
        self.content: dict[str, Any] = {"about": about(args) | drawn, "runs": []}

    def run(self) -> None:
        """Measure, write down what came out after each run, and pack the readings."""
        args = self.args
        scale: Scale = SCALES[args.scale]
        folders = write_folders(args.folders / args.scale, scale)
        write_tokenizer(folders.target, scale.target["vocab_size"])
        self.work.mkdir(parents=True)
        for number, seed in enumerate(args.seeds, 1):
            left_s = self.ends - time.monotonic() - PACKING_S
            self._measure(number, seed, folders, left_s / (len(args.seeds) - number + 1) - GRACE_S)
            self._save()
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._pack, range(1, len(args.seeds) + 1)))

    def _measure(self, number: int, seed: int, folders: Folders, seconds: float) -> None:
        out = self.work / f"run-{number}"
        words = command(self.args, folders, seed, max(0.5, seconds / 60), out)
        began, print_to = time.monotonic(), self.args.out / f"run-{number}.log"
        print(f"[{self._clock()}] run {number}: {shlex.join(words)}", flush=True)
        with print_to.open("wb") as log:
            environment = {**os.environ, "LOADED_MODELS": str(self.loaded)}
            child = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environment)
            status = end_after(child, seconds)
        print(f"[{self._clock()}] run {number} ended with {status} after {time.monotonic() - began:.0f} s", flush=True)
        print(print_to.read_text(errors="replace")[-3000:], flush=True)
        row = {"seed": seed, "command": shlex.join(["python", *words[1:]]), "status": status}
        row["seconds"] = round(time.monotonic() - began, 1)
        if (out / "manifest.json").exists():
            run = RunDirectory(out).read()
            row |= {"added": [each.label for each in run.added], "servers": to_json(run.context)["servers"]}
            row |= as_rows(conclude_run(run).decision)
            for name in ("summary.json", "report.html"):
                if (out / name).exists():
                    shutil.copy(out / name, self.args.out / f"run-{number}.{name}")
        self.content["runs"].append(row)

    def _save(self) -> None:
        if self.loaded.exists():
            notes = {json.dumps(json.loads(line)) for line in self.loaded.read_text().splitlines()}
            self.content["loaded"] = [json.loads(each) for each in sorted(notes)]
        write(self.args.out / RESULT, merged([self.content]), hide=str(self.work))
        print(as_table(merged([self.content])), flush=True)

    def _pack(self, number: int) -> None:
        """Keep the raw readings of a run, as far as the time allows."""
        folder = self.work / f"run-{number}"
        if folder.is_dir():
            with tarfile.open(self.args.out / f"run-{number}.tar.xz", "w:xz", preset=2) as tar:
                tar.add(folder, arcname=folder.name)

    def _clock(self) -> str:
        return f"{self.args.seconds - (self.ends - time.monotonic()):.0f} s"


def end_after(child: subprocess.Popen[bytes], seconds: float) -> int:
    """Return the status of a process that is told to end after some time, and made to after some more."""
    for which, patience_s in ((signal.SIGTERM, seconds), (signal.SIGKILL, GRACE_S)):
        try:
            return child.wait(max(1.0, patience_s))
        except subprocess.TimeoutExpired:
            child.send_signal(which)
    return child.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    run = modes.add_parser("run", help="measure")
    run.add_argument("--vllm-python", type=command_line, required=True, help="command line of a Python that has vLLM")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--commit", default="unknown")
    run.add_argument("--seconds", type=float, default=560, help="for everything")
    run.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="one run each")
    run.add_argument("--cases", nargs="+", default=["eagle3-k3", "dflash-k7", "ngram-k5"],
                     choices=[name for name, case in CASES.items() if case.spec])  # fmt: skip
    run.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 32, 64, 128])
    run.add_argument("--repeats", type=int, default=3)
    run.add_argument("--prompts", type=int, default=12)
    run.add_argument("--prompt-tokens", type=int, default=128)
    run.add_argument("--output-tokens", type=int, default=64)
    run.add_argument("--scale", choices=SCALES, default="8b")
    run.add_argument("--dtype", default="bfloat16")
    run.add_argument(
        "--token-acceptance", type=float, default=0.5, help="drawn: share of draft tokens that are accepted"
    )
    run.add_argument("--acceptance", choices=("synthetic", "real"), default="synthetic")
    run.add_argument("--serve-args", default="", help="more for `vllm serve`")
    run.add_argument("--more", default="", help="more for `draftwise decide`")
    run.add_argument("--folders", type=Path, default=Path("/dev/shm/draftwise-bench"))
    table = modes.add_parser("table", help="print the table of a result")
    table.add_argument("results", type=result_file, nargs="+", help="of one or several sittings")
    table.add_argument("--out", type=Path, help="write them as one")
    args = parser.parse_args()
    if args.mode == "table":
        content = merged([json.loads(path.read_text()) for path in args.results])
        print(as_table(content))
        if args.out:
            write(args.out, content)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    Runs(args).run()


if __name__ == "__main__":
    main()
