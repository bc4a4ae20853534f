"""What rules of `draftwise check` say of vLLM 0.26.0 on a GPU, held against vLLM itself.

    python benchmarks/h200/vllm_facts.py run --vllm-python PYTHON --out OUT --commit COMMIT
    python benchmarks/h200/vllm_facts.py table OUT/vllm_facts.json

The rules were read in vLLM's sources. Each gets a measurement here that would come out otherwise if it were wrong; what
comes out is kept, whatever it is. Shapes, acceptance and clock are those of versus_vllm.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fact_cases import DRAFTER_LENGTH, FACT_CASES
from floors import kv_bytes_for
from peer import Peer, PeerError
from record import Record, about, command_line, result_file
from shapes import SCALES, write_folders

HERE = Path(__file__).parent
HOLES = ((5, 8), (9, 12), (13, 16), (17, 20))
"""Batch sizes without a full graph, and the next ones that have one: k=5, at most 64 sequences, 0.25 to 0.28."""
BATCHES = {"k5": tuple(sorted({4, *(batch for pair in HOLES for batch in pair)}))}
BATCHES |= {name: (8,) for name in FACT_CASES if "short-drafter" in name}
BATCHES |= {name: (1, 8, 64) for name in FACT_CASES if name not in BATCHES}
MAX_NUM_SEQS = 64
WIDTH = 6
"""Tokens that a sequence of the lookup case verifies when it found all five."""
START_S, ROW_S = 240, 60
ITERATION = re.compile(
    r"Iteration\(\d+\): (\d+) context requests, \d+ context tokens, (\d+) generation requests, .*"
    r"iteration elapsed time: ([\d.]+) ms"
)
GRAPHS = re.compile(r"^\| (\d+) +\| (\d+) +\| \d+ +\| (\w+) +\| (\d+) +\|$")


class Session:
    """One run on one machine, with a deadline."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.began = args, time.monotonic()
        self.scale = SCALES[args.scale]
        args.out.mkdir(parents=True, exist_ok=True)
        resumed = json.loads(args.resume.read_text()) if args.resume else {}
        self.record = Record(args.out / "vllm_facts.json", about(args), resumed)
        self.record.content.setdefault("beside", resumed.get("beside", []))
        self.record.content.setdefault("logged", resumed.get("logged", []))
        self.folders = args.folders / args.scale
        write_folders(self.folders, self.scale)

    def left(self) -> float:
        """Return seconds until the deadline."""
        return self.args.seconds - (time.monotonic() - self.began)

    def run(self) -> None:
        """Measure wave by wave; a wave's engines start side by side and are measured one at a time."""
        for wave in sorted({FACT_CASES[name].wave for name in self.args.cases}):
            names = [n for n in self.args.cases if FACT_CASES[n].wave == wave and not self._is_done(n)]
            if names and self.left() > 120:
                self._run_wave(names)
            elif names:
                self.record.note(f"out of time before {names}")

    def _is_done(self, name: str) -> bool:
        return all(self.record.has("rows", case=name, batch=batch) for batch in BATCHES[name])

    def _run_wave(self, names: list[str]) -> None:
        peers = {name: self._start(name) for name in names}
        try:
            began = time.monotonic()
            started = [name for name in names if self._is_open(name, peers[name], began)]
            for name in started:
                self._measure(name, peers[name])
        finally:
            for peer in peers.values():
                peer.close()

    def _is_open(self, name: str, peer: Peer, began: float) -> bool:
        """Wait until an engine has started; keep what it decided, or why it has not."""
        try:
            opened = peer.answer(max(5.0, min(START_S - (time.monotonic() - began), self.left())))
        except PeerError as error:
            lines = self._log(name).read_text(errors="replace").splitlines()
            own = next(
                (line.split("] ")[-1] for line in reversed(lines) if "EngineCore" in line and "Error" in line), ""
            )
            opened = {"failed": own or str(error)}
        self.record.content["engines"][name] = opened
        self.record.save()
        return "failed" not in opened

    def _measure(self, name: str, peer: Peer) -> None:
        try:
            self._take_rows(name, peer)
        except PeerError as error:
            self.record.note(f"{name}: {error}")
        self.record.save()

    def _start(self, name: str) -> Peer:
        command = [*shlex.split(self.args.vllm_python), str(HERE / "vllm_side.py"), "--case", name]
        command += ["--scale", self.args.scale, "--folders", str(self.folders), "--acceptance", self.args.acceptance]
        command += ["--loaded", str(self.folders / f"loaded-{os.getpid()}-{name}.jsonl")]
        peer = Peer(name, command, log=self._log(name), env=os.environ | FACT_CASES[name].env)
        case, largest = FACT_CASES[name], max(BATCHES[name])
        kv_bytes = kv_bytes_for(case, self.scale, largest + 4, self.scale.output_tokens)
        peer.tell("open", max_num_seqs=MAX_NUM_SEQS, kv_bytes=kv_bytes)
        return peer

    def _log(self, name: str) -> Path:
        return self.args.out / f"{name}.log"

    def _take_rows(self, name: str, peer: Peer) -> None:
        tokens, repeats = self.scale.output_tokens, self.args.repeats
        for batch in BATCHES[name]:
            at = self._log(name).stat().st_size
            row = peer.ask("row", timeout_s=ROW_S, batch=batch, output_tokens=tokens, warm_tokens=24, repeats=repeats)
            self.record.add("rows", {"case": name, "batch": batch} | row)
            peer.ask("log_stats", timeout_s=ROW_S)
            self.record.content["logged"].append({"case": name, "batch": batch} | self._read_log(name, at, batch))
        if "short-drafter" in name:
            for long_tokens in (self.scale.prompt_tokens, DRAFTER_LENGTH + self.scale.prompt_tokens):
                row = peer.ask("beside", timeout_s=ROW_S, batch=8, long_tokens=long_tokens, output_tokens=tokens)
                self.record.content["beside"].append({"case": name, "long_tokens": long_tokens} | row)

    def _read_log(self, name: str, at: int, batch: int) -> dict[str, Any]:
        """Return what vLLM logged since then: the time of its iterations without prompts, and its graphs."""
        with self._log(name).open(errors="replace") as file:
            file.seek(at)
            lines = file.read().splitlines()
        elapsed = [float(m[3]) for m in map(ITERATION.search, lines) if m and (m[1], m[2]) == ("0", str(batch))]
        graphs = [(int(m[1]), m[3], int(m[4])) for m in (GRAPHS.search(line[line.find("| ") :]) for line in lines) if m]
        found: dict[str, Any] = {"iterations": len(elapsed)}
        if elapsed:
            found["elapsed_p50_ms"] = statistics.median(elapsed)
        return found | ({"graphs": graphs} if graphs else {})


@dataclass(frozen=True, slots=True)
class Fact:
    """What a rule says, and what came out."""

    rule: str
    says: str
    measured: str
    holds: bool


class Facts:
    """The rules, judged by the rows."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._ms = {(row["case"], row["batch"]): row["ms_step"] for row in content["rows"]}
        self._p50 = {(row["case"], row["batch"]): row["p50_ms"] for row in content["rows"]}
        self._beside = {(row["case"], row["long_tokens"]): row["ms_step"] for row in content["beside"]}
        self._engines = content["engines"]
        self._logged = {(row["case"], row["batch"]): row for row in content["logged"]}

    def judge(self) -> Iterator[Fact]:
        """Yield each rule whose rows are all there."""
        for each in (self._holes, self._start, self._drafting, self._off, self._gate, self._elapsed, self._lookup):
            try:
                yield from each()
            except KeyError:
                continue

    def _holes(self) -> Iterator[Fact]:
        for hole, full in HOLES:
            slow, fast = self._ms["k5", hole], self._ms["k5", full]
            says = f"k=5: {hole} sequences have no full graph, {full} have one, so fewer sequences take longer"
            yield Fact("graph-holes", says, f"{slow:.2f} ms against {fast:.2f} ms", slow > fast)

    def _start(self) -> Iterator[Fact]:
        failed = self._engines["k7-verify-1"].get("failed")
        says = "with full graphs, a schedule with fewer draft tokens than num_speculative_tokens does not start"
        yield Fact("schedule-does-not-start", says, failed or "it started", failed is not None)

    def _drafting(self) -> Iterator[Fact]:
        for batch in (1, 8):  # where verification is nearly free, so that a step's time is its drafting
            full, one, scheduled = (self._ms[f"{case}-piecewise", batch] for case in ("k7", "k1", "k7-verify-1"))
            saved = (full - scheduled) / (full - one)
            says = f"a schedule of k=1 under num_speculative_tokens 7 still drafts 7 tokens, at {batch}"
            text = f"k=7 {full:.2f} ms, k=1 {one:.2f} ms, scheduled {scheduled:.2f} ms"
            yield Fact("schedule-drafts-in-full", says, text, saved < 0.5)

    def _off(self) -> Iterator[Fact]:
        for batch in (8, 64):
            off, plain, on = (self._ms[case, batch] for case in ("k3-off-piecewise", "plain-piecewise", "k3-piecewise"))
            says = f"a schedule of k=0 at {batch} sequences is not plain decoding"
            text = f"{off:.2f} ms, plain {plain:.2f} ms ({off / plain:.2f}x), k=3 {on:.2f} ms"
            yield Fact("schedule-off-still-drafts", says, text, off > 1.03 * plain)

    def _gate(self) -> Iterator[Fact]:
        """Simulated acceptance takes padding for drafts, so the gate shows in the time of steps without drafting."""
        short, long = sorted({length for _, length in self._beside})
        for case, gated in (("k3-short-drafter-v1", True), ("k3-short-drafter", False)):
            before, after = self._beside[case, short], self._beside[case, long]
            runner, effect = ("V1", "stops") if gated else ("V2", "does not stop")
            says = f"{runner} runner: one sequence beyond the drafter's length {effect} drafting for the other eight"
            text = f"{before:.2f} ms a step beside a short one, {after:.2f} ms beside a long one"
            yield Fact("context-gate", says, text, (after < 0.95 * before) is gated)

    def _elapsed(self) -> Iterator[Fact]:
        logged = {key: row["elapsed_p50_ms"] for key, row in self._logged.items() if "elapsed_p50_ms" in row}
        shares = sorted(elapsed / self._p50[key] for key, elapsed in logged.items())
        says = "the logged elapsed time is how long the engine waits for a step, not how long it takes"
        text = f"{shares[0]:.2f} to {shares[-1]:.2f} of the time between tokens in {len(shares)} rows"
        yield Fact("iteration-details", says, text, shares[-1] < 0.95)

    def _lookup(self) -> Iterator[Fact]:
        for batch in (1, 8, 64):
            steps = [
                (tokens % WIDTH == 0, mode, count) for tokens, mode, count in self._logged["lookup", batch]["graphs"]
            ]
            mixed = [(mode, count) for is_even, mode, count in steps if not is_even]
            piecewise = sum(count for mode, count in mixed if mode != "FULL")
            says = f"ngram's steps whose sequences verify different numbers of tokens run no full graph, at {batch}"
            text = f"{piecewise} of {sum(count for _, count in mixed)}, while {self._full(steps)} others run one"
            yield Fact("lookups-run-piecewise", says, text, piecewise == sum(count for _, count in mixed))

    @staticmethod
    def _full(steps: list[tuple[bool, str, int]]) -> str:
        even = [(mode, count) for is_even, mode, count in steps if is_even]
        return f"{sum(count for mode, count in even if mode == 'FULL')} of {sum(count for _, count in even)}"


def as_markdown(content: dict[str, Any]) -> str:
    """Return the table."""
    lines = ["| rule | what it says | measured | holds |", "|---|---|---|---|"]
    lines += [f"| {f.rule} | {f.says} | {f.measured} | {'yes' if f.holds else 'NO'} |" for f in Facts(content).judge()]
    return "\n".join(lines + [f"\nNote: {note['text']}" for note in content["notes"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    run = modes.add_parser("run", help="measure")
    run.add_argument(
        "--vllm-python", type=command_line, required=True, help="command line of a Python with vLLM 0.26.0"
    )
    run.add_argument("--out", type=Path, required=True, help="folder for vllm_facts.json and the engines' logs")
    run.add_argument("--commit", default="unknown", help="git commit that is measured")
    run.add_argument("--seconds", type=float, default=570, help="deadline")
    run.add_argument("--cases", nargs="+", choices=FACT_CASES, default=list(FACT_CASES))
    run.add_argument("--repeats", type=int, default=2)
    run.add_argument("--resume", type=result_file, help="an earlier vllm_facts.json")
    run.add_argument("--scale", choices=SCALES, default="8b")
    run.add_argument("--folders", type=Path, default=Path("/dev/shm/draftwise-bench"))
    run.add_argument("--acceptance", choices=("synthetic", "real"), default="synthetic")
    modes.add_parser("table", help="print the table of a result").add_argument("result", type=result_file)
    args = parser.parse_args()
    if args.mode == "run":
        Session(args).run()
        args.result = args.out / "vllm_facts.json"
    print(as_markdown(json.loads(args.result.read_text())))


if __name__ == "__main__":
    main()
