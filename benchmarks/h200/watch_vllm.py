"""`draftwise watch` beside real vLLM on a GPU: the probe under load, changed heads, a graph cliff, the crossover.

    python benchmarks/h200/watch_vllm.py --vllm VLLM --target TARGET --head EAGLE3 --heldout FOLDER --out OUT.json

Without --vllm the servers are the embedded engine's: a rehearsal on any machine, with fewer requests (--loads 1 2 4).
All servers run side by side on one GPU, each with its own share of the cache, and are asked one at a time. The good one
starts alone, so that the others find what it compiled. It makes the baseline at the first of the loads, and a sweep of
it and of its twin without speculation adds curve and crossover. How many prompts of the probe change on the same
server, idle, loaded or restarted, is what other changes are held against. Whether there is a cliff or a crossover at
all, the times of the sweep say: what the last cases must name follows from them.

Every wait is bounded by --seconds: what is left then is written as not looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))

from real_diagnoses import Lab, add_rules, judge, traffic
from record import command_line, existing_path
from watch_vllm_cpu import VllmLab

from draftwise import __version__
from draftwise.backends import VllmBackend
from draftwise.backends.child import ChildBackend
from draftwise.core import Baseline, Setup, SpecConfig, Window

FLAGS = "--gpu-memory-utilization 0.1 --kv-cache-memory-bytes 4294967296 --max-model-len 2048"
FEW_GRAPHS = ["--max-cudagraph-capture-size", "64"]
RECORD_S, INTERVAL_S, IDLE_S, SETTLE_S = 12, 6, 2, 1.5
ANSWER = 256
"""Tokens of an answer at most: with shorter ones, the API server is busy with requests before the GPU is with steps."""
ROUNDS = 3
"""Answers of each stream that a measurement of the sweep waits for."""
END_S = 15
"""Of the limit, for ending the servers."""
SLOWER, PAYS, LOSES = 1.2, 1.0, 0.93
"""Ratios to the sweep from which on a fault is certain to be one, or none."""


class GpuLab(VllmLab):
    """A lab whose servers share a GPU.

    Args:
        folder: for weights, logs and baselines.
        stack: that ends the servers.
        vllm: what starts one, up to `serve`; empty for the embedded engine.
        flags: of vLLM.
        target: directory of the model.
        head: directory of its EAGLE-3 head.
        bodies: requests.
        load: how many are usual at once.
    """

    def __init__(
        self,
        folder: Path,
        stack: AsyncExitStack,
        *,
        vllm: str,
        flags: Sequence[str],
        target: Path,
        head: Path,
        bodies: Sequence[Mapping[str, Any]],
        load: int,
    ) -> None:
        super().__init__(folder, stack, vllm)
        self.target, self.chat, self.flags, self.load = target, list(bodies), list(flags), load
        self.head = SpecConfig(method="eagle3", num_speculative_tokens=3, model=str(head))

    def make(self, name: str, spec: SpecConfig | None) -> ChildBackend:
        """Return a server that is not started yet; the one named "few graphs" captures few."""
        if not self._vllm:
            return Lab.make(self, name, spec)
        flags = (*self.flags, *(FEW_GRAPHS if name == "few graphs" else ()))
        setup = Setup(target=str(self.target), spec=spec, engine="vllm", extra_args=flags)
        return VllmBackend(name, setup, log=self.folder / f"{name}.log", vllm=self._vllm)

    async def start(self, name: str, spec: SpecConfig | None) -> str:
        """Return the URL of a server, started once, beside the others."""
        return await Lab.start(self, name, spec)

    async def watch(self, *arguments: object, interval_s: float = INTERVAL_S) -> dict[str, Any]:
        """Return what the command prints, with its exit code."""
        command = [sys.executable, "-m", "draftwise", "watch", *map(str, arguments), "--once", "--json"]
        process = await asyncio.create_subprocess_exec(*command, "--interval", str(interval_s), stdout=-1, stderr=-1)
        try:
            out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        if not out:
            raise RuntimeError(err.decode())
        return {**json.loads(out), "exit": process.returncode}

    async def record(self, name: str, url: str, bodies: Sequence[Mapping[str, Any]]) -> Path:
        """Return the baseline of a good server under traffic."""
        path = self.folder / f"{name}.json"
        async with traffic(url, bodies, self.load):
            await asyncio.sleep(SETTLE_S)
            await self.watch(url, "--record-baseline", path, interval_s=RECORD_S)
        return path

    async def look(self, name: str, streams: int, *arguments: object) -> dict[str, Any]:
        """Return what `watch` says of a server under so many streams."""
        url = self.find(name).url
        if not streams:
            return await self.watch(url, *arguments, interval_s=IDLE_S)
        async with traffic(url, self.chat, streams):
            await asyncio.sleep(SETTLE_S)
            return await self.watch(url, *arguments)

    def find(self, name: str) -> ChildBackend:
        """Return a server that runs.

        Raises:
            RuntimeError: it does not.
        """
        if name not in self._started:
            raise RuntimeError(f"the server of {name!r} did not start")
        return self._started[name]

    async def measure(self, sweep: Sequence[int], good: Path) -> tuple[Path, dict[tuple[str, int], Window]]:
        """Return the baseline with the curve and the crossover of a sweep, and the sweep, by arm and streams."""
        urls = {"spec": self.find("good").url, "plain": self.find("plain").url}
        seen: dict[tuple[str, int], Window] = {}
        for streams in sweep:
            for arm, url in urls.items():
                async with traffic(url, self.chat, streams):
                    await asyncio.sleep(SETTLE_S)
                    seen[arm, streams] = await self.see(url, ROUNDS * max(streams, self.load))
        measured = add_rules(Baseline.from_json(good.read_text(), where=str(good)), seen, self.load)
        path = self.folder / "measured.json"
        path.write_text(measured.to_json())
        return path, seen

    def command_of(self, name: str, spec: SpecConfig, *flags: str) -> Path:
        """Write the command of a server, for `--setup`."""
        words = ["vllm", "serve", self.target, *self.flags, *flags, "--speculative-config", spec.to_json()]
        path = self.folder / f"{name}.sh"
        path.write_text(shlex.join(map(str, words)) + "\n")
        return path


Seen = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One look, and the codes of which one must be first: known before, or told by what was seen."""

    name: str
    codes: Callable[[Seen], frozenset[str]]
    look: Callable[[], Awaitable[dict[str, Any]]]


SAME = frozenset({"probe-same"})
CHANGED = frozenset({"drafter-changed", "drafter-noise"})
NONE = frozenset({"none"})


@dataclass(kw_only=True)
class Record:
    """What is known so far, in a file that is written again with every piece of it."""

    out: Path
    limit_s: float
    began: float = field(default_factory=time.monotonic)
    started_s: dict[str, float] = field(default_factory=dict)
    sweep: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)

    @property
    def passed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float:
        """Seconds until the servers must be ended."""
        return max(0.0, self.limit_s - END_S - self.passed_s)

    def tell(self, text: str) -> None:
        """Print a line with the time."""
        print(f"{self.passed_s:6.1f} s  {text}", flush=True)

    def fail(self, what: str, error: BaseException) -> None:
        """Keep what did not work."""
        self.failed.append(f"{what}: {repr(error)[-1000:]}")
        self.tell(self.failed[-1])

    def write(self, head: Mapping[str, Any]) -> None:
        """Write the file."""
        right = sum(each["right"] for each in self.cases)
        known = {"seconds": round(self.passed_s), "right": right, "started_s": self.started_s, "failed": self.failed}
        self.out.write_text(json.dumps({**head, **known, **self.sweep, "cases": self.cases}, indent=1) + "\n")


async def start_all(lab: GpuLab, specs: Mapping[str, SpecConfig | None], record: Record) -> None:
    """Start the first server, which fills vLLM's cache of compiled graphs, then the others together."""

    async def start(name: str) -> None:
        began = time.monotonic()
        try:
            async with asyncio.timeout(record.left_s):
                await lab.start(name, specs[name])
        except Exception as error:  # the cases of the others can be looked at without it
            record.fail(f"starting {name!r}", error)
        else:
            record.started_s[name] = round(time.monotonic() - began, 1)
            record.tell(f"{name!r} is ready after {record.started_s[name]} s")

    first, *others = specs
    await start(first)
    await asyncio.gather(*map(start, others))


async def measure(lab: GpuLab, sweep: Sequence[int], good: Path, record: Record) -> dict[tuple[str, int], Window]:
    """Return the sweep; none of it if it did not come to its end."""
    try:
        async with asyncio.timeout(record.left_s):
            _, seen = await lab.measure(sweep, good)
    except Exception as error:  # only the cases that rest on it are lost
        record.fail("the sweep", error)
        return {}
    rows = {
        f"{arm} {n}": {
            "in flight": each.load.running,
            "waiting": each.load.waiting,
            "step_ms": 1000 * (each.step_s or 0),
            "tokens_per_step": each.tokens_per_step,
            "seconds_per_token": each.seconds_per_token,
            "finished": each.sums.finished,
            "seconds": each.duration_s,
        }
        for (arm, n), each in seen.items()
    }
    gains = {str(n): find_gain(seen, n) for n in sweep}
    rules = Baseline.from_json((lab.folder / "measured.json").read_text(), where="measured.json").rollback
    record.sweep = {"sweep": rows, "gains": gains, "rules": [[each.metric, each.value] for each in rules]}
    record.tell(f"the sweep: {json.dumps(gains)}")
    return seen


def find_gain(seen: Mapping[tuple[str, int], Window], streams: int) -> float:
    """Return how many times faster a stream is with speculation."""
    return (seen["plain", streams].seconds_per_token or 0) / (seen["spec", streams].seconds_per_token or 1)


def judge_cliff(sweep: Mapping[tuple[str, int], Window], streams: int, seen: Seen) -> frozenset[str]:
    """Return what to name on a server with few graphs: them, where steps are slower than in the sweep."""
    ratio = (seen["pools"][0]["step_s"] or 0) / (sweep["spec", streams].step_s or 1)
    at_this_load = judge_load(sweep, streams)
    if ratio < 1:
        return at_this_load
    beyond = frozenset({"beyond-graphs"}) | (at_this_load - NONE)
    return beyond if ratio > SLOWER else beyond | NONE


def judge_load(sweep: Mapping[tuple[str, int], Window], streams: int) -> frozenset[str]:
    """Return what to name at a load of the sweep: the crossover, where speculation lost there."""
    crossover, gain = frozenset({"above-crossover"}), find_gain(sweep, streams)
    return crossover if gain < LOSES else NONE if gain > PAYS else crossover | NONE


def list_cases(
    lab: GpuLab,
    loads: Sequence[int],
    sweep: Mapping[tuple[str, int], Window],
    heads: Mapping[str, SpecConfig],
) -> list[Case]:
    """Return the cases, the cheapest and the most telling first."""
    good, measured = lab.folder / "good.json", lab.folder / "measured.json"
    most = 2 * loads[-1]

    def case(name: str, codes: frozenset[str], server: str, streams: int, *arguments: object) -> Case:
        look = partial(lab.look, server, streams, "--baseline", good, "--probe", *arguments)
        return Case(name=name, codes=lambda _: codes, look=look)

    def case_of_times(
        name: str, codes: Callable[[Seen], frozenset[str]], server: str, streams: int, *more: Any
    ) -> Case:
        return Case(name=name, codes=codes, look=partial(lab.look, server, streams, "--baseline", measured, *more))

    idle = SAME | {"no-traffic"}
    few = ("--setup", lab.command_of("few graphs", lab.head, *FEW_GRAPHS), "--start-log", lab.folder / "few graphs.log")
    return [
        case("the same server, idle", idle, "good", 0),
        *(case(f"the same server, {n} at once", SAME, "good", n) for n in loads),
        *(
            case(f"a {name} head", CHANGED, name, lab.load, "--setup", lab.command_of(name, head))
            for name, head in heads.items()
        ),
        case("the same weights, restarted", SAME, "good again", lab.load),
        case_of_times(
            "more tokens than its graphs hold", partial(judge_cliff, sweep, most // 4), "few graphs", most // 4, *few
        ),
        case_of_times("the most of the sweep", lambda _: judge_load(sweep, most), "good", most),
        case_of_times("as measured", lambda _: NONE, "good", lab.load),
        case("the same server, idle, again", idle, "good", 0),
    ]


def sum_up(case: Case, seen: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept."""
    keys = ("running", "tokens_per_step", "step_s", "coverage", "rate_per_pos", "counted")
    return {
        "case": case.name,
        **judge(seen, case.codes(seen)),
        **{key: [pool.get(key) for pool in seen["pools"]] for key in keys},
    }


async def look_at(case: Case, record: Record) -> dict[str, Any]:
    """Return what was seen; a case that cannot be looked at does not take the others along."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(record.left_s):
            row = sum_up(case, await case.look())
    except Exception as error:
        row = {"case": case.name, "named first": "", "right": False, "failed": repr(error)[-1000:]}
    return {**row, "seconds": round(time.monotonic() - began, 1)}


async def run(given: argparse.Namespace) -> None:
    """Look at each, and write what was said."""
    record = Record(out=given.out, limit_s=given.seconds)
    lines = [line for file in sorted(given.heldout.glob("*.jsonl")) for line in file.read_text().splitlines()]
    random.Random(0).shuffle(lines)  # every window sees all kinds
    bodies = [{"messages": json.loads(line)["messages"], "max_tokens": ANSWER} for line in lines]
    with TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        async with AsyncExitStack() as stack:
            lab = GpuLab(
                folder,
                stack,
                vllm=given.vllm or "",
                flags=shlex.split(given.flags),
                target=given.target,
                head=given.head,
                bodies=bodies,
                load=given.loads[0],
            )
            torch.manual_seed(0)
            heads = {
                "noised": lab.copy_head("noised", lambda each: each * (1 + 0.15 * torch.randn_like(each))),
                "foreign": lab.copy_head("foreign", lambda each: each[torch.randperm(len(each))].contiguous()),
            }
            specs = {"good": lab.head, "plain": None, "good again": lab.head, **heads, "few graphs": lab.head}
            await start_all(lab, specs, record)
            most = 2 * given.loads[-1]
            sweep: dict[tuple[str, int], Window] = {}
            try:
                async with asyncio.timeout(record.left_s):
                    lab.version = (await lab.find("good").describe()).version.get("version")
                    good = await lab.record("good", lab.find("good").url, lab.chat)
                record.tell("the baseline is recorded")
                sweep = await measure(lab, (lab.load, most // 4, most), good, record)
            except Exception as error:
                record.fail("the baseline", error)
            head = {
                "date": datetime.now(UTC).date().isoformat(),
                "draftwise": __version__,
                "vllm": lab.version,
                "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
                "serve": given.flags,
                "limit_s": given.seconds,
            }
            record.write(head)
            for case in list_cases(lab, given.loads, sweep, heads):
                row = await look_at(case, record)
                record.cases.append(row)
                record.tell(json.dumps(row))
                record.write(head)
        record.tell(f"the servers have ended; {sum(each['right'] for each in record.cases)} of {len(record.cases)}")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=command_line, help="command of vLLM, up to `serve`")
    parser.add_argument("--flags", default=FLAGS, help="of vLLM, as one argument")
    parser.add_argument("--loads", type=int, nargs="+", default=[8, 32, 128], help="requests at once; first: usual")
    parser.add_argument("--seconds", type=float, default=460, help="limit of it all")
    parser.add_argument("--target", type=existing_path, required=True)
    parser.add_argument("--head", type=existing_path, required=True, help="EAGLE-3 head of the target")
    parser.add_argument("--heldout", type=existing_path, required=True, help="folder of requests, .jsonl")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="folder for logs, weights and baselines")
    given = parser.parse_args()
    if given.keep:
        given.keep.mkdir(exist_ok=True, parents=True)
    asyncio.run(run(given))


if __name__ == "__main__":
    main()
