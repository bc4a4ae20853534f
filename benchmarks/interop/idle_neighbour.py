"""What a vLLM server that has nothing to do costs another one on the same cores.

    python benchmarks/interop/idle_neighbour.py --vllm ~/vllm/bin/vllm --out results/idle_neighbour.json

Two plain servers of the bundled target run side by side on a CPU. One is asked alone (its neighbour idle for a while),
right after its neighbour has answered, and right after it with the neighbour put to rest (`Backend.rest`): the three
ways take turns. vLLM's worker polls for its next step for a second before it sleeps (until 0.17.1: for ever), which is
what the second way pays for and the third does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1] / "h200"))

from record import command_line

from draftwise import __version__
from draftwise.backends import VllmBackend
from draftwise.core import Prompt, Setup
from draftwise.measure.context import describe_hardware
from draftwise.measure.load.client import Client
from draftwise.runs.schedule import Turn

HERE = Path(__file__).parent
SERVE = ["--enforce-eager", "--dtype", "float32", "--kv-cache-memory-bytes", "67108864", "--max-model-len", "1024"]
PROMPT = Prompt(id="p", text="def add(a, b):\n", max_tokens=40, ignore_eos=True)
CALM_S = 1.5
"""After this long without a step a worker of 0.18.0 on has stopped polling."""

Times = tuple[float, float]
"""Milliseconds to the first token, and from the first to the last."""


class Pair:
    """The server that is measured, and its neighbour."""

    def __init__(self, measured: Client, neighbour: Client) -> None:
        self._measured = measured
        self._neighbour = neighbour

    async def alone(self) -> Times:
        """Ask while the neighbour has been idle for a while."""
        return await self._ask(self._measured)

    async def after(self) -> Times:
        """Ask right after the neighbour has answered."""
        await self._ask(self._neighbour)
        return await self._ask(self._measured)

    async def after_rested(self) -> Times:
        """Ask right after the neighbour has answered and was put to rest."""
        await self._ask(self._neighbour)
        await self._neighbour.backend.rest()
        try:
            return await self._ask(self._measured)
        finally:
            await self._neighbour.backend.wake()

    async def _ask(self, client: Client) -> Times:
        turn = Turn(number=0, arm=client.backend.name, workload="", repeat=1, prompts=(PROMPT,))
        timing = (await client.ask(turn, PROMPT, seed=0)).timing
        return 1e3 * (timing.ttft_s or 0), 1e3 * (timing.chunks[-1][0] - timing.chunks[0][0])


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--vllm", type=command_line, required=True, help="Command of a vLLM for CPU, up to `serve`.")
    parser.add_argument("--out", type=Path, default=HERE / "results/idle_neighbour.json")
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    with TemporaryDirectory() as scratch:
        version, times = asyncio.run(measure(given.vllm, given.rounds, Path(scratch)))
    rows = {way: summarise(found) for way, found in times.items()}
    show(rows)
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "draftwise": __version__,
        "vllm": version,
        "python": platform.python_version(),
        "hardware": describe_hardware().to_dict(),
        "load_average": round(os.getloadavg()[0], 1),
        "rounds": given.rounds,
    }
    given.out.write_text(json.dumps(about | {"milliseconds": rows}, indent=1) + "\n")


async def measure(vllm: str, rounds: int, logs: Path) -> tuple[str, dict[str, list[Times]]]:
    """Return the version, and the times of every way of asking."""
    in_turn = asyncio.Lock()
    setup = Setup(target=str(HERE.parents[1] / "bundle/target"), engine="vllm", extra_args=tuple(SERVE))
    backends = [
        VllmBackend(name, setup, log=logs / name, vllm=vllm, in_turn=in_turn) for name in ("measured", "neighbour")
    ]
    try:
        await asyncio.gather(*(backend.start() for backend in backends))
        measured, neighbour = [await Client.greet(backend, PROMPT, salt="") for backend in backends]
        pair = Pair(measured, neighbour)
        ways: Mapping[str, Callable[[], Awaitable[Times]]] = {
            "alone": pair.alone,
            "after the neighbour": pair.after,
            "after the neighbour, which rests": pair.after_rested,
        }
        for ask in ways.values():
            await ask()
        times: dict[str, list[Times]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, ask in ways.items():
                await asyncio.sleep(CALM_S)
                times[way].append(await ask())
        return (await backends[0].describe()).version["version"], times
    finally:
        await asyncio.gather(*(backend.stop() for backend in backends))


def summarise(times: list[Times]) -> dict[str, Any]:
    """Return quartiles of both times."""
    return {
        name: dict(zip(("p25", "p50", "p75"), (round(value, 1) for value in quantiles(column)), strict=True))
        for name, column in zip(("first_token", "decoding"), zip(*times, strict=True), strict=True)
    }


def show(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Print the quartiles."""
    table = Table("asked", "first token ms: P25", "P50", "P75", "decoding ms: P25", "P50", "P75")
    for way, row in rows.items():
        table.add_row(way, *(str(value) for part in row.values() for value in part.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
