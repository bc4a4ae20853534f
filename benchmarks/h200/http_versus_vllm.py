"""`draftwise serve` and `vllm serve` on one GPU: the same streams from both, and the first load of each.

    python benchmarks/h200/http_versus_vllm.py run --vllm-python PYTHON --out OUT --commit $(git rev-parse HEAD)
    python benchmarks/h200/http_versus_vllm.py table OUT/http_versus_vllm.json

PYTHON is a command line that starts a Python with vLLM. All servers start side by side and stay on the card; one
of them is loaded at a time. Once all are ready, the first thing that each gets is its first load. Then every case and
number of streams is measured in rounds, whose order of engines alternates (A B, then B A). Every row is written the
moment it is measured; a run that is given an earlier result with --resume leaves out the rows that it holds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import CASES, spec_config
from floors import kv_bytes_for
from http_load import Load, Server, run_load
from record import Record, about, command_line, result_file
from report import number, table
from shapes import SCALES, write_folders, write_tokenizer

HERE = Path(__file__).parent
OURS, VLLM = "draftwise", "vllm"
RESULT = "http_versus_vllm.json"
START_S = 240
"""How long to wait for a server."""
GOALS = {"plain": 1.12, "eagle3-k3": 1.15}
"""Output tokens/s over vLLM's, at least."""
TTFT_GOAL = 1.0
"""Mean time to the first token over vLLM's, at most."""
FIRST_TOKENS_GOAL, FIRST_TTFT_GOAL = 0.95, 1.2
"""Output tokens/s of the first load over vLLM's, at least; 99th percentile of its times to the first token, at most."""


class Session:
    """One run on one machine, with a deadline."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.began = time.monotonic()
        self.lengths = tuple((min(ends), max(ends)) for ends in (args.prompt_tokens, args.output_tokens))
        self.scale = replace(SCALES[args.scale], prompt_tokens=self.lengths[0][1], prompt_tokens_at={})
        args.out.mkdir(parents=True, exist_ok=True)
        resumed = json.loads(args.resume.read_text()) if args.resume else {}
        self.record = Record(args.out / RESULT, about(args), resumed, values=("engines",), lists=("first",))
        self.folders = write_folders(
            args.folders / args.scale, self.scale, {CASES[name].drafter for name in args.cases}
        )
        write_tokenizer(self.folders.target, self.scale.target["vocab_size"])
        self.servers: dict[tuple[str, str], Server] = {}
        self.longest_s = 10.0
        """Of the loads until now."""
        self.seed = len(self.record.content["rows"]) * 1000

    def run(self) -> None:
        """Measure everything, until it is done or the time is over."""
        with contextlib.ExitStack() as stack:
            for engine, case in self._wanted():
                log = self.args.out / f"{engine}-{case}.log"
                server = Server(self._command(engine, case), log, self._environment(engine, case))
                self.servers[engine, case] = stack.enter_context(server)
            try:
                self._await_servers()
                for engine, case in list(self.servers):
                    self._measure_first(engine, case)
                self._measure_rounds()
            finally:
                for server in self.servers.values():  # all together: each may take a while
                    server.terminate()
        print(f"[{self._elapsed():.0f} s] done", flush=True)

    def _wanted(self) -> Iterator[tuple[str, str]]:
        """Yield the engine and case of each server that has rows to give."""
        for case in self.args.cases:
            for engine in (OURS, VLLM) if self.args.vllm_python else (OURS,):
                if not all(self._has(engine, case, *each) for each in self._rounds()):
                    yield engine, case

    def _await_servers(self) -> None:
        """Wait until all servers are ready; one that fails is left out, with a note."""

        def wait(server: Server) -> float | RuntimeError:
            try:
                return server.wait(min(START_S, self._left() - 10))
            except RuntimeError as error:
                return error

        with ThreadPoolExecutor(len(self.servers) or 1) as pool:
            ready = list(pool.map(wait, self.servers.values()))
        for (engine, case), found in zip(list(self.servers), ready, strict=True):
            if isinstance(found, RuntimeError):
                self._give_up(engine, case, found)
            else:
                server = {"version": self.servers[engine, case].version(), "ready_s": round(found, 1)}
                self.record.content["engines"][f"{engine} {case}"] = server | self._loaded(engine, case)
        self.record.save()
        print(f"[{self._elapsed():.0f} s] ready: {', '.join(' '.join(key) for key in self.servers)}", flush=True)

    def _measure_first(self, engine: str, case: str) -> None:
        """Note the first load after the start; it warms up, too."""
        load = self._load(self.args.first_at_once, self.args.first_requests)
        row = self._send(engine, case, load)
        if row and not self.record.has("first", engine=engine, case=case):
            self.record.add("first", {"engine": engine, "case": case} | load._asdict() | row)

    def _measure_rounds(self) -> None:
        warmed = {(engine, case, self.args.first_at_once) for engine, case in self.servers}
        for at_once, turn in self._rounds():
            for case in self.args.cases:
                for engine in (OURS, VLLM) if turn % 2 == 0 else (VLLM, OURS):
                    if (engine, case) not in self.servers or self._has(engine, case, at_once, turn):
                        continue
                    if self._left() < 1.5 * self.longest_s:
                        self.record.note(f"out of time before {engine} {case} at {at_once}, turn {turn}")
                        continue
                    if (engine, case, at_once) not in warmed:
                        warmed.add((engine, case, at_once))
                        self._send(engine, case, self._load(at_once, at_once))
                    load = self._load(at_once, self.args.times * at_once)
                    if row := self._send(engine, case, load):
                        key = {"engine": engine, "case": case, "concurrency": at_once, "turn": turn}
                        self.record.add("rows", key | load._asdict() | row)

    def _rounds(self) -> Iterator[tuple[int, int]]:
        """Yield streams and turn: all cells have their first turn before any has its second."""
        yield from ((at_once, turn) for turn in range(self.args.repeats) for at_once in self.args.concurrency)

    def _has(self, engine: str, case: str, at_once: int, turn: int) -> bool:
        return self.record.has("rows", engine=engine, case=case, concurrency=at_once, turn=turn)

    def _load(self, at_once: int, requests: int) -> Load:
        return Load(requests, at_once, *self.lengths, self.args.temperature, self.args.top_p)

    def _send(self, engine: str, case: str, load: Load) -> dict[str, Any] | None:
        """Load a server and return what its clients saw; None, with a note, if it failed, and then it is given up."""
        began, self.seed = time.monotonic(), self.seed + 1
        if (engine, case) not in self.servers:
            return None
        try:
            row = run_load(self.servers[engine, case].port, load, self.scale.target["vocab_size"], self.seed)
        except (RuntimeError, OSError, TimeoutError) as error:
            self._give_up(engine, case, error)
            return None
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        return row

    def _give_up(self, engine: str, case: str, error: Exception) -> None:
        self.record.note(f"{engine} {case}: {type(error).__name__}: {error}"[-600:])
        self.servers.pop((engine, case)).__exit__()

    def _command(self, engine: str, case: str) -> list[str]:
        """Return what a server is started with: all other flags keep their defaults."""
        args, scale, most = self.args, self.scale, max(*self.args.concurrency, self.args.first_at_once)
        flags: dict[str, Any] = {
            "load-format": "dummy" if engine == OURS else "dummy_without_files",
            "dtype": args.dtype,
            "served-model-name": "m",
        }
        if args.as_typed:
            flags["gpu-memory-utilization"] = args.as_typed
        else:
            flags |= {
                "max-num-seqs": most,
                "max-num-batched-tokens": args.batched_tokens,
                "max-model-len": scale.max_model_len,
                "kv-cache-memory-bytes": kv_bytes_for(CASES[case], scale, most, self.lengths[1][1]),
            }
        flags |= {name.replace("_", "-"): value for name, value in scale.engine.items()}
        if spec := spec_config(CASES[case], self.folders, synthetic=args.acceptance == "synthetic"):
            flags["speculative-config"] = json.dumps(spec)
        if engine == OURS:
            command, flags = [sys.executable, "-m", "draftwise"], flags | {"device": args.device}
        else:
            command = [*shlex.split(args.vllm_python), str(HERE / "vllm_serve.py")]
            # No share of the memory has to be free where the cache's size is given.
            flags = {"host": "127.0.0.1", "generation-config": "vllm", "gpu-memory-utilization": 0.1} | flags
        command += ["serve", str(self.folders.target), *([] if args.as_typed else ["--no-enable-prefix-caching"])]
        return [*command, *(word for name, value in flags.items() for word in (f"--{name}", str(value)))]

    def _environment(self, engine: str, case: str) -> dict[str, str]:
        """Return what vLLM's load format reads: where to note what was loaded, and how dummies are drawn."""
        if engine == OURS:
            return {}
        path = self._loaded_path(case)
        path.unlink(missing_ok=True)
        return {"LOADED_MODELS": str(path), "TARGET_NOISE": str(self.scale.noise)}

    def _loaded(self, engine: str, case: str) -> dict[str, Any]:
        """Return which weights and heads vLLM's load format has noted."""
        if engine == OURS:
            return {}
        return {"loaded": [json.loads(line) for line in self._loaded_path(case).read_text().splitlines()]}

    def _loaded_path(self, case: str) -> Path:
        return self.args.out / f"{VLLM}-{case}-loaded.jsonl"

    def _left(self) -> float:
        return float(self.args.seconds) - self._elapsed()

    def _elapsed(self) -> float:
        return time.monotonic() - self.began


def as_markdown(result: dict[str, Any]) -> str:
    """Return the first loads and the rounds as tables; a cell of the second holds means of its turns."""
    about = result["about"]
    parts = [f"{about['gpu']}; {about['date']}; commit {about['commit']}", _first_table(result), _main_table(result)]
    parts += [
        "Bold: a goal is reached. Ratios are ours over vLLM's.",
        "\n".join(f"- {n['text']}" for n in result["notes"]),
    ]
    return "\n\n".join(part for part in parts if part)


def _first_table(result: dict[str, Any]) -> str:
    body = []
    for case in dict.fromkeys(row["case"] for row in result["first"]):
        pair = _pair(row for row in result["first"] if row["case"] == case)
        ready = (result["engines"].get(f"{engine} {case}", {}).get("ready_s") for engine in (OURS, VLLM))
        cells = [case, *_compare(pair, "tokens_per_s", at_least=FIRST_TOKENS_GOAL)]
        cells += _compare(pair, "ttft_ms", "p99", at_most=FIRST_TTFT_GOAL)
        body.append([*cells, *(number(seconds, 1) for seconds in ready)])
    tokens, ttft = ("tokens/s ours", "vLLM", "ratio"), ("TTFT P99 ms ours", "vLLM", "ratio")
    return table(("first load", *tokens, *ttft, "ready after s, ours", "vLLM"), body)


def _main_table(result: dict[str, Any]) -> str:
    body = []
    for case, streams in dict.fromkeys((row["case"], row["concurrency"]) for row in result["rows"]):
        pair = _pair(row for row in result["rows"] if (row["case"], row["concurrency"]) == (case, streams))
        cells = [case, str(streams), "/".join(str(len(rows)) for rows in pair)]
        cells += _compare(pair, "tokens_per_s", at_least=GOALS.get(case))
        cells += _compare(pair, "ttft_ms", "mean", at_most=TTFT_GOAL)
        for path in (("ttft_ms", "p99"), ("itl_ms",), ("tpot_ms", "mean"), ("pause_ms", "p99")):
            known = all(path[0] in row for rows in pair for row in rows)
            cells += [number(_mean(rows, *path) if known else None, 1) for rows in pair]
        body.append(cells)
    tokens, ttft = ("tokens/s ours", "vLLM", "ratio"), ("TTFT mean ms ours", "vLLM", "ratio")
    rest = [word for name in ("TTFT P99", "ITL mean", "TPOT mean", "pause P99") for word in (f"{name} ms ours", "vLLM")]
    return table(("case", "streams", "turns", *tokens, *ttft, *rest), body)


Rows = list[dict[str, Any]]


def _pair(rows: Iterable[dict[str, Any]]) -> tuple[Rows, Rows]:
    """Return our rows and vLLM's."""
    both = list(rows)
    return [row for row in both if row["engine"] == OURS], [row for row in both if row["engine"] == VLLM]


def _mean(rows: Rows, *path: str) -> float | None:
    """Return the mean of a value, which lies so deep in each row; None of no rows."""
    found: list[Any] = rows
    for key in path:
        found = [each[key] for each in found]
    return statistics.fmean(found) if found else None


def _compare(
    pair: tuple[Rows, Rows], *path: str, at_least: float | None = None, at_most: float | None = None
) -> list[str]:
    """Return three cells: our mean, vLLM's, and their ratio, bold if it is as wanted."""
    ours, vllm = (_mean(rows, *path) for rows in pair)
    ratio = ours / vllm if ours and vllm else None
    reached = ratio is not None and (
        (at_least is not None and ratio >= at_least) or (at_most is not None and ratio <= at_most)
    )
    shown = number(ratio, 3)
    return [number(ours, 0), number(vllm, 0), f"**{shown}**" if reached else shown]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    run = modes.add_parser("run", help="measure")
    run.add_argument(
        "--vllm-python", type=command_line, help="command line of a Python with vLLM; left out: our server alone"
    )
    run.add_argument("--out", type=Path, required=True, help="folder for the result and the servers' logs")
    run.add_argument("--commit", default="unknown", help="git commit that is measured")
    run.add_argument("--seconds", type=float, default=250, help="deadline")
    run.add_argument("--cases", nargs="+", choices=CASES, default=["plain", "eagle3-k3"])
    run.add_argument("--concurrency", nargs="+", type=int, default=[64, 128], help="streams at once")
    run.add_argument("--repeats", type=int, default=2, help="turns of each engine in a cell")
    run.add_argument("--times", type=int, default=4, help="requests of a turn, times the streams at once")
    run.add_argument("--first-requests", type=int, default=192, help="of the first load")
    run.add_argument("--first-at-once", type=int, default=64)
    ends = {"type": int, "nargs": "+", "metavar": "TOKENS", "help": "of a request, or a range"}
    run.add_argument("--prompt-tokens", default=[512], **ends)
    run.add_argument("--output-tokens", default=[128], **ends)
    run.add_argument("--temperature", type=float, default=0.0)
    run.add_argument("--top-p", type=float, default=1.0)
    run.add_argument("--batched-tokens", type=int, default=8192, help="of a step, at most")
    run.add_argument(
        "--as-typed", type=float, metavar="SHARE", help="each server's own limits, in this share of the card's memory"
    )
    run.add_argument("--resume", type=result_file, help=f"an earlier {RESULT}")
    run.add_argument("--scale", choices=SCALES, default="8b")
    run.add_argument("--dtype", default="bfloat16")
    run.add_argument("--folders", type=Path, default=Path("/dev/shm/draftwise-bench"))
    run.add_argument("--device", default="cuda")
    run.add_argument("--acceptance", choices=("synthetic", "real"), default="synthetic")
    later = modes.add_parser("table", help="print the tables of a result")
    later.add_argument("result", type=result_file)
    args = parser.parse_args()
    if args.mode == "run":
        Session(args).run()
    path = args.out / RESULT if args.mode == "run" else args.result
    print(as_markdown(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
