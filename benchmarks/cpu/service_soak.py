"""Does a server stay well? Random requests for minutes, next to servers that are killed and drained under load.

    python benchmarks/cpu/service_soak.py MODEL --minutes 30 --out benchmarks/cpu/results/service_soak.json
    python benchmarks/cpu/service_soak.py MODEL --ends 50 --out benchmarks/cpu/results/service_ends.json

One server gets random requests all the time: streams, chats, log-probabilities, structured output, long prompts, bodies
that are refused, clients that leave. Its processes' memory is read every second; a minute's mean counts. The first half
is the warm-up; it begins with prompts that touch every page of the default pool, which takes memory only then.
Over the second half the engine's memory must not grow: the slope's interval must reach down to `_FLAT_MIB_PER_HOUR`.
Meanwhile one server after another is started, loaded, and ended in one of four ways.
Each of its requests must end with a whole answer, a JSON error or an error event. The exit code is 1 otherwise.
With `--ends` there are only these servers, next to a process that keeps a core busy, unless the machine is busy.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from provenance import provenance, write

_ENDS = ("drain", "drain in time", "kill the engine", "kill the readers")
_FLAT_MIB_PER_HOUR = 4.0
_FILLING = 24
"""Prompts at least that fill the pool: it holds sixteen of the longest."""
_T_95 = {10: 2.23, 15: 2.13, 20: 2.09, 30: 2.04, 60: 2.0, 1000: 1.96}
"""Student's t, two-sided, by degrees of freedom."""
_TEXT = "Once upon a time there was a small server. "


class Served:
    """A server of its own; `url` and `children` once it has started."""

    def __init__(self, model: str, *options: str) -> None:
        self._command = [sys.executable, "-m", "draftwise", "serve", model, "--port", "0", *options]
        self.log: list[str] = []

    async def start(self) -> None:
        """Wait until it is ready, then keep its lines."""
        self.process = await asyncio.create_subprocess_exec(*self._command, stdout=-1, stderr=asyncio.subprocess.STDOUT)
        assert self.process.stdout is not None
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", (await self.process.stdout.readline()).decode())):
            pass
        self.url = found[0]
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.log.append(line.decode().rstrip())

    def child(self, name: str) -> int:
        """Return the process id of the engine or of what forks readers."""
        return next(pid for pid in list_children(self.process.pid) if name in Path(f"/proc/{pid}/cmdline").read_text())


def list_children(pid: int) -> list[int]:
    """Return the process ids of a process's children."""
    return [int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]


def read_memory(*pids: int) -> float:
    """Return the resident memory of processes together, in MiB, without pages of files: the system takes these back."""
    kib = 0
    for pid in pids:
        with suppress(OSError):  # a reader that has just ended
            kib += int(re.findall(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])
    return round(kib / 2**10, 1)


def make_body(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a random request."""
    completions, chat = "/v1/completions", "/v1/chat/completions"
    words = " ".join(chance.choices(_TEXT.split(), k=chance.choice([3, 20, 200])))
    base: dict[str, Any] = {"prompt": words, "max_tokens": chance.choice([1, 16, 64]), "stream": chance.random() < 0.5}
    base["temperature"] = chance.choice([0, 1])
    return chance.choice(
        [
            (completions, base),
            (completions, base | {"logprobs": 5, "n": 2, "temperature": 1}),
            (completions, base | {"prompt": _TEXT * 30, "echo": True, "stream": False}),
            (completions, base | {"prompt": [[5] * 64] * 4}),
            (completions, base | {"structured_outputs": {"regex": f"[ab]{{{chance.randint(1, 40)}}}"}}),
            (completions, base | {"prompt": "a b " * 250_000}),
            (completions, base | {"temperature": "hot"}),
            (completions, base | {"logit_bias": {str(10**9): 1}}),
            (chat, {"messages": [{"role": "user", "content": words}], "max_tokens": 24, "stream": base["stream"]}),
            ("/tokenize", {"prompt": words}),
        ]
    )


async def ask(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], leave_s: float | None = None, pause_s: float = 0
) -> str:
    """Send a request; return how it ended, or how it must not end. A slow client pauses between its pieces."""
    pieces, sent, kind = list[bytes](), send_slowly(json.dumps(body).encode(), pause_s), "application/json"
    try:
        async with (
            asyncio.timeout(leave_s or 240),
            client.stream("POST", path, content=sent, headers={"content-type": kind}) as answer,
        ):
            async for piece in answer.aiter_bytes(256 if pause_s else None):
                pieces.append(piece)
                await asyncio.sleep(pause_s)
            content = b"".join(pieces).decode()
    except TimeoutError:
        return "left" if leave_s else "BROKEN: no end"
    except httpx.ConnectError:
        return "no connection"
    except httpx.HTTPError as error:
        return f"BROKEN: {error!r}"
    if answer.headers["content-type"].startswith("text/event-stream"):
        if not content.endswith("data: [DONE]\n\n"):
            return "BROKEN: stream without an end"
        return "error event" if '"error":{' in content else "stream"
    with suppress(ValueError):
        return "answer" if "error" not in json.loads(content) else f"error {answer.status_code}"
    return f"BROKEN: {answer.status_code} {content[:60]}"


async def send_slowly(content: bytes, pause_s: float) -> AsyncIterator[bytes]:
    """Yield a body, in ten pieces if there are pauses."""
    size = max(len(content) // 10, 1) if pause_s else len(content)
    for start in range(0, len(content), size):
        yield content[start : start + size]
        await asyncio.sleep(pause_s)


async def load(url: str, chance: random.Random, ends: asyncio.Event, counts: dict[str, int]) -> None:
    """Send requests, four at a time, until the end."""

    async def client_loop() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=None) as client:
            while not ends.is_set():
                leave_s = chance.uniform(0.01, 2) if chance.random() < 0.2 else None
                end = await ask(client, *make_body(chance), leave_s=leave_s)
                counts[end] = counts.get(end, 0) + 1

    await asyncio.gather(*(client_loop() for _ in range(4)))


async def end_one(model: str, how: str, chance: random.Random) -> dict[str, Any]:
    """Start a server, load it, end it in that way; return what came of it."""
    server = Served(model, "--drain-seconds", "1" if how == "drain" else "120")
    await server.start()
    async with httpx.AsyncClient(base_url=server.url, timeout=None) as client:
        bodies = [make_body(chance) for _ in range(5)]
        stream = {"prompt": _TEXT, "stream": True, "max_tokens": 200, "ignore_eos": True}
        work = [asyncio.ensure_future(ask(client, *each)) for each in [("/v1/completions", stream), *bodies]]
        slow = {"prompt": _TEXT, "max_tokens": 40}
        work += [
            asyncio.ensure_future(ask(client, "/v1/completions", slow | {"stream": streams}, pause_s=0.1))
            for streams in (False, True)
        ]
        await asyncio.sleep(chance.uniform(0.2, 3))
        began = time.monotonic()
        if how.startswith("drain"):
            server.process.send_signal(signal.SIGTERM)
        else:
            os.kill(server.child("engine_process" if "engine" in how else "reader_process"), signal.SIGKILL)
        ended = await asyncio.gather(*work)
        status: int | None = None
        if "readers" in how:  # which the server survives
            while not any("another one has started" in line for line in server.log):
                await asyncio.sleep(0.1)
            ended.append(await ask(client, "/tokenize", {"prompt": "a"}))
            server.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(180):
        status = await server.process.wait()
        await server.reading
    is_right = (status != 0) == ("engine" in how) and not any(end.startswith("BROKEN") for end in ended)
    is_right = is_right and not any("Traceback" in line for line in server.log)
    seconds = round(time.monotonic() - began, 2)
    row = {"how": how, "status": status, "seconds": seconds, "ended": sorted(ended), "is_right": is_right}
    print(row, flush=True)
    return row | ({} if is_right else {"log": server.log[-20:]})


async def fill_pool(url: str, engine: int) -> int:
    """Send long prompts, all of them new, until memory grows no more; return how many tokens that took."""
    sent, sizes = 0, [read_memory(engine)]
    async with httpx.AsyncClient(base_url=url, timeout=None) as client:
        longest = (await client.get("/v1/models")).json()["data"][0]["max_model_len"]
        while len(sizes) < _FILLING or sizes[-1] - sizes[-5] > 1:
            prompt = [5 + len(sizes), *[7] * (longest - 9)]
            (await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})).raise_for_status()
            sent += len(prompt)
            sizes.append(read_memory(engine))
    return sent


def find_slope(times: list[float], sizes: list[float]) -> dict[str, float]:
    """Return the growth in MiB an hour with its 95 % interval; readings that resemble the one before count less."""
    slope, start = statistics.linear_regression(times, sizes)
    rest = [size - start - slope * time for time, size in zip(times, sizes, strict=True)]
    total = sum(each**2 for each in rest)
    alike = sum(a * b for a, b in itertools.pairwise(rest)) / total if total else 0.0
    count = max(len(rest) * (1 - alike) / (1 + alike), 4.0) if alike > 0 else len(rest)
    spread = statistics.pvariance(times) * count
    error = (total / len(rest) * count / (count - 2) / spread) ** 0.5 if total else 0.0
    t = next((value for degrees, value in sorted(_T_95.items()) if degrees >= count - 2), 1.96)
    low, high = (3600 * (slope + sign * t * error) for sign in (-1, 1))
    return {"mib_per_hour": round(3600 * slope, 2), "low": round(low, 2), "high": round(high, 2)}


async def soak(model: str, minutes: float, seed: int) -> dict[str, Any]:
    """Return the readings and what came of each end."""
    chance, ends, counts = random.Random(seed), asyncio.Event(), dict[str, int]()
    server = Served(model)
    await server.start()
    engine, readers = server.child("engine_process"), server.child("reader_process")
    filled = await fill_pool(server.url, engine)
    working = asyncio.ensure_future(load(server.url, chance, ends, counts))
    memory, rows = list[dict[str, float]](), list[dict[str, Any]]()
    began = time.monotonic()

    async def end_others() -> None:
        while time.monotonic() - began < 60 * minutes:
            rows.append(await end_one(model, _ENDS[len(rows) % len(_ENDS)], chance))

    ending = asyncio.ensure_future(end_others())
    while time.monotonic() - began < 60 * minutes:
        sizes = list[dict[str, float]]()
        for _ in range(60):
            await asyncio.sleep(1)
            own = {"engine": [engine], "front": [server.process.pid], "readers": list_children(readers)}
            sizes.append({name: read_memory(*pids) for name, pids in own.items()})
        means = {name: round(statistics.mean(each[name] for each in sizes), 1) for name in sizes[0]}
        memory.append({"s": round(time.monotonic() - began), **means, "load": round(os.getloadavg()[0], 1)})
    await ending
    ends.set()
    await working
    server.process.send_signal(signal.SIGTERM)
    status = await server.process.wait()
    late = [reading for reading in memory if reading["s"] >= 30 * minutes]
    slopes = {
        name: find_slope([reading["s"] for reading in late], [reading[name] for reading in late])
        for name in ("engine", "front", "readers")
    }
    return {
        "minutes": minutes, "status": status, "answers": dict(sorted(counts.items())), "tokens_to_fill_pool": filled,
        "slope_of_second_half": slopes, "memory_mib": memory, "ends": rows,
    }  # fmt: skip


async def end_many(model: str, count: int, seed: int, ways: Sequence[str], lanes: int) -> dict[str, Any]:
    """Return the outcome of each end, `lanes` servers at a time. A busy process runs too if the machine is idle."""
    rows, numbers = list[dict[str, Any]](), iter(range(count))

    async def end_in_turn() -> None:
        for number in numbers:
            rows.append(await end_one(model, ways[number % len(ways)], random.Random(f"{seed} {number}")))

    is_busy = os.getloadavg()[0] > len(os.sched_getaffinity(0))
    busy = subprocess.Popen([sys.executable, "-c", "" if is_busy else "while True: pass"])
    try:
        await asyncio.gather(*(end_in_turn() for _ in range(lanes)))
    finally:
        busy.kill()
    return {"ends": rows, "load": round(os.getloadavg()[0], 1)}


def main() -> None:
    """Soak and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--ends", type=int)
    parser.add_argument("--lanes", type=int, default=1, help="servers of --ends at once")
    parser.add_argument("--only", choices=_ENDS, action="append", help="ways of --ends; several may be given")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    only_ends = given.ends is not None
    if only_ends:
        work = end_many(given.model, given.ends, given.seed, given.only or _ENDS, given.lanes)
    else:
        work = soak(given.model, given.minutes, given.seed)
    result = asyncio.run(work)
    write(provenance("torch", "httpx") | {"model": Path(given.model).name} | result, given.out)
    wrong = [row for row in result["ends"] if not row["is_right"]]
    if only_ends:
        print(len(result["ends"]), "ends", len(wrong), "wrong")
        sys.exit(bool(wrong))
    broken = [end for end in result["answers"] if end.startswith("BROKEN")]
    slope = result["slope_of_second_half"]["engine"]
    print(result["answers"], slope, len(result["ends"]), "ends", len(wrong), "wrong")
    sys.exit(bool(broken or wrong or result["status"] or slope["low"] > _FLAT_MIB_PER_HOUR))


if __name__ == "__main__":
    main()
