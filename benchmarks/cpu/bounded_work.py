"""Does any request hold up the others? Gaps in other clients' streams and answers of /health while large requests come.

    python benchmarks/cpu/bounded_work.py MODEL --out benchmarks/cpu/results/bounded_work.json [--busy]

MODEL is a checkpoint or a GGUF file. A stream and a probe of /health every 5 ms run alone and with a large request, by
turns. A gap or an answer may take 50 ms and a step: the slowest alone, or the usual one of the case. With `--busy` a
process keeps a core busy, and none may take more than 200 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from provenance import provenance, write


def make_requests(vocab_size: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, path and body of each large request."""
    completions, chat = "/v1/completions", "/v1/chat/completions"
    text = "a b " * 250_000

    def body(**fields: Any) -> bytes:
        return json.dumps({"max_tokens": 4, **fields}).encode()

    message = {"role": "user", "content": "a b " * 90}
    for megabytes in (1, 4, 15):
        yield f"prompt of {megabytes} MB", completions, body(prompt=text * megabytes)
        yield f"message of {megabytes} MB", chat, body(messages=[message | {"content": text * megabytes}])
    yield "prompts of 900,000 characters together", completions, body(prompt=[text[:30_000]] * 30)
    yield "20 prompts of 1,000 ids", completions, body(prompt=[[5] * 1000] * 20)
    yield "10,000 messages", chat, body(messages=[message] * 10_000)
    yield "deep JSON", completions, b'{"prompt": "a", "x": ' + b"[" * 900 + b"]" * 900 + b"}"
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep, "b": {"type": "array", "items": {"type": "integer"}}}}
    wide = {f"p{i}": {"type": "string", "pattern": f"^[a-z]{{1,{i % 40 + 1}}}$"} for i in range(3000)}
    either = {"anyOf": [{"type": "object", "properties": {f"k{i}": {"const": i}}} for i in range(12)]}
    loop: dict[str, Any] = {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"type": "array"}]}, "b": {"$ref": "#/$defs/a"}}
    late = {"anyOf": [{"type": "object", "properties": {f"{i}_{j}": {} for j in range(20)}} for i in range(300)]}
    structures: dict[str, dict[str, Any]] = {
        "schema of all of any": {"json": {"allOf": [either] * 8}},
        "schema that refers to itself": {"json": {"$ref": "#/$defs/a", "$defs": loop}},
        "ambiguous grammar": {"grammar": 'start: s\ns: s s | s s s | "a" | "aa"\n'},
        "schema with a late choice": {"json": {"type": "object", "properties": {"z": late}, "required": ["z"]}},
        "deep schema": {"json": deep},
        "wide schema": {"json": {"type": "object", "properties": wide, "required": [*wide]}},
        "2,000 choices": {"choice": [f"option number {i} of many" for i in range(2000)]},
        "20,000 choices": {"choice": [f"option number {i} of many" for i in range(20_000)]},
        "long regex": {"regex": "a{1000000}"},
    }
    for name, structure in structures.items():
        yield name, completions, body(prompt="a", structured_outputs=structure, max_tokens=30)
    bias = {str(i): 1.0 for i in range(vocab_size)}
    yield "logit_bias of the whole vocabulary", completions, body(prompt="a", logit_bias=bias)
    yield "64 long stop strings", completions, body(prompt="a", stop=["a" * 250] * 64, n=64)
    yield "log-probabilities of a prompt", completions, body(prompt=text[:3_900], prompt_logprobs=20)
    yield "log-probabilities of an echo", completions, body(prompt=text[:3_900], logprobs=20, echo=True)
    yield "128 answers with log-probabilities", completions, body(prompt="a", n=128, logprobs=20)
    yield "128 answers to a long prompt", completions, body(prompt=text[:3_900], n=128, prompt_logprobs=20, logprobs=20)
    yield "1,000 prompts", completions, body(prompt=["a"] * 1000, max_tokens=2)
    kinds = {"type": "object", "properties": {"a": {"enum": [f"kind {i} of many" for i in range(20_000)]}}}
    for name, number, parameters, choice in (("5,000 tools", 5000, deep, "none"), ("large enum", 1, kinds, "required")):
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        yield name, chat, body(messages=[message], tools=[tool] * number, tool_choice=choice)


@contextmanager
def served(model: str, arguments: list[str]) -> Iterator[str]:
    """Serve a model; yield its URL."""
    command = [sys.executable, "-m", "draftwise", "serve", model, "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                yield found[0]
                break
    finally:
        process.terminate()
        process.communicate()


async def watch(url: str, work: Any, seconds: float) -> dict[str, float]:
    """Return gaps of a stream and times of /health, in ms, until `work` is done or for the given time."""
    gaps, answers, ends = [], [], asyncio.Event()

    async def stream() -> None:
        body = {"prompt": "Once", "stream": True, "max_tokens": 1000, "ignore_eos": True, "temperature": 0}
        while not ends.is_set():
            async with (
                httpx.AsyncClient(base_url=url, timeout=None) as client,
                client.stream("POST", "/v1/completions", json=body) as answer,
            ):
                answer.raise_for_status()
                last = None
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        now = time.perf_counter()
                        if last is not None:
                            gaps.append(1000 * (now - last))
                        last = now
                    if ends.is_set():
                        return

    async def probe() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=None) as client:
            while not ends.is_set():
                began = time.perf_counter()
                await client.get("/health")
                answers.append(1000 * (time.perf_counter() - began))
                await asyncio.sleep(0.005)

    tasks = [asyncio.create_task(stream()), asyncio.create_task(probe())]
    while len(gaps) < 10 and not tasks[0].done():
        await asyncio.sleep(0.1)
    del gaps[:], answers[:]
    began = time.perf_counter()
    with_work = asyncio.create_task(work())
    done, _ = await asyncio.wait({with_work}, timeout=seconds)
    if not done:
        with_work.cancel()
    await asyncio.sleep(max(0.5, 1.5 - (time.perf_counter() - began)))
    ends.set()
    await asyncio.gather(*tasks)
    answers.sort()
    return {
        "largest_gap_ms": round(max(gaps, default=0), 1),
        "step_ms": round(statistics.median(gaps), 1) if gaps else 0.0,
        "health_p99_ms": round(answers[int(0.99 * (len(answers) - 1))], 1),
        "health_max_ms": round(answers[-1], 1),
        "seconds": round(time.perf_counter() - began, 2),
    }


async def measure(url: str, vocab_size: int, only: str, folder: Path) -> dict[str, Any]:
    """Return the readings of every case."""

    async def nothing() -> None:
        await asyncio.sleep(2)

    rows: dict[str, Any] = {}
    for name, path, content in make_requests(vocab_size):
        if only not in name:
            continue
        told, sent, answer = dict[str, Any](), folder / "sent", folder / "answer"
        sent.write_bytes(content)
        answer.write_text("")

        async def send(url: str = url + path, told: dict[str, Any] = told, sent: Path = sent) -> None:
            # A process of its own reads the file while it sends: a large body here would hold up the readings.
            options = ["-s", "-X", "POST", "-w", "%{http_code}", "-H", "expect:", "-H", "content-type:application/json"]
            command = ["curl", *options, "-T", str(sent), "-o", str(sent.parent / "answer"), url]
            run = await asyncio.create_subprocess_exec(*command, stdin=-3, stdout=-1, stderr=-3)
            try:
                told["status"] = int((await run.communicate())[0] or 0)
            finally:
                if run.returncode is None:
                    run.kill()

        alone = await watch(url, nothing, 10)
        rows[name] = await watch(url, send, 60) | told | {"largest_gap_alone_ms": alone["largest_gap_ms"]}
        rows[name]["said"] = answer.read_bytes()[:160].decode(errors="replace") if told.get("status") != 200 else ""
        print(name, rows[name], flush=True)
    return rows


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--busy", action="store_true", help="keep a core busy with another process")
    parser.add_argument("arguments", nargs="*", help="for draftwise serve, after --")
    given = parser.parse_args()
    load = os.getloadavg()[0]  # of other processes; it grows by what runs here
    config = Path(given.model) / "config.json"
    vocab_size = json.loads(config.read_text())["vocab_size"] if config.is_file() else 40_000
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass" if given.busy else ""])
    try:
        with tempfile.TemporaryDirectory() as folder, served(given.model, given.arguments) as url:
            rows = asyncio.run(measure(url, vocab_size, given.only, Path(folder)))
    finally:
        busy.kill()
    step = max(row["largest_gap_alone_ms"] for row in rows.values())
    most = {name: 200.0 if given.busy else 50 + max(step, row["step_ms"]) for name, row in rows.items()}
    readings = ((name, key, row[key]) for name, row in rows.items() for key in ("largest_gap_ms", "health_p99_ms"))
    over = [f"{name}: {key} {reading}" for name, key, reading in readings if reading > most[name]]
    about = {"model": Path(given.model).name, "busy": given.busy, "load": [load, os.getloadavg()[0]]}
    write(provenance("torch", "httpx") | about | {"over": over, "rows": rows}, given.out)
    print("over 200 ms:" if given.busy else "over 50 ms and a step:", over or "none")


if __name__ == "__main__":
    main()
