"""`draftwise watch` beside real vLLM for CPU: a good drafter, a noised one, a foreign one, and one of short reach.

    python benchmarks/interop/watch_vllm_cpu.py --vllm VLLM [--only "a noised head"]

Each is served by a `vllm serve` of its own under traffic at temperature 0 and looked at as an operator would. The good
one gives the baseline (`--record-baseline`), and is asked again idle, loaded and restarted: how many prompts of the
probe change there without a cause is what the other changes are held against.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import shlex
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "cpu"))
sys.path.append(str(Path(__file__).parents[1] / "h200"))

from real_diagnoses import STREAMS, Lab, judge, put_row, traffic
from record import command_line

from draftwise import __version__
from draftwise.backends import VllmBackend
from draftwise.core import Setup, SpecConfig
from draftwise.core.documents import to_json
from draftwise.measure.run_context import describe_hardware

HERE = Path(__file__).parent
SERVE = ["--enforce-eager", "--dtype", "float32", "--kv-cache-memory-bytes", "134217728", "--max-model-len", "2048"]
DRAFTER_LENGTH = 512


class VllmLab(Lab):
    """A lab whose servers are vLLM's.

    Args:
        folder: for weights, logs and baselines.
        stack: that ends the servers.
        vllm: what starts one, up to `serve`.
    """

    def __init__(self, folder: Path, stack: AsyncExitStack, vllm: str) -> None:
        super().__init__(folder, stack)
        self._vllm, self.version, self.flags = vllm, "", SERVE

    def make(self, name: str, spec: SpecConfig | None) -> VllmBackend:
        """Return a server that is not started yet."""
        setup = Setup(target=str(self.target), spec=spec, engine="vllm", extra_args=tuple(self.flags))
        return VllmBackend(name, setup, log=self.folder / f"{name}.log", vllm=self._vllm)

    async def start(self, name: str, spec: SpecConfig | None) -> str:
        """Start a server, once and after the others have ended, and return its URL."""
        for other in [each for each in self._started if each != name]:
            await self.stop(other)
        url = await super().start(name, spec)
        self.version = (await self._started[name].describe()).version.get("version")
        return url

    async def ask(self, url: str, baseline: Path, *arguments: object, streams: int = STREAMS) -> dict[str, Any]:
        """Return what `watch --probe` says; without streams the server is idle."""
        load = traffic(url, self.chat, streams) if streams else nullcontext()
        return await self.watch_under(load, url, "--baseline", baseline, "--probe", *arguments)

    def write_setup(self, spec: SpecConfig) -> Path:
        """Write the command of a server, for `--setup`."""
        path = self.folder / f"{Path(spec.model or '').name}.sh"
        words = ["vllm", "serve", self.target, *self.flags, "--speculative-config", spec.to_json()]
        path.write_text(shlex.join(map(str, words)) + "\n")
        return path


async def ask_idle(lab: VllmLab) -> dict[str, Any]:
    """Ask the good server with nothing else to do."""
    baseline = await lab.find_baseline()
    return await lab.ask(await lab.start("good", lab.head), baseline, "--interval", 5, streams=0)


async def ask_loaded(lab: VllmLab) -> dict[str, Any]:
    """Ask the good server while it answers others."""
    baseline, url = await lab.find_baseline(), await lab.start("good", lab.head)
    async with traffic(url, lab.chat, STREAMS):
        return await lab.watch(url, "--baseline", baseline, "--probe")


async def ask_restarted(lab: VllmLab) -> dict[str, Any]:
    """Ask another process with the same weights."""
    baseline = await lab.find_baseline()
    return await lab.ask(await lab.start("good again", lab.head), baseline)


async def ask_noised(lab: VllmLab) -> dict[str, Any]:
    """Disturb every weight of the head by 15 %."""
    torch.manual_seed(0)
    return await _ask_other(
        lab, lab.copy_head("noised", lambda each: (each * (1 + 0.15 * torch.randn(each.shape))).to(each.dtype))
    )


async def ask_foreign(lab: VllmLab) -> dict[str, Any]:
    """Take a head whose matrices belong to other rows."""
    torch.manual_seed(0)
    return await _ask_other(lab, lab.copy_head("foreign", lambda each: each[torch.randperm(len(each))].contiguous()))


async def _ask_other(lab: VllmLab, spec: SpecConfig) -> dict[str, Any]:
    baseline = await lab.find_baseline()
    url = await lab.start(Path(spec.model or "").name, spec)
    return await lab.ask(url, baseline, "--setup", lab.write_setup(spec))


async def look_at_long(lab: VllmLab) -> dict[str, Any]:
    """Run one context beyond the drafter's length beside short ones, without a probe."""
    spec = lab.copy_head("short", lambda each: each, max_position_embeddings=DRAFTER_LENGTH)
    baseline, url = await lab.find_baseline(), await lab.start("short", spec)
    async with traffic(url, lab.chat, STREAMS - 1), traffic(url, [lab.find_long()], 1):
        known = ("--setup", lab.write_setup(spec), "--start-log", lab.folder / "short.log")
        return await lab.watch(url, "--baseline", baseline, *known)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One server, and the codes of which one must be first."""

    name: str
    codes: frozenset[str]
    look: Callable[[VllmLab], Awaitable[dict[str, Any]]]


SAME = frozenset({"probe-same"})
CASES = (
    Case(name="the same server, idle", codes=SAME | {"no-traffic"}, look=ask_idle),
    Case(name="the same server, loaded", codes=SAME, look=ask_loaded),
    Case(name="the same server, restarted", codes=SAME, look=ask_restarted),
    Case(name="a noised head", codes=frozenset({"drafter-changed"}), look=ask_noised),
    Case(name="a foreign head", codes=frozenset({"drafter-noise", "drafter-changed"}), look=ask_foreign),
    Case(name="one long context", codes=frozenset({"context-gated"}), look=look_at_long),
)


def sum_up(case: Case, seen: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept."""
    keys = ("tokens_per_step", "coverage", "rate_per_pos", "conditional_rate_per_pos", "counted")
    return {
        "case": case.name,
        **judge(seen, case.codes),
        **{key: [pool[key] for pool in seen["pools"]] for key in keys},
    }


async def run(vllm: str, names: list[str], out: Path, keep: Path | None) -> None:
    """Look at each, and write what was said."""
    with TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            lab = VllmLab(keep or Path(folder), stack, vllm)
            for case in CASES:
                if names and case.name not in names:
                    continue
                try:
                    row = sum_up(case, await case.look(lab))
                except Exception as error:  # one that cannot be looked at does not take the others along
                    row = {"case": case.name, "named first": "", "right": False, "failed": repr(error)}
                head = {
                    "date": datetime.now(UTC).date().isoformat(),
                    "draftwise": __version__,
                    "vllm": lab.version,
                    "python": platform.python_version(),
                    "hardware": to_json(describe_hardware()),
                    "serve": " ".join(SERVE),
                }
                put_row(out, "case", row, head)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=command_line, required=True, help="Command of a vLLM for CPU, up to `serve`.")
    parser.add_argument("--only", action="append", default=[], choices=[case.name for case in CASES])
    parser.add_argument("--out", type=Path, default=HERE / "results/watch_vllm_cpu.json")
    parser.add_argument(
        "--keep",
        type=Path,
        help="Folder of the baseline, for cases that are run one by one: first those of the same server.",
    )
    given = parser.parse_args()
    if given.keep:
        given.keep.mkdir(exist_ok=True)
    asyncio.run(run(given.vllm, given.only, given.out, given.keep))


if __name__ == "__main__":
    main()
