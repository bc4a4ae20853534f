"""Eight real faults of the embedded engine, and what `draftwise watch --once` names first.

    python benchmarks/cpu/real_diagnoses.py [--only "the flag is lost"]

A good server of the bundled model with its EAGLE-3 head is watched under traffic and probed, which makes the baseline.
Where load is the fault, a short sweep over streams, of it and of its twin without speculation, adds the crossover: if
others use the machine, times are a fault of their own. Each fault is made with real weights, real requests and real
processes, and the command is run as an operator runs it. What each fault is to be called stands in `FAULTS`; results
are written one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import secrets
import shutil
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date
from itertools import cycle, pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import torch
from safetensors.torch import load_file, save_file

from draftwise import __version__
from draftwise.backends import EmbeddedBackend
from draftwise.backends.child import ChildBackend
from draftwise.core import (
    Baseline,
    ClosedLoop,
    Condition,
    Relation,
    Rollback,
    RollbackBasis,
    Setup,
    SpecConfig,
    Window,
)
from draftwise.knowledge.signals import LOAD_SIGNALS, TOKENS_PER_STEP
from draftwise.machine.cores import cpu_name
from draftwise.watching.watcher import Watcher, open_pages

BUNDLE = Path(__file__).parents[2] / "bundle"
RESULTS = Path(__file__).parent / "results" / "real_diagnoses.json"
STREAMS = 4
"""Requests in flight on a server, unless the fault is about their number."""
SWEEP = (1, 4, 16)
CROWD = 32
DRAFTER_LENGTH = 512
LONG_CHARACTERS = 3200
WINDOW_S, RATES_S = 30.0, 22.0
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
START_S = 5.0
"""In which the command has looked for the first time; the traffic ends before the probe is sent."""
EAGLE3 = SpecConfig(method="eagle3", num_speculative_tokens=3, model=str(BUNDLE / "eagle3"))
NGRAM = SpecConfig(method="ngram", num_speculative_tokens=3, options={"prompt_lookup_min": 3, "prompt_lookup_max": 5})


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault, and the codes that name it."""

    name: str
    codes: frozenset[str]
    make: Callable[[Lab], Any]


def read_prompts(name: str) -> list[dict[str, Any]]:
    """Return the bodies of held-out requests."""
    rows = [json.loads(line) for line in (BUNDLE / "heldout" / f"{name}.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in ("prompt", "messages") if key in row} | {"max_tokens": 96} for row in rows]


def parse_page(text: str) -> dict[str, float]:
    """Return vLLM's counters and gauges by name and position."""
    found = {}
    for name, labels, value in re.findall(r"^vllm:(\w+)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE):
        position = re.search(r'position="\d+"', labels)
        if name in GAUGES or name.endswith(("_total", "_sum", "_count")):
            found[f"{name}{{{position[0]}}}" if position else name] = float(value)
    return found


def make_fresh(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request that nobody has sent before, so that no prefix of it is cached."""
    mark = f"# {secrets.token_hex(4)}\n"
    if "prompt" in body:
        return {**body, "prompt": mark + body["prompt"]}
    first, *others = body["messages"]
    return {**body, "messages": [{**first, "content": mark + first["content"]}, *others]}


@asynccontextmanager
async def traffic(url: str, bodies: Sequence[Mapping[str, Any]], streams: int, **sampling: Any) -> AsyncIterator[None]:
    """Keep requests in flight, each stream through a client of its own: one for all costs 24 ms a request at 256."""
    secure = ssl.create_default_context()
    async with AsyncExitStack() as stack:
        clients = [httpx.AsyncClient(base_url=url, timeout=120, verify=secure) for _ in range(streams)]
        for each in clients:
            await stack.enter_async_context(each)
        model = (await clients[0].get("/v1/models")).json()["data"][0]["id"]
        turn = cycle(bodies)

        async def stream(client: httpx.AsyncClient) -> None:
            while True:
                body = {"temperature": 0, **make_fresh(next(turn)), **sampling, "model": model}
                path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
                (await client.post(path, json=body)).raise_for_status()

        running = asyncio.gather(*map(stream, clients))
        await asyncio.sleep(2)
        try:
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running  # says what a request failed of


class Lab:
    """Servers that run, and the baseline of the good one.

    Args:
        folder: for weights, logs and baselines.
        stack: that ends the servers.

    Attributes:
        target: what is served.
        head: the good drafter.
        chat: bodies of requests.
    """

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.target, self.head = BUNDLE / "target", EAGLE3
        self.chat = [*read_prompts("prose"), *read_prompts("code")]
        self._started: dict[str, ChildBackend] = {}
        stack.push_async_callback(self._end)

    def make(self, name: str, spec: SpecConfig | None) -> ChildBackend:
        """Return a server that is not started yet."""
        setup = Setup(target=str(self.target), spec=spec)
        return EmbeddedBackend(name, setup, log=self.folder / f"{name}.log")

    async def start(self, name: str, spec: SpecConfig | None) -> str:
        """Start a server, once, and return its URL."""
        if name not in self._started:
            backend = self.make(name, spec)
            await backend.start()
            self._started[name] = backend
        return self._started[name].url

    async def _end(self) -> None:
        """End all servers, side by side."""
        await asyncio.gather(*(each.stop() for each in self._started.values()))

    async def stop(self, name: str) -> None:
        """End a server."""
        await self._started.pop(name).stop()

    def find_long(self) -> dict[str, Any]:
        """Return the body of a request of some thousand tokens."""
        text = " ".join(body["prompt"] for body in self.chat if "prompt" in body)[:LONG_CHARACTERS]
        return {"prompt": text, "max_tokens": 400}

    def copy_head(self, name: str, change: Callable[[torch.Tensor], torch.Tensor], **config: object) -> SpecConfig:
        """Return the config of a head whose matrices, or settings, were changed."""
        path = self.folder / name
        shutil.copytree(self.head.model or "", path, dirs_exist_ok=True)
        for file in path.glob("*.safetensors"):
            save_file({key: change(each) if each.dim() == 2 else each for key, each in load_file(file).items()}, file)
        if config:
            settings = json.loads((path / "config.json").read_text())
            (path / "config.json").write_text(json.dumps(settings | config))
        return replace(self.head, model=str(path))

    async def see(self, url: str, num_requests: int) -> Window:
        """Return the recent past of a server, once so many requests ended in it."""
        watcher = Watcher(open_pages({"spec": (url,)}, {"spec": {}}))
        await watcher.look()
        while True:
            await asyncio.sleep(2)
            for window in (await watcher.look()).recent:
                if (window.sums.finished or 0) >= num_requests:
                    watcher.close()
                    return window

    def find_good_rates(self, arguments: Sequence[object]) -> Any:
        """Return the rates of the good time that a command compares with."""
        path = next((each for each in arguments if isinstance(each, Path) and self._rates_file(each).exists()), None)
        return None if path is None else json.loads(self._rates_file(path).read_text())

    @staticmethod
    def _rates_file(baseline: Path) -> Path:
        return baseline.with_name(f"{baseline.stem}_rates.json")

    async def watch(self, *arguments: object) -> dict[str, Any]:
        """Return what the command prints, with its exit code."""
        command = [sys.executable, "-m", "draftwise", "watch", *map(str, arguments), "--once", "--json"]
        command += ["--interval", str(WINDOW_S)] if "--interval" not in command else []
        process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
        urls = [each for each in arguments if str(each).startswith("http")]
        (out, err), rates = await asyncio.gather(process.communicate(), self._find_rates(urls))
        if not out:
            raise RuntimeError(err.decode())
        good = self.find_good_rates(arguments)
        return {**json.loads(out), "exit": process.returncode, "rates": rates, "good": good}

    async def _find_rates(self, urls: Sequence[object]) -> list[dict[str, float]]:
        """Return what each server counts in a second of the window, and its gauges; nothing of one that is gone."""
        async with httpx.AsyncClient() as client:

            async def read(url: object) -> dict[str, float]:
                try:
                    return parse_page((await client.get(f"{url}/metrics")).text)
                except httpx.HTTPError:
                    return {}

            await asyncio.sleep(START_S)
            before, began = [await read(url) for url in urls], time.monotonic()
            await asyncio.sleep(RATES_S)
            after, seconds = [await read(url) for url in urls], time.monotonic() - began
        return [
            {name: value if name in GAUGES else (value - b.get(name, 0.0)) / seconds for name, value in a.items()}
            for b, a in zip(before, after, strict=True)
        ]

    async def record(self, name: str, url: str, bodies: Sequence[Mapping[str, Any]]) -> Path:
        """Return the baseline of a good server under traffic."""
        path = self.folder / f"{name}.json"
        seen = await self.watch_under(traffic(url, bodies, STREAMS), url, "--record-baseline", path)
        self._rates_file(path).write_text(json.dumps(seen["rates"]))
        return path

    async def watch_under(self, load: AbstractAsyncContextManager[None], *arguments: object) -> dict[str, Any]:
        """Return what the command prints, with traffic during its window and none during its probe."""
        async with load:
            watching = asyncio.create_task(self.watch(*arguments))
            await asyncio.wait([watching], timeout=START_S + WINDOW_S)
        return await watching

    async def find_baseline(self) -> Path:
        """Return the baseline of the good server, as it is recorded."""
        path = self.folder / "good.json"
        if not path.exists():
            await self.record("good", await self.start("good", self.head), self.chat)
        return path

    async def find_measured(self) -> Path:
        """Return it with break-even and crossover of a short sweep."""
        path = self.folder / "measured.json"
        if path.exists():
            return path
        urls = {"spec": await self.start("good", self.head), "plain": await self.start("plain", None)}
        seen: dict[tuple[str, int], Window] = {}
        for streams, (arm, url) in product(SWEEP, urls.items()):  # what else runs here meets both arms
            async with traffic(url, self.chat, streams):
                seen[arm, streams] = await self.see(url, 2 * streams + 6)
        good = await self.find_baseline()
        baseline = Baseline.from_json(good.read_text(), where=str(good))
        path.write_text(add_rules(baseline, seen).to_json())
        shutil.copy(self._rates_file(good), self._rates_file(path))
        return path


def add_rules(baseline: Baseline, seen: Mapping[tuple[str, int], Window], load: int = STREAMS) -> Baseline:
    """Return a baseline with the rules and the curves of a sweep over streams, arm by arm; `load` is the usual one."""
    sweep = sorted({streams for _, streams in seen})
    gains = {n: (seen["plain", n].seconds_per_token or 0) / (seen["spec", n].seconds_per_token or 1) for n in sweep}
    crossover = float(sweep[-1])
    for low, high in pairwise(sweep):
        if gains[low] >= 1 > gains[high]:
            crossover = low + (high - low) * (gains[low] - 1) / (gains[low] - gains[high])
            break
    condition = Condition(load=ClosedLoop(concurrency=load))
    even = (seen["spec", load].tokens_per_step or 1) / max(gains[load], 0.1)
    rows = (
        (TOKENS_PER_STEP.name, Relation.BELOW, even, RollbackBasis.BREAK_EVEN),
        (LOAD_SIGNALS["concurrency"].name, Relation.ABOVE, crossover, RollbackBasis.BAND_END),
    )
    rules = [
        Rollback(
            workload="chat",
            arm="spec",
            metric=metric,
            relation=relation,
            value=value,
            for_s=60.0,
            basis=basis,
            condition=condition,
        )
        for metric, relation, value, basis in rows
    ]
    curves = {arm: tuple((n, 1000 * (seen[arm, n].step_s or 0)) for n in sweep) for arm in ("spec", "plain")}
    return replace(baseline, arm="spec", plain_arm="plain", rollback=tuple(rules), curve_ms=curves)


async def make_noised(lab: Lab) -> dict[str, Any]:
    """Disturb every weight of the head by 15 %."""
    torch.manual_seed(0)
    noised = lab.copy_head("noised", lambda each: (each * (1 + 0.15 * torch.randn(each.shape))).to(each.dtype))
    return await _watch_other_head(lab, "noised", noised, "--probe")


async def make_foreign(lab: Lab) -> dict[str, Any]:
    """Take a head that knows nothing of this target: its matrices belong to other rows."""
    torch.manual_seed(0)
    foreign = lab.copy_head("foreign", lambda each: each[torch.randperm(len(each))].contiguous())
    command = f"vllm serve {BUNDLE / 'target'} --speculative-config '{foreign.to_json()}'"
    (lab.folder / "foreign.sh").write_text(f"{command}\n")
    return await _watch_other_head(lab, "foreign", foreign, "--probe", "--setup", lab.folder / "foreign.sh")


async def make_foreign_unasked(lab: Lab) -> dict[str, Any]:
    """Take the same head, and look at its counters alone: they leave open whether it is the drafter or the traffic."""
    torch.manual_seed(0)
    foreign = lab.copy_head("foreign_too", lambda each: each[torch.randperm(len(each))].contiguous())
    return await _watch_other_head(lab, "foreign_too", foreign)


async def _watch_other_head(lab: Lab, name: str, spec: SpecConfig, *asking: object) -> dict[str, Any]:
    baseline = await lab.find_baseline()
    url = await lab.start(name, spec)
    seen = await lab.watch_under(traffic(url, lab.chat, STREAMS), url, "--baseline", baseline, *asking)
    await lab.stop(name)
    return seen


async def make_hot(lab: Lab) -> dict[str, Any]:
    """Let clients sample at temperature 1.6."""
    baseline = await lab.find_baseline()
    url = await lab.start("good", EAGLE3)
    load = traffic(url, lab.chat, STREAMS, temperature=1.6)
    return await lab.watch_under(load, url, "--baseline", baseline, "--probe")


async def make_chat_for_lookups(lab: Lab) -> dict[str, Any]:
    """Send prose to a server whose lookups were measured on rewrites of the prompt."""
    url = await lab.start("ngram", NGRAM)
    baseline = await lab.record("rewrites", url, read_prompts("rewrite"))
    async with traffic(url, read_prompts("prose"), STREAMS):
        seen = await lab.watch(url, "--baseline", baseline)
    await lab.stop("ngram")
    return seen


async def make_killed(lab: Lab) -> dict[str, Any]:
    """Kill one of two replicas while it is watched."""
    baseline, url = await lab.find_baseline(), await lab.start("good", EAGLE3)
    other = await lab.start("second", EAGLE3)
    async with traffic(url, lab.chat, STREAMS):
        watching = asyncio.create_task(lab.watch(url, other, "--baseline", baseline))
        await asyncio.sleep(WINDOW_S / 2)
        await lab.stop("second")
        return await watching


async def make_long(lab: Lab) -> dict[str, Any]:
    """Run one context beyond the drafter's length beside short ones: the engine drafts no more for it."""
    window = {"sliding_window": DRAFTER_LENGTH, "layer_types": ["sliding_attention"]}
    short = lab.copy_head("short", lambda each: each, **window)
    url = await lab.start("short", short)
    baseline = await lab.record("short", url, lab.chat)
    async with traffic(url, lab.chat, STREAMS - 1), traffic(url, [lab.find_long()], 1):
        seen = await lab.watch(url, "--baseline", baseline)
    await lab.stop("short")
    return seen


async def make_crowd(lab: Lab) -> dict[str, Any]:
    """Send more requests at once than speculation pays for."""
    baseline, url = await lab.find_measured(), await lab.start("good", EAGLE3)
    async with traffic(url, lab.chat, CROWD):
        return await lab.watch(url, "--baseline", baseline)


async def make_flag_lost(lab: Lab) -> dict[str, Any]:
    """Start a server of the pool without its speculative config."""
    baseline, url = await lab.find_baseline(), await lab.start("plain", None)
    async with traffic(url, lab.chat, STREAMS):
        return await lab.watch(url, "--baseline", baseline)


FAULTS = (
    Fault(name="the flag is lost", codes=frozenset({"spec-off"}), make=make_flag_lost),
    Fault(name="clients sample at 1.6", codes=frozenset({"traffic-changed", "temperature-rose"}), make=make_hot),
    Fault(name="over the crossover", codes=frozenset({"above-crossover"}), make=make_crowd),
    Fault(name="a noised head", codes=frozenset({"drafter-changed"}), make=make_noised),
    Fault(name="a foreign head", codes=frozenset({"drafter-noise", "drafter-changed"}), make=make_foreign),
    Fault(name="a foreign head, counters alone", codes=frozenset({"zero-acceptance"}), make=make_foreign_unasked),
    Fault(name="lookups on chat", codes=frozenset({"coverage-lost", "drafts-stopped"}), make=make_chat_for_lookups),
    Fault(name="a killed replica", codes=frozenset({"server-unread", "scrape-gap"}), make=make_killed),
    Fault(
        name="one long context",
        codes=frozenset({"coverage-lost", "context-gated"}),
        make=make_long,
    ),
)


def judge(seen: Mapping[str, Any], codes: Set[str]) -> dict[str, Any]:
    """Return what was named, and whether the first of it (`none` where nothing was) is one of the codes."""
    first = next((each["code"] for each in seen["findings"]), "none")
    return {
        "named first": first,
        "right": first in codes,
        "wanted": sorted(codes),
        "exit": seen["exit"],
        "findings": [{key: each[key] for key in ("code", "message")} for each in seen["findings"]],
    }


def put_row(out: Path, kind: str, row: Mapping[str, Any], head: Mapping[str, Any]) -> None:
    """Put a row among those of a kind, in the place of an earlier one of its name."""
    print(json.dumps(row), flush=True)
    known = json.loads(out.read_text())[f"{kind}s"] if out.exists() else []
    rows = [*(each for each in known if each[kind] != row[kind]), row]
    right = sum(each["right"] for each in rows)
    out.write_text(json.dumps({**head, "right": right, f"{kind}s": rows}, indent=1) + "\n")


def _sum_up(fault: Fault, seen: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "fault": fault.name,
        **judge(seen, fault.codes),
        "tokens_per_step": [pool["tokens_per_step"] for pool in seen["pools"]],
        "expected": seen["expected"],
        "rates": seen["rates"],
        "good": seen["good"],
    }


async def run(names: Sequence[str], keep: Path | None) -> None:
    """Make the faults one by one, and write what was named; the baseline alone where a kept folder has none yet."""
    with TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            lab = Lab(keep or Path(folder), stack)
            is_new = keep is not None and not (keep / "good.json").exists()
            if is_new:
                await lab.find_baseline()
            for fault in [] if is_new else FAULTS:
                if names and fault.name not in names:
                    continue
                try:
                    row = _sum_up(fault, await fault.make(lab))
                except Exception as error:  # one fault that cannot be made does not take the others along
                    row = {"fault": fault.name, "named first": "", "right": False, "failed": repr(error)}
                head = {"draftwise": __version__, "date": date.today().isoformat(), "cpu": cpu_name()}
                put_row(RESULTS, "fault", row, head)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], choices=[fault.name for fault in FAULTS])
    parser.add_argument("--keep", type=Path, help="folder of the baseline, which the first call makes")
    given = parser.parse_args()
    if given.keep:
        given.keep.mkdir(exist_ok=True)
    asyncio.run(run(given.only, given.keep))


if __name__ == "__main__":
    main()
