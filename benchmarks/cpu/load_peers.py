"""How each load generator is started against a server, and what its result file says of each request.

Definitions, as far as they are compared here: time to first token runs from sending to the first chunk, in all four.
Inter-token latency of a request is (last chunk - first chunk) / (tokens - 1) in guidellm and aiperf (with the server's
token count), and the mean of the gaps between chunks, which is the same for one token a chunk, in vLLM and draftwise.
Each gap on its own is kept by vLLM (`itls`), aiperf (`inter_chunk_latency`) and draftwise; guidellm keeps none.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

from draftwise.backends import UrlBackend
from draftwise.core import Answer, ClosedLoop, Condition, Prompt
from draftwise.measure.load.client import Client
from draftwise.measure.load.event_loop import precise_loop
from draftwise.measure.load.traffic import drive
from draftwise.runs.turn_order import Turn

__all__ = ["PEERS", "Job", "Peer", "Reading", "run_draftwise"]

Key = tuple[str, Any]
"""A field of the fake's record of a request (`number`, `request_id`, `prompt`), and its value."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a tool measured of one request; seconds."""

    key: Key
    sent: float | None = None
    """On the machine's monotonic clock, for requests whose key is not theirs alone."""
    ttft: float
    itl: float | None
    gaps: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Job:
    """One load: `streams` at a time until `requests` are answered, after as many warm-ups as there are streams."""

    url: str
    streams: int
    requests: int
    tokens: int
    prompts: Path
    """JSON lines, one for each request and warm-up."""
    tokenizer: str
    folder: Path
    """For what the tool writes."""
    flood: bool = False
    """Whether the server sends as fast as it can."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A load generator."""

    arguments: Callable[[Job], Sequence[str]]
    read: Callable[[Job], tuple[list[Reading], float]]
    """Returns the readings in its result file, and its tokens per second."""
    settings: str
    """In words, for the report."""
    environment: Mapping[str, str]
    version: Sequence[str] = ("--version",)

    def run(self, command: str, job: Job) -> str:
        """Run the tool to its end and return its arguments, without the places of this machine.

        Raises:
            RuntimeError: it failed; with the end of what it said.
        """
        arguments = self.arguments(job)
        environment = {**os.environ, **self.environment, "NO_PROXY": "127.0.0.1"}
        line = [*shlex.split(command), *arguments]
        done = subprocess.run(line, capture_output=True, text=True, cwd=job.folder, env=environment, timeout=300)
        said = done.stdout + done.stderr
        (job.folder / "output.txt").write_text(said)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(line)} ended with {done.returncode}:\n{said[-2000:]}")
        shown = " ".join([*(f"{name}={value}" for name, value in self.environment.items()), *arguments])
        for place, name in ((str(job.folder), "WORK"), (job.tokenizer, "TOKENIZER"), (job.url, "URL")):
            shown = shown.replace(place, name)
        return shown


def _draftwise(job: Job) -> list[str]:
    return ["--run-draftwise", json.dumps({**job.__dict__, "prompts": str(job.prompts), "folder": str(job.folder)})]


def _read_draftwise(job: Job) -> tuple[list[Reading], float]:
    told = json.loads((job.folder / "draftwise.json").read_text())
    readings = []
    for row in told["answers"]:
        times = [at for at, _ in row["chunks"]]
        gaps = tuple(b - a for a, b in pairwise(times))
        tokens = sum(count for _, count in row["chunks"])
        itl = (times[-1] - times[0]) / (tokens - 1) if tokens > 1 else None
        ttft, key = times[0] - row["sent"], ("prompt", row["prompt"])
        readings.append(Reading(key=key, sent=row["sent"], ttft=ttft, itl=itl, gaps=gaps))
    return readings, told["tokens"] / told["seconds"]


def _vllm(job: Job) -> list[str]:
    # (Its custom datasets need pandas, so the prompts are its own; the fake answers any prompt alike.)
    return (
        f"bench serve --backend openai --base-url {job.url} --model fake --tokenizer {job.tokenizer} "
        f"--dataset-name random --random-input-len 40 --random-output-len {job.tokens} --temperature 0 "
        f"--num-prompts {job.requests} --max-concurrency {job.streams} --num-warmups {job.streams} "
        "--request-id-prefix measured- --save-result --save-detailed --result-dir . --result-filename vllm.json "
        "--disable-tqdm"
    ).split()


def _read_vllm(job: Job) -> tuple[list[Reading], float]:
    told = json.loads((job.folder / "vllm.json").read_text())
    if told["failed"]:
        raise RuntimeError(f"vllm bench serve: {told['failed']} requests failed")
    rows = enumerate(zip(told["ttfts"], told["itls"], strict=True))
    readings = [
        Reading(key=("request_id", f"measured-{i}"), ttft=ttft, itl=sum(gaps) / len(gaps), gaps=tuple(gaps))
        for i, (ttft, gaps) in rows
    ]
    return readings, told["output_throughput"]


def _guidellm(job: Job) -> list[str]:
    return [
        "run",
        *("--backend", f"kind=openai_http,target={job.url},model=fake,request_format=/v1/completions"),
        *("--profile", f"kind=concurrent,streams={job.streams}"),
        *("--constraint", f"kind=max_requests,count={job.requests + job.streams}"),
        *("--tokenizer", f"kind=huggingface_auto,model={job.tokenizer}"),
        *("--data", f"kind=json_file,path={job.prompts}"),
        *("--output", "kind=json,path=guidellm.json", "--disable-console"),
    ]


def _read_guidellm(job: Job) -> tuple[list[Reading], float]:
    (benchmark,) = json.loads((job.folder / "guidellm.json").read_text())["benchmarks"]
    rows = sorted(benchmark["requests"]["successful"], key=lambda row: row["request_start_time"])[job.streams :]
    readings = [
        Reading(
            key=("number", int(row["response_id"].rpartition("-")[2])),
            ttft=row["time_to_first_token_ms"] / 1e3,
            itl=row["inter_token_latency_ms"] / 1e3,
        )
        for row in rows
    ]
    seconds = max(row["request_end_time"] for row in rows) - min(row["request_start_time"] for row in rows)
    return readings, sum(row["output_tokens"] for row in rows) / seconds


def _aiperf(job: Job) -> list[str]:
    return (
        f"profile -m fake --endpoint-type completions --streaming -u {job.url} --tokenizer {job.tokenizer} "
        f"--input-file {job.prompts} --custom-dataset-type single_turn --extra-inputs max_tokens:{job.tokens} "
        f"--concurrency {job.streams} --request-count {job.requests} --warmup-request-count {job.streams} "
        f"--use-server-token-count --artifact-dir . --ui none --export-level records --no-server-metrics "
        f"--no-gpu-telemetry {'--workers-max 4' if job.flood else ''}"
    ).split()


def _read_aiperf(job: Job) -> tuple[list[Reading], float]:
    lines = (job.folder / "profile_export.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["metadata"]["benchmark_phase"] == "profiling"]

    def value(row: Mapping[str, Any], name: str) -> Any:
        return row["metrics"][name]["value"]

    readings = [
        Reading(
            key=("request_id", row["metadata"]["x_request_id"]),
            ttft=value(row, "time_to_first_token") / 1e3,
            itl=value(row, "inter_token_latency") / 1e3,
            gaps=tuple(gap / 1e3 for gap in value(row, "inter_chunk_latency")),
        )
        for row in rows
    ]
    about = [row["metadata"] for row in rows]
    seconds = (max(row["request_end_ns"] for row in about) - min(row["request_start_ns"] for row in about)) / 1e9
    return readings, sum(value(row, "output_sequence_length") for row in rows) / seconds


PEERS: Mapping[str, Peer] = {
    "draftwise": Peer(
        arguments=_draftwise, read=_read_draftwise, settings="one process, as `decide` uses it", environment={}
    ),
    "vllm bench serve": Peer(
        arguments=_vllm,
        read=_read_vllm,
        settings="one process (it has no other mode)",
        environment={"HF_HUB_OFFLINE": "1"},
    ),
    "guidellm": Peer(
        arguments=_guidellm,
        read=_read_guidellm,
        settings="2 worker processes: faster on 2 cores than 1 and its default of 10",
        environment={"HF_HUB_OFFLINE": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "2"},
    ),
    "aiperf": Peer(
        arguments=_aiperf,
        read=_read_aiperf,
        settings="default workers, 4 for the capacity (the best of 1, 2, 4); server metrics and GPU telemetry off",
        environment={},
    ),
}


def run_draftwise(text: str) -> None:
    """Answer a job with draftwise's own load generator, in this process."""
    values = json.loads(text)
    job = Job(**{**values, "prompts": Path(values["prompts"]), "folder": Path(values["folder"])})
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        told = runner.run(_drive(job))
    (job.folder / "draftwise.json").write_text(json.dumps(told))


async def _drive(job: Job) -> dict[str, Any]:
    texts = [json.loads(line)["prompt"] for line in job.prompts.read_text().splitlines()]
    prompts = tuple(Prompt(id=text, text=text, max_tokens=job.tokens) for text in texts)
    backend = UrlBackend("fake", job.url)
    await backend.start()
    answers: list[Answer] = []
    try:
        client = await Client.greet(backend, prompts[-1], salt="s")
        turn = Turn(
            number=0,
            arm="fake",
            workload="w",
            repeat=1,
            prompts=prompts[: job.requests],
            condition=Condition(load=ClosedLoop(concurrency=job.streams)),
        )
        began = time.perf_counter()
        health = await drive(client, turn, seed=0, on_answer=answers.append)
        seconds = time.perf_counter() - began
    finally:
        await backend.stop()
    if errors := [answer.error for answer in answers if answer.measured and answer.error]:
        raise RuntimeError(errors[0])
    rows = [
        {
            "prompt": crc32(json.dumps(answer.prompt_id).encode()),
            "sent": answer.timing.sent,
            "chunks": answer.timing.chunks,
        }
        for answer in answers
        if answer.measured
    ]
    all_tokens = sum(answer.timing.num_tokens for answer in answers)
    return {"answers": rows, "seconds": seconds, "tokens": all_tokens, "health": asdict(health)}
