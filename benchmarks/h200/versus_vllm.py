"""The embedded engine next to vLLM or SGLang on one GPU, in one run: same shapes, prompts, acceptance and clock.

    python benchmarks/h200/versus_vllm.py run --vllm-python PYTHON --out OUT --commit $(git rev-parse HEAD)
    python benchmarks/h200/versus_vllm.py table OUT/versus_vllm.json [MORE.json ...]
    python benchmarks/h200/versus_vllm.py plot OUT/versus_vllm.json --svg benchmarks/h200/results

PYTHON is a command line that starts a Python with vLLM; --sglang-python takes one with SGLang in its place. The engines
of one wave stand side by side on the card, and one of them works at a time. Every row is written the moment it is
measured; a run that is given an earlier result with --resume leaves out the rows that it holds. README.md says how the
time is spent.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections import Counter
from pathlib import Path

from cases import CASES
from floors import kv_bytes_for
from peer import Peer, PeerError
from record import Record, about, command_line, result_file
from shapes import SCALES, write_folders

HERE = Path(__file__).parent
OURS = "draftwise"
RESULT = "versus_vllm.json"
LARGE_OUTPUT_TOKENS = 128
WARM_TOKENS = 24
MOST_FAILURES = 3
MEMORY_SHARE = 0.92
"""Of the card's memory; vLLM's capacities in results/vllm_memory.json were measured with it."""
ROW_S, LARGE_ROW_S, START_S = 60, 90, 240
"""How long to wait for a row and for an engine's start."""


class Session:
    """One run on one machine, with a deadline."""

    def __init__(self, args: argparse.Namespace, began: float) -> None:
        self.args = args
        self.began = began
        self.scale = SCALES[args.scale]
        args.out.mkdir(parents=True, exist_ok=True)
        resumed = json.loads(args.resume.read_text()) if args.resume else {}
        self.record = Record(args.out / RESULT, about(args), resumed)
        self.folders = args.folders / args.scale
        self.cases = [name for name in CASES if name in args.cases]
        self.waves = {name: CASES[name].wave if len(self.cases) > 3 else 1 for name in self.cases}
        write_folders(self.folders, self.scale, {CASES[name].drafter for name in self.cases})
        self.peer = "sglang" if args.sglang_python else "vllm"
        self.python = args.sglang_python or args.vllm_python
        self.peers: dict[str, Peer] = {}
        self.failures = Counter[str]()
        """How often our side failed at a case; it is given up after MOST_FAILURES."""

    def elapsed(self) -> float:
        """Return seconds since the start."""
        return time.monotonic() - self.began

    def left(self) -> float:
        """Return seconds until the deadline."""
        return self.args.seconds - self.elapsed()

    def run(self) -> None:
        """Measure everything, wave by wave, until it is done or the time is over."""
        self.ours = self._start_ours()
        waves = sorted(set(self.waves.values()))
        try:
            for i, wave in enumerate(waves):
                if names := self._wanted(wave):
                    self._run_wave(names, later_s=self.args.wave_s * (len(waves) - 1 - i))
            self._measure_capacity()
            self._measure_transformers()
        finally:
            for peer in [self.ours, *self.peers.values()]:
                peer.close()
        print(f"[{self.elapsed():.0f} s] done", flush=True)

    def start(self) -> None:
        """Let vLLM's engines of the first wave start; wait for them in `ready`."""
        for name in self._wanted(min(self.waves.values())):
            self._start_peer(name)

    def ready(self) -> None:
        """Wait for the engines that `start` began."""
        self._await_peers()

    def _wanted(self, wave: int) -> list[str]:
        return [name for name in self.cases if self.waves[name] == wave and self._wants_anything(name)]

    def _run_wave(self, names: list[str], *, later_s: float) -> None:
        """Start the vLLM engines of these cases together, then measure case by case, both engines in turn."""
        if self.left() < (30 if self.peers else 120):
            self.record.note(f"out of time before {names}")
            return
        started = set(self.peers)
        for name in names if self.python else ():
            if name not in started:
                self._start_peer(name)
        self._warm_ours(names)
        if not started:
            self._await_peers()
        self._measure_floor()
        for name in names:
            if self.failures[name] < MOST_FAILURES:
                self._open_ours(name)
            sizes = [(batch, False) for batch in self.args.batches or self.scale.batches]
            if CASES[name].to_large_batches and not self.args.no_large:
                sizes += [(batch, True) for batch in self.scale.large_batches]
            for batch, large in sizes:
                if self.left() - (later_s if large else 0) > (45 if large else 20):
                    self._measure_row(name, batch, large=large)
                else:
                    self.record.note(f"out of time before {name} at batch {batch}")
                if batch == sizes[0][0]:
                    self._measure_first(name)
            if name in self.peers:  # its cache and weights leave the card to the cases that follow
                self.peers.pop(name).close()
        print(f"[{self.elapsed():.0f} s] wave {names} done", flush=True)

    def _wants_anything(self, name: str) -> bool:
        engines = (OURS, self.peer) if self.python else (OURS,)
        batches = list(self.args.batches or self.scale.batches)
        if CASES[name].to_large_batches and not self.args.no_large:
            batches += self.scale.large_batches
        return not all(self.record.has("rows", engine=e, case=name, batch=b) for e in engines for b in batches)

    def _start_ours(self) -> Peer:
        command = [sys.executable, str(HERE / "our_side.py"), "peer", "--scale", self.args.scale]
        command += ["--folders", str(self.args.folders), "--device", self.args.device]
        command += ["--acceptance", self.args.acceptance]
        return Peer(OURS, command, log=self.args.out / "draftwise.log")

    def _start_peer(self, name: str) -> None:
        command = [*shlex.split(self.python), str(HERE / f"{self.peer}_side.py"), "--case", name]
        command += ["--scale", self.args.scale, "--folders", str(self.folders), "--acceptance", self.args.acceptance]
        command += ["--loaded", str(self.folders / f"loaded-{os.getpid()}-{name}.jsonl")]
        self.peers[name] = Peer(f"{self.peer} {name}", command, log=self.args.out / f"{self.peer}-{name}.log")
        self.peers[name].tell("open", **self._sizes(name))

    def _warm_ours(self, names: list[str]) -> None:
        """Run every case and batch size of ours once while vLLM starts, so that all kernels are compiled."""
        for name in names if self.peers else ():
            self._open_ours(name)
            for batch in self.args.batches or self.scale.batches:
                if self.failures[name] >= MOST_FAILURES:
                    break
                try:
                    self.ours.ask("first", timeout_s=START_S, batch=batch, output_tokens=8, repeats=0)
                except PeerError as error:
                    self._restart_ours(error, name)

    def _await_peers(self) -> None:
        """Wait until the wave has started; an engine that fails is left out, with a note."""
        began = time.monotonic()
        for name, peer in list(self.peers.items()):
            try:
                waited = time.monotonic() - began
                opened = peer.answer(max(5.0, min(START_S - waited, self.left() - 30)))
                self.record.content["engines"][f"{self.peer} {name}"] = opened
            except PeerError as error:
                self.record.note(str(error))
                self.peers.pop(name).close()
        print(f"[{self.elapsed():.0f} s] started {list(self.peers)} in {time.monotonic() - began:.0f} s", flush=True)

    def _sizes(self, name: str) -> dict[str, int]:
        """Return how many sequences an engine must hold, and the bytes of keys and values for them."""
        case, batches = CASES[name], list(self.args.batches or self.scale.batches)
        kv_bytes = max(kv_bytes_for(case, self.scale, batch, self.scale.output_tokens) for batch in batches)
        if case.to_large_batches and not self.args.no_large:
            batches += self.scale.large_batches
            kv_bytes = max(kv_bytes, kv_bytes_for(case, self.scale, max(batches), self._large_output()))
        return {"max_num_seqs": max(64, *batches), "kv_bytes": kv_bytes}

    def _large_output(self) -> int:
        return min(LARGE_OUTPUT_TOKENS, self.scale.output_tokens)

    def _open_ours(self, name: str) -> None:
        try:
            opened = self.ours.ask("open", timeout_s=START_S, case=name, **self._sizes(name))
            self.record.content["engines"][f"{OURS} {name}"] = opened
            print(f"[{self.elapsed():.0f} s] {OURS} opened {name} in {opened['ready_s']} s", flush=True)
        except PeerError as error:
            self._restart_ours(error, name)

    def _measure_row(self, name: str, batch: int, *, large: bool) -> None:
        """Measure both engines at a batch size, one right after the other."""
        task = {
            "batch": batch,
            "output_tokens": self._large_output() if large else self.scale.output_tokens,
            "warm_tokens": min(WARM_TOKENS, self.scale.output_tokens),
            "repeats": 1 if large else self.args.repeats,
        }
        for engine, peer in self._peers(name):
            key = {"engine": engine, "case": name, "batch": batch}
            if self.record.has("rows", **key):
                continue
            try:
                row = peer.ask("row", timeout_s=LARGE_ROW_S if large else ROW_S, **task)
                self.record.add("rows", key | row | {"output_tokens": task["output_tokens"]})
            except PeerError as error:
                self._note_failure(name, peer, error)

    def _measure_first(self, name: str) -> None:
        """Measure the time to the first token of one prompt, and for plain decoding of nothing but prompts."""
        many, repeats = self.scale.many_prompts, self.scale.first_repeats
        wanted = [(1, 8, repeats)]
        if name == "plain":
            wanted += [(1, 1, repeats), (many, 1, 5)] if many else [(1, 1, repeats)]
        for batch, output_tokens, repeats in wanted:
            for engine, peer in self._peers(name):
                key = {"engine": engine, "case": name, "batch": batch, "output_tokens": output_tokens}
                if self.record.has("first", **key):
                    continue
                try:
                    task = {"batch": batch, "output_tokens": output_tokens, "repeats": repeats}
                    self.record.add("first", key | peer.ask("first", timeout_s=ROW_S, **task))
                except PeerError as error:
                    self._note_failure(name, peer, error)

    def _peers(self, name: str) -> list[tuple[str, Peer]]:
        """Return the engines that can be measured at a case."""
        found = [(self.peer, self.peers[name])] if name in self.peers else []
        return found if self.failures[name] >= MOST_FAILURES else [*found, (OURS, self.ours)]

    def _note_failure(self, name: str, peer: Peer, error: PeerError) -> None:
        if peer is self.ours:
            self._restart_ours(error, name)
        else:
            self.record.note(str(error))
            self.peers.pop(name).close()

    def _restart_ours(self, error: PeerError, name: str = "") -> None:
        """Note that our side failed and start it afresh at the same case: a CUDA error would spoil all that follows."""
        self.record.note(str(error))
        self.failures[name] += 1
        self.ours.close()
        self.ours = self._start_ours()
        if name and self.failures[name] < MOST_FAILURES:
            self._open_ours(name)

    def _measure_floor(self) -> None:
        """Measure copy bandwidth and bfloat16 matrix products once, while every engine is idle; not of a mixture's."""
        if (
            self.args.no_floor
            or self.record.content["floor"]
            or self.args.device != "cuda"
            or "num_experts" in self.scale.target
        ):
            return
        batches = {}
        for name in self.cases if self.scale.weight_bytes == 2 else ():
            large = self.scale.large_batches if CASES[name].to_large_batches and not self.args.no_large else ()
            batches[name] = [*(self.args.batches or self.scale.batches), *large]
        try:
            self.record.content["floor"] = self.ours.ask("floor", timeout_s=60, batches=batches)
            self.record.save()
        except PeerError as error:
            self._restart_ours(error)
        print(f"[{self.elapsed():.0f} s] floor measured", flush=True)

    def _measure_capacity(self) -> None:
        """Note how many tokens of context our engine holds when it may take its share of the whole card."""
        if self.args.device != "cuda" or self.args.no_capacity:
            return
        for name in self.cases:
            if self.left() < 20 or self.record.has("capacity", case=name):
                continue
            try:
                share = {"gpu_memory_utilization": MEMORY_SHARE, "max_num_seqs": 256}
                opened = self.ours.ask("open", timeout_s=60, case=name, **share)
                self.record.add("capacity", {"case": name, "kv_tokens": opened["kv_tokens"]} | share)
            except PeerError as error:
                self._restart_ours(error)

    def _measure_transformers(self) -> None:
        if self.record.content["transformers"] or self.left() < 25 or self.args.no_transformers:
            return
        try:
            task = {"output_tokens": min(64, self.scale.output_tokens), "static": self.args.static_cache}
            self.record.content["transformers"] = self.ours.ask("transformers", timeout_s=self.left(), **task)
            self.record.save()
        except PeerError as error:
            self.record.note(str(error))


def run_scales(args: argparse.Namespace) -> None:
    """Measure one shape after the other, and print the table of each; several have a folder each."""
    import report

    began, sessions = time.monotonic(), []
    for scale in args.scale:
        out = args.out / scale if len(args.scale) > 1 else args.out
        sessions.append(Session(argparse.Namespace(**(vars(args) | {"scale": scale, "out": out})), began))
    if len(sessions) > 1 and sessions[0].python:
        for step in (Session.start, Session.ready):
            for session in sessions:
                step(session)
    for session in sessions:
        session.run()
        print(report.as_markdown(report.merged([session.args.out / RESULT])), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    run = modes.add_parser("run", help="measure")
    peer = run.add_mutually_exclusive_group()  # without one: our engine alone
    peer.add_argument("--vllm-python", type=command_line, help="command line of a Python with vLLM")
    peer.add_argument("--sglang-python", type=command_line, help="command line of a Python with SGLang")
    run.add_argument("--out", type=Path, required=True, help="folder for versus_vllm.json and the engines' logs")
    run.add_argument("--commit", default="unknown", help="git commit that is measured")
    run.add_argument("--seconds", type=float, default=560, help="deadline")
    run.add_argument("--wave-s", type=float, default=230, help="seconds to keep for each later wave")
    run.add_argument("--cases", nargs="+", choices=CASES, default=[name for name in CASES if name != "ngram_gpu-k5"])
    run.add_argument("--batches", nargs="+", type=int, help="in place of the scale's, in this order")
    run.add_argument("--no-large", action="store_true", help="leave out batches beyond 64")
    run.add_argument("--no-capacity", action="store_true", help="do not measure how many tokens fit on the card")
    run.add_argument("--no-transformers", action="store_true")
    run.add_argument("--no-floor", action="store_true", help="do not time copies and matrix products by themselves")
    run.add_argument("--static-cache", action="store_true", help="transformers with a static cache too: 70 s")
    run.add_argument("--repeats", type=int, default=2)
    run.add_argument("--resume", type=result_file, help="an earlier versus_vllm.json")
    run.add_argument("--scale", nargs="+", choices=SCALES, default=["8b"], help="several: their engines start together")
    run.add_argument("--folders", type=Path, default=Path("/dev/shm/draftwise-bench"))
    run.add_argument("--device", default="cuda")
    run.add_argument("--acceptance", choices=("synthetic", "real"), default="synthetic")
    for mode in ("table", "plot"):
        later = modes.add_parser(mode, help=f"print the {mode} of results" if mode == "table" else "draw results")
        later.add_argument("results", type=result_file, nargs="+", help="later files replace the rows of earlier ones")
        later.add_argument("--svg", type=Path, help="folder for the figures" if mode == "plot" else argparse.SUPPRESS)
    args = parser.parse_args()
    import report

    if args.mode == "run":
        run_scales(args)
        return

    if args.mode == "plot":
        report.draw(report.merged(args.results), args.svg or args.results[-1].parent)
    else:
        print(report.as_markdown(report.merged(args.results)))


if __name__ == "__main__":
    main()
