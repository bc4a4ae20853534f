"""How exactly draftwise, vLLM, guidellm and aiperf measure a server whose truth is known, and how much they take.

    python benchmarks/cpu/load_accuracy.py --vllm "vllm" --guidellm guidellm --aiperf aiperf \\
        --out benchmarks/cpu/results/load_accuracy.json --svg benchmarks/cpu/results/load_accuracy.svg

The server is `tests.support.fake_server` in a process of its own, at 50 tokens/s a stream. It writes down when each
request reached the machine and when each chunk was handed to its socket; what a tool reports of a request is compared
with that, request by request. For the capacity the fake sends as fast as it can, three times. Tools run one after
another on the same machine, in turns; all of them warm up with one request a stream. Parts that are
in `--work` already are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from load_peers import PEERS, Job, Reading, run_draftwise
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from provenance import provenance, write

from draftwise import __version__
from draftwise.reporting.appearance import PALETTE
from draftwise.reporting.svg import to_svg

ACCURACY = {"first_token_s": 0.05, "step_s": 0.02, "shortest": 0.5}
"""Answers of different lengths, so that the streams do not stay in step."""
FIELDS = {
    "ttft_error_ms": "time to first token",
    "gap_error_ms": "each gap between chunks",
    "itl_error_ms": "mean gap of a request",
}
DRAWN = {"ttft_error_ms": "error of time to first token, ms", "gap_error_ms": "error of a gap between chunks, ms"}
FLOOR_MS = 1e-3
"""Smaller errors are drawn there, as the axis is logarithmic."""
CAPACITY = {"first_token_s": 0.0, "step_s": 0.0}
CAPACITY_STREAMS = 64
CAPACITY_TOKENS = 1000
CAPACITY_ROUNDS = 6
CAPACITY_PARTS = [("capacity", None, f"capacity-{turn}") for turn in (1, 2, 3)]
"""In turns, of which the best counts: what else the machine does can only take away from a capacity."""


def main() -> int:
    """Run every tool that is given, and print the table; 1 when a part failed (run it again: the others are kept)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("vllm", "guidellm", "aiperf"):
        parser.add_argument(f"--{name}", metavar="COMMAND", help="How it is started here; left out, it is not run.")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 64, 512])
    parser.add_argument("--tokens", type=int, default=150, help="Longest answer; 50 a second.")
    parser.add_argument("--rounds", type=int, default=2, help="Measured requests a stream.")
    parser.add_argument("--tokenizer", default="bundle/target", help="Directory with a tokenizer, for the peers.")
    parser.add_argument("--work", type=Path, default=Path("build/load_accuracy"), help="Results of parts, and logs.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--svg", type=Path, help="Figure of the result.")
    parser.add_argument("--draw", type=Path, metavar="RESULT", help="Draw an earlier result and measure nothing.")
    parser.add_argument("--run-draftwise", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run_draftwise:
        run_draftwise(given.run_draftwise)
        return 0
    if given.draw:
        plot(given.draw, given.svg)
        return 0
    commands = {"draftwise": shlex.join([sys.executable, __file__]), "vllm bench serve": given.vllm}
    commands |= {"guidellm": given.guidellm, "aiperf": given.aiperf}
    result = provenance() | {"fake": {"accuracy": ACCURACY, "capacity": CAPACITY}}
    result |= {"tools": [], "accuracy": [], "capacity": []}
    for name, command in commands.items():
        if command:
            result["tools"].append({"name": name, "version": version(name, command), "settings": PEERS[name].settings})
    for part, streams, name in [*(("accuracy", each, str(each)) for each in given.streams), *CAPACITY_PARTS]:
        for tool in result["tools"]:
            row = once(given.work / f"{tool['name'].split()[0]}-{name}", given, streams, tool, commands)
            result[part].append(row)
            print(json.dumps({key: value for key, value in row.items() if key != "command"}), flush=True)
    print(table(result))
    write(result, given.out)
    if given.out and given.svg:
        plot(given.out, given.svg)
    return 1 if any("failure" in row for row in [*result["accuracy"], *result["capacity"]]) else 0


def version(name: str, command: str) -> str:
    """Return the version of a tool."""
    if name == "draftwise":
        return __version__
    said = subprocess.run([*shlex.split(command), *PEERS[name].version], capture_output=True, text=True).stdout
    return said.strip().splitlines()[-1].split()[-1]


def once(
    folder: Path, given: argparse.Namespace, streams: int | None, tool: Mapping[str, str], commands: Mapping[str, str]
) -> dict[str, Any]:
    """Return the row of one tool under one load, from its folder when it is there."""
    kept = folder / "row.json"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            row = measure(folder, given, streams, tool["name"], commands[tool["name"]])
        except (RuntimeError, subprocess.TimeoutExpired, OSError, LookupError) as error:
            return {"tool": tool["name"], "streams": streams or CAPACITY_STREAMS, "failure": f"{error!r}"[:2000]}
        kept.write_text(json.dumps(row))
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def measure(folder: Path, given: argparse.Namespace, streams: int | None, name: str, command: str) -> dict[str, Any]:
    """Run one tool against a fresh fake."""
    script = CAPACITY if streams is None else ACCURACY
    width, tokens = (CAPACITY_STREAMS, CAPACITY_TOKENS) if streams is None else (streams, given.tokens)
    rounds = CAPACITY_ROUNDS if streams is None else given.rounds
    requests = width * (rounds if width > 1 else 3 * rounds)  # a single stream gives few readings a second
    with fake(script) as url:
        prompts = write_prompts(folder / "prompts.jsonl", requests + width, tokens)
        tokenizer = str(Path(given.tokenizer).resolve())
        job = Job(
            url=url,
            streams=width,
            requests=requests,
            tokens=tokens,
            prompts=prompts,
            tokenizer=tokenizer,
            folder=folder.resolve(),
            flood=streams is None,
        )
        load, spent = os.getloadavg()[0], cpu_s()
        line = PEERS[name].run(command, job)
        row: dict[str, Any] = {"tool": name, "streams": width, "requests": requests, "cpu_s": cpu_s() - spent}
        row |= {"load_before": load, "command": line}
        readings, tokens_per_s = PEERS[name].read(job)
        if streams is None:
            return row | {"tokens_per_s": tokens_per_s}
        return row | compare(readings, httpx.get(f"{url}/served", trust_env=False, timeout=60).json())


@contextmanager
def fake(script: Mapping[str, Any]) -> Iterator[str]:
    """Serve a fake from a process of its own; yields its URL."""
    command = [
        sys.executable,
        "-m",
        "tests.support.fake_server",
        "--script",
        json.dumps(script | {"max_model_len": 32768}),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def write_prompts(path: Path, count: int, tokens: int) -> Path:
    """Write prompts that all differ, with the names of the fields that the tools look for."""
    rows = (
        f"Tell me all that you know about the number {number}, please, and do not stop early."
        for number in range(count)
    )
    with path.open("w") as file:
        for row in rows:
            file.write(json.dumps({"prompt": row, "text": row, "output_tokens_count": tokens}) + "\n")
    return path.resolve()


def cpu_s() -> float:
    """Return the processor seconds of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(readings: Sequence[Reading], served: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the errors of a tool's readings, in milliseconds."""
    by_key = defaultdict(list)
    for each in served:
        for field in ("number", "request_id", "prompt"):
            by_key[field, each[field]].append(each)
    ttft, itl, gaps, unmatched = [], [], [], 0
    for reading in readings:
        truth = find(by_key[reading.key], reading.sent)
        times = [at for at, _ in truth["chunks"]]
        true_gaps = [b - a for a, b in pairwise(times)]
        ttft.append(reading.ttft - (times[0] - truth["arrived"]))
        if reading.itl is not None:
            itl.append(reading.itl - sum(true_gaps) / len(true_gaps))
        if len(reading.gaps) == len(true_gaps):
            # What a fake that was late sent at once has no gap that could be measured wrongly.
            gaps += [a - b for a, b in zip(reading.gaps, true_gaps, strict=True) if b > 0]
        elif reading.gaps:
            unmatched += 1
    found = {"ttft_error_ms": errors(ttft), "gap_error_ms": errors(gaps) if gaps else None, "itl_error_ms": errors(itl)}
    return found | {"requests_with_another_number_of_chunks": unmatched, "fake_late_ms": errors(lateness(served))}


def lateness(served: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return how much later than scripted the fake sent its chunks; its truth is what it did, not what it was to do."""
    first, step = ACCURACY["first_token_s"], ACCURACY["step_s"]
    return [
        at - (each["started"] + first + step * number)
        for each in served
        for number, (at, _) in enumerate(each["chunks"])
    ]


def find(candidates: Sequence[Mapping[str, Any]], sent: float | None) -> Mapping[str, Any]:
    """Return the record of a request: the last of its key, or the one that arrived when it was sent."""
    if sent is None:
        return candidates[-1]
    return min(candidates, key=lambda each: abs(each["arrived"] - sent))


def errors(values: Sequence[float]) -> dict[str, float]:
    """Return the size of errors (median, P99) and their middle, in milliseconds."""
    sizes = sorted(abs(value) for value in values)
    p99 = sizes[min(len(sizes) - 1, int(0.99 * len(sizes)))]
    row = {"median": statistics.median(sizes), "p99": p99, "bias": statistics.median(values)}
    return {name: round(1e3 * value, 4) for name, value in row.items()} | {"readings": len(values)}


def table(result: Mapping[str, Any]) -> str:
    """Return the results as Markdown."""
    tools = [tool["name"] for tool in result["tools"]]
    rows = {(row["tool"], row["streams"]): row for row in result["accuracy"]}
    lines = [["Error, ms: median (P99)", *(f"{tool['name']} {tool['version']}" for tool in result["tools"])]]
    lines += [["---"] * len(lines[0])]
    for streams in sorted({streams for _, streams in rows}):
        for field, label in FIELDS.items():
            cells = [show_error(rows[tool, streams].get(field)) for tool in tools]
            lines.append([f"{streams} stream{'s' * (streams > 1)}, {label}", *cells])
    rates = capacities(result)
    lines.append(["capacity, tokens/s", *(f"{rates[tool]:,.0f}" if tool in rates else "-" for tool in tools)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def capacities(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the best rate of each tool, in tokens per second."""
    best: dict[str, float] = {}
    for row in result["capacity"]:
        if "failure" not in row:
            best[row["tool"]] = max(row["tokens_per_s"], best.get(row["tool"], 0.0))
    return best


def show_error(error: Mapping[str, float] | None) -> str:
    """Return a cell of the table."""
    return f"{error['median']:.3f} ({error['p99']:.3f})" if error else "-"


def plot(source: Path, target: Path) -> None:
    """Write the figure of a result: errors of each tool by number of streams, and tokens/s that each takes."""
    result = json.loads(source.read_text())
    about = f"A line for each load generator; the numbers are in {source.name}."
    title = "Errors of load generators, by streams"
    target.write_text(to_svg(lambda: draw(result), "load-accuracy", title=title, about=about, alone=True))


def draw(result: Mapping[str, Any]) -> Figure:
    """Return the three panels."""
    tools = [tool["name"] for tool in result["tools"]]
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    first, second, third = figure.subplots(1, 3)
    for axes, (field, label) in zip((first, second), DRAWN.items(), strict=True):
        draw_errors(axes, result, tools, field)
        axes.set_ylabel(label)
    rates = capacities(result)
    third.barh(tools[::-1], [rates[tool] / 1e3 for tool in tools[::-1]], color=PALETTE[: len(tools)][::-1], height=0.6)
    third.set_xlabel("thousand tokens/s received at most")
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=len(tools))
    return figure


def draw_errors(axes: Axes, result: Mapping[str, Any], tools: list[str], field: str) -> None:
    """Draw, for each tool and number of streams, the median error as a dot and a line up to the 99th percentile."""
    loads = sorted({row["streams"] for row in result["accuracy"]})
    for number, tool in enumerate(tools):
        found = {row["streams"]: row[field] for row in result["accuracy"] if row["tool"] == tool and row[field]}
        places = [loads.index(load) + 0.16 * (number - (len(tools) - 1) / 2) for load in found]
        medians = [max(FLOOR_MS, each["median"]) for each in found.values()]
        tails = [max(FLOOR_MS, each["p99"]) for each in found.values()]
        axes.vlines(places, medians, tails, color=PALETTE[number], linewidth=1.5)
        axes.plot(places, medians, "o", color=PALETTE[number], markersize=5, label=f"{tool}: median to P99")
    axes.set_yscale("log")
    axes.set_xticks(range(len(loads)), [f"{load} stream{'s' * (load > 1)}" for load in loads])


if __name__ == "__main__":
    sys.exit(main())
