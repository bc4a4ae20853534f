"""`draftwise watch` beside real vLLM on a GPU: the probe under load, changed heads, a graph cliff, the crossover.

    python benchmarks/h200/watch_vllm.py --vllm VLLM --target TARGET --head EAGLE3 --heldout FOLDER --out OUT.json

Without --vllm the servers are the embedded engine's: a rehearsal on any machine, with fewer requests (--loads 1 2 4).
All servers run side by side on one GPU, each with its own share of the cache, and are asked one at a time. The good one
makes the baseline at 8 requests at once, and a sweep of it and of its twin without speculation adds curve and
crossover. How many prompts of the probe change on the same server, idle, loaded or restarted, is what other changes are
held against.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))

from real_diagnoses import Lab, add_rules, traffic
from watch_vllm_cpu import VllmLab

from draftwise import __version__
from draftwise.backends import VllmBackend
from draftwise.backends.child import ChildBackend
from draftwise.core import Baseline, Setup, SpecConfig, Window

FLAGS = ["--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", str(6 << 30), "--max-model-len", "2048"]
FEW_GRAPHS = ["--max-cudagraph-capture-size", "64"]
INTERVAL_S, SETTLE_S = 10, 3.0
SHORT = 96


class GpuLab(VllmLab):
    """A lab whose servers share a GPU.

    Args:
        folder: for weights, logs and baselines.
        stack: that ends the servers.
        vllm: what starts one, up to `serve`.
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
        target: Path,
        head: Path,
        bodies: Sequence[Mapping[str, Any]],
        load: int,
    ) -> None:
        super().__init__(folder, stack, vllm)
        self.target, self.chat, self.flags, self.load = target, list(bodies), FLAGS, load
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

    async def watch(self, *arguments: object) -> dict[str, Any]:
        """Return what the command prints, with its exit code."""
        command = [sys.executable, "-m", "draftwise", "watch", *map(str, arguments), "--once", "--json"]
        process = await asyncio.create_subprocess_exec(*command, "--interval", str(INTERVAL_S), stdout=-1, stderr=-1)
        out, err = await process.communicate()
        if not out:
            raise RuntimeError(err.decode())
        return {**json.loads(out), "exit": process.returncode}

    async def record(self, name: str, url: str, bodies: Sequence[Mapping[str, Any]]) -> Path:
        """Return the baseline of a good server under traffic."""
        path = self.folder / f"{name}.json"
        async with traffic(url, bodies, self.load):
            await asyncio.sleep(SETTLE_S)
            await self.watch(url, "--record-baseline", path)
        return path

    async def look(self, url: str, streams: int, *arguments: object) -> dict[str, Any]:
        """Return what `watch` says of a server under so many streams."""
        async with traffic(url, self.chat, streams) if streams else nullcontext():
            await asyncio.sleep(SETTLE_S)
            return await self.watch(url, *arguments)

    async def measure(self, sweep: Sequence[int]) -> tuple[Path, dict[str, Any]]:
        """Return the baseline with the curve and the crossover of a sweep, and the sweep."""
        urls = {"spec": self._started["good"].url, "plain": self._started["plain"].url}
        seen: dict[tuple[str, int], Window] = {}
        for streams in sweep:
            for arm, url in urls.items():
                async with traffic(url, self.chat, streams):
                    await asyncio.sleep(SETTLE_S)
                    seen[arm, streams] = await self.see(url, 6 * streams)
        good = self.folder / "good.json"
        measured = add_rules(Baseline.from_json(good.read_text(), where=str(good)), seen, self.load)
        path = self.folder / "measured.json"
        path.write_text(measured.to_json())
        rows = {
            f"{arm} {n}": {"step_ms": 1000 * (each.step_s or 0), "seconds_per_token": each.seconds_per_token}
            for (arm, n), each in seen.items()
        }
        return path, {"sweep": rows, "rules": [[each.metric, each.value] for each in measured.rollback]}

    def command_of(self, name: str, spec: SpecConfig, *flags: str) -> Path:
        """Write the command of a server, for `--setup`."""
        self.flags = [*FLAGS, *flags]
        path = self.write_setup(spec)
        self.flags = FLAGS
        return path.rename(self.folder / f"{name}.sh")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One look, and the codes of which one must be first."""

    name: str
    codes: frozenset[str]
    look: Callable[[], Awaitable[dict[str, Any]]]


SAME = frozenset({"probe-same"})
CHANGED = frozenset({"drafter-changed", "drafter-noise"})


async def list_cases(lab: GpuLab, loads: Sequence[int]) -> tuple[list[Case], dict[str, Any]]:
    """Start every server, make the baseline, and return the cases with what the sweep measured."""
    torch.manual_seed(0)
    noised = lab.copy_head("noised", lambda each: (each * (1 + 0.15 * torch.randn(each.shape))).to(each.dtype))
    foreign = lab.copy_head("foreign", lambda each: each[torch.randperm(len(each))].contiguous())
    specs = {
        "good": lab.head,
        "plain": None,
        "good again": lab.head,
        "noised": noised,
        "foreign": foreign,
        "few graphs": lab.head,
    }
    urls = dict(zip(specs, await asyncio.gather(*map(lab.start, specs, specs.values())), strict=True))
    lab.version = (await lab._started["good"].describe()).version.get("version")
    good = await lab.record("good", urls["good"], lab.chat)
    most = 2 * loads[-1]
    measured, sweep = await lab.measure((lab.load, most // 4, most))

    def ask(name: str, streams: int, *arguments: object, baseline: Path = good) -> Callable[[], Any]:
        return lambda: lab.look(urls[name], streams, "--baseline", baseline, *arguments)

    def ask_changed(name: str, spec: SpecConfig) -> Callable[[], Any]:
        return ask(name, lab.load, "--probe", "--setup", lab.command_of(name, spec))

    idle = SAME | {"no-traffic"}
    few = lab.command_of("few graphs", lab.head, *FEW_GRAPHS)
    beyond = ("--setup", few, "--start-log", lab.folder / "few graphs.log")
    return [
        Case(name="the same server, idle", codes=idle, look=ask("good", 0, "--probe")),
        Case(name="the same server, idle, again", codes=idle, look=ask("good", 0, "--probe")),
        *(Case(name=f"the same server, {n} at once", codes=SAME, look=ask("good", n, "--probe")) for n in loads),
        Case(name="the same weights, restarted", codes=SAME, look=ask("good again", lab.load, "--probe")),
        Case(name="a noised head", codes=CHANGED, look=ask_changed("noised", noised)),
        Case(name="a foreign head", codes=CHANGED, look=ask_changed("foreign", foreign)),
        Case(
            name="more tokens than its graphs hold",
            codes=frozenset({"beyond-graphs"}),
            look=ask("few graphs", most // 4, *beyond, baseline=measured),
        ),
        Case(
            name="the most of the sweep",
            codes=frozenset({"above-crossover", "none"}),
            look=ask("good", most, baseline=measured),
        ),
        Case(name="as measured", codes=frozenset({"none"}), look=ask("good", lab.load, baseline=measured)),
    ], sweep


def sum_up(case: Case, seen: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept."""
    first = next((each["code"] for each in seen["findings"]), "none")
    keys = ("tokens_per_step", "coverage", "rate_per_pos", "counted")
    return {
        "case": case.name,
        "named first": first,
        "right": first in case.codes,
        "wanted": sorted(case.codes),
        "exit": seen["exit"],
        "findings": [{key: each[key] for key in ("code", "message")} for each in seen["findings"]],
        **{key: [pool.get(key) for pool in seen["pools"]] for key in keys},
    }


async def run(given: argparse.Namespace) -> None:
    """Look at each, and write what was said."""
    began, rows = time.monotonic(), []
    lines = [line for file in sorted(given.heldout.glob("*.jsonl")) for line in file.read_text().splitlines()]
    bodies = [{"messages": json.loads(line)["messages"], "max_tokens": SHORT} for line in lines]
    with TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        async with AsyncExitStack() as stack:
            lab = GpuLab(
                folder,
                stack,
                vllm=given.vllm,
                target=given.target,
                head=given.head,
                bodies=bodies,
                load=given.loads[0],
            )
            cases, sweep = await list_cases(lab, given.loads)
            for case in cases:
                try:
                    row = sum_up(case, await case.look())
                except Exception as error:  # one that cannot be looked at does not take the others along
                    row = {"case": case.name, "named first": "", "right": False, "failed": repr(error)}
                print(json.dumps(row), flush=True)
                rows.append(row)
                head = {
                    "date": datetime.now(UTC).date().isoformat(),
                    "draftwise": __version__,
                    "vllm": lab.version,
                    "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
                    "serve": " ".join(FLAGS),
                    "seconds": round(time.monotonic() - began),
                    "right": sum(each["right"] for each in rows),
                    **sweep,
                }
                given.out.write_text(json.dumps({**head, "cases": rows}, indent=1) + "\n")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default="", help="command of vLLM, up to `serve`")
    parser.add_argument("--loads", type=int, nargs="+", default=[8, 32, 128], help="requests at once; first: usual")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--head", type=Path, required=True, help="EAGLE-3 head of the target")
    parser.add_argument("--heldout", type=Path, required=True, help="folder of requests, .jsonl")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", type=Path, help="folder for logs, weights and baselines")
    given = parser.parse_args()
    if given.keep:
        given.keep.mkdir(exist_ok=True, parents=True)
    asyncio.run(run(given))


if __name__ == "__main__":
    main()
