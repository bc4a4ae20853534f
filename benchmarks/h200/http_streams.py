"""Streams through `draftwise serve` beside the same engine called in process: what HTTP costs on a GPU.

`compare` starts the server by its CLI and reads the streams in a process of their own, over bare sockets, so that the
reader costs the server nothing. Both ways make text: the folder gets a tokenizer of made-up words.
Tokens are counted in the steady part, while every stream is running, by the usage that each event carries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cases import CASES, prompts, settings_for, spec_config
from clock import run, steady_row
from floors import kv_bytes_for
from http_load import Server
from shapes import SCALES, Scale, write_folders, write_tokenizer
from side import Side

__all__ = ["compare", "steady_tokens_per_s"]

Counts = list[tuple[float, int]]
"""When a stream had how many tokens."""

_USED = re.compile(rb'"completion_tokens": ?(\d+)[,}]')
_ROUNDS = 3
_START_S = 150


def compare(
    side: Side, cases: Sequence[str], streams: Sequence[int], scale: Scale, root: Path, *, device: str
) -> Iterator[dict[str, Any]]:
    """Yield a row for each case and number of streams: tokens/s in process and through HTTP, and their ratio."""
    write_tokenizer(root / "target", scale.target["vocab_size"])
    for name in cases:
        most = max(streams)
        sizes = {"max_num_seqs": most, "kv_bytes": kv_bytes_for(CASES[name], scale, most, scale.output_tokens)}
        side.open(case=name, skip_tokenizer_init=False, **sizes)
        direct = {count: _in_process(side, count, scale) for count in streams}
        side.close()
        with Server(_command(name, scale, root, device, sizes), root / "serve.log") as server:
            server.wait(_START_S)
            for count in streams:
                rounds = [_read(server.port, name, scale, count) for _ in range(_ROUNDS + 1)][1:]
                http = sorted(rounds)[len(rounds) // 2]
                row = {"case": name, "streams": count, "in_process_tokens_per_s": round(direct[count], 1)}
                yield row | {"http_tokens_per_s": round(http, 1), "ratio": round(http / direct[count], 4)}


def _in_process(side: Side, batch: int, scale: Scale) -> float:
    """Return tokens/s of the open engine."""
    assert side.frontend is not None
    rates = []
    for i in range(_ROUNDS + 1):
        start, steps = run(side.frontend, side.new_prompts(batch), scale.output_tokens)
        if i:  # the first captures graphs
            rates.append(steady_row(start, steps, batch)["tokens_per_s"])
    return sorted(rates)[len(rates) // 2]


def _command(case: str, scale: Scale, root: Path, device: str, sizes: dict[str, int]) -> list[str]:
    """Return what starts `draftwise serve` with the engine of the other way."""
    folders = write_folders(root, scale)
    given = settings_for(scale, folders, device) | {"max_num_seqs": sizes["max_num_seqs"]}
    flags = ("device", "dtype", "load_format", "max_model_len", "max_num_batched_tokens", "max_num_seqs")
    command = [sys.executable, "-m", "draftwise", "serve", str(folders.target), "--no-enable-prefix-caching"]
    command += ["--served-model-name", "m", "--kv-cache-memory-bytes", str(sizes["kv_bytes"])]
    for flag in (*flags, *scale.engine):
        command += [f"--{flag.replace('_', '-')}", str(given[flag])]
    if spec := spec_config(CASES[case], folders):
        command += ["--speculative-config", json.dumps(spec)]
    return command


def _read(port: int, case: str, scale: Scale, streams: int) -> float:
    """Return the tokens/s of so many streams at once, read by another process."""
    name = next(name for name, each in SCALES.items() if each is scale)
    command = [sys.executable, __file__, "--case", case, "--scale", name]
    command += ["--port", str(port), "--streams", str(streams)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"reading failed: {done.stderr[-800:]}")
    return float(json.loads(done.stdout)["tokens_per_s"])


class _Stream(asyncio.Protocol):
    """One request over a socket: notes when how many tokens had come."""

    def __init__(self, request: bytes) -> None:
        self.counts: Counts = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request, self._rest = request, b""

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now, text = time.perf_counter(), self._rest + data
        found = _USED.findall(text)
        if found and (count := int(found[-1])) and (not self.counts or count > self.counts[-1][1]):
            self.counts.append((now, count))
        self._rest = text[-64:]
        if b"[DONE]" in text and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError(f"closed early: {self._rest!r}"))


async def read_streams(port: int, bodies: Sequence[bytes]) -> list[Counts]:
    """Send all requests at once and return what came when."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    loop, streams = asyncio.get_running_loop(), list[_Stream]()
    for body in bodies:
        request = head % len(body) + body
        _, stream = await loop.create_connection(lambda request=request: _Stream(request), "127.0.0.1", port)
        streams.append(stream)
    await asyncio.gather(*(stream.done for stream in streams))
    return [stream.counts for stream in streams]


def steady_tokens_per_s(streams: Sequence[Counts]) -> float:
    """Return tokens/s while all streams run: from the last one's first token to the first one's last token."""
    start = max(counts[0][0] for counts in streams)
    end = min(counts[-1][0] for counts in streams)

    def count_at(counts: Counts, moment: float) -> int:
        at = bisect_right(counts, (moment, sys.maxsize))
        return counts[at - 1][1] if at else 0

    return sum(count_at(counts, end) - count_at(counts, start) for counts in streams) / (end - start)


def main() -> None:
    """Read streams and print tokens/s as JSON."""
    parser = argparse.ArgumentParser(description="Started by our_side.py.")
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--scale", choices=SCALES, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    args = parser.parse_args()
    scale, case = SCALES[args.scale], CASES[args.case]
    fixed = {"model": "m", "max_tokens": scale.output_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    fixed |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    rng = random.Random(time.time_ns())
    bodies = [json.dumps(fixed | {"prompt": ids}).encode() for ids in prompts(case, scale, args.streams, rng)]
    counts = asyncio.run(read_streams(args.port, bodies))
    print(json.dumps({"tokens_per_s": steady_tokens_per_s(counts)}))


if __name__ == "__main__":
    main()
