"""Paged attention on one GPU: how long does it take, and which way of cutting it up is fastest?

    python benchmarks/h200/kernels/attention.py --out attention.json

Each time is that of one call inside a CUDA graph of many, each on a cache of its own, so that no call finds keys in
the L2; `share` is the bytes of keys and values over that time, as a part of what a copy on the same device moves.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwise.engine.kernels.cuda import paged_attention as attention
from draftwise.engine.kernels.cuda.matmul_configs import MatmulDevice
from draftwise.engine.kernels.cuda.paged_attention import Tiling, choose_tiling, decode_attention

DEVICE = "cuda"
PAGE = 16
GRAPH_S = 0.006  # one replay takes about so long
H200 = MatmulDevice(num_sms=132, shared_bytes=232_448, hopper=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of one layer's attention."""

    name: str
    heads: int = 32
    groups: int = 8
    dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype = torch.bfloat16

    @property
    def token_bytes(self) -> int:
        return 2 * self.groups * self.dim * self.kv_dtype.itemsize


Case = tuple[Shape, int, int, int]
"""Shape, sequences, query tokens of each, context."""
Job = tuple[Shape, int, Tiling]
"""Shape, query tokens, tiling."""

SHAPES = {s.name: s for s in (Shape(name="8B"), Shape(name="1B", dim=64))}
OTHER_SHAPES = (
    Shape(name="14B", heads=40),
    Shape(name="MHA", groups=32),
    Shape(name="MoE", groups=4),
    Shape(name="1.5B", heads=12, groups=2),
)
FP8 = Shape(name="8B-fp8", kv_dtype=torch.float8_e4m3fn)


@dataclass(kw_only=True)
class Batch:
    """Arguments of calls on several caches, of which each call takes the next."""

    shape: Shape
    width: int
    q_NAD: Tensor
    caches: list[Tensor]
    table_BP: Tensor
    first_row_B: Tensor
    starts_B: Tensor
    lengths_B: Tensor

    def call(self, tiling: Tiling | None, *, layer: int = 0) -> Tensor:
        return decode_attention(
            self.q_NAD,
            self.caches[layer % len(self.caches)],
            self.table_BP,
            self.first_row_B,
            self.starts_B,
            self.lengths_B,
            width=self.width,
            causal=True,
            scale=self.shape.dim**-0.5,
            tiling=tiling,
        )


def make_batch(shape: Shape, starts: list[int], width: int, pool: Tensor) -> Batch:
    """Return a batch whose caches are as many as fit the pool (at most 64), in pages that lie anywhere."""
    num_seqs, most = len(starts), max(s + width for s in starts)
    per_seq = -(-most // PAGE)
    num_pages = num_seqs * per_seq + 1
    page = (PAGE, 2, shape.groups, shape.dim)
    size = num_pages * PAGE * 2 * shape.groups * shape.dim
    # Bits of bfloat16 make good numbers of every wider type; as float8 some would be none.
    narrow = shape.kv_dtype.itemsize == 1
    flat = pool[: 64 * size].to(shape.kv_dtype) if narrow else pool.view(shape.kv_dtype)
    count = max(1, min(64, flat.numel() // size))
    caches = [flat[i * size : (i + 1) * size].view(num_pages, *page) for i in range(count)]
    table_BP = torch.randperm(num_pages - 1, device=DEVICE, dtype=torch.int32).view(num_seqs, per_seq)
    q_NAD = torch.randn(num_seqs * width, shape.heads, shape.dim, device=DEVICE, dtype=shape.dtype)
    return Batch(
        shape=shape,
        width=width,
        q_NAD=q_NAD,
        caches=caches,
        table_BP=table_BP,
        first_row_B=torch.arange(num_seqs, device=DEVICE) * width,
        starts_B=torch.tensor(starts, device=DEVICE),
        lengths_B=torch.full((num_seqs,), width, device=DEVICE),
    )


def attempt(work: Callable[[], Any]) -> Any:
    """Return what `work` does, or FAIL and why: one broken case must not stop the others."""
    try:
        return work()
    except Exception as error:
        return f"FAIL {type(error).__name__}: {str(error)[:200]}"


def unique(tilings: list[Tiling]) -> list[Tiling]:
    return list(dict.fromkeys(tilings))


def decode_tilings(shape: Shape, num_seqs: int, width: int) -> list[Tiling]:
    """Return the candidates: what the engine would take, and changes of one thing each."""
    share = shape.heads // shape.groups
    rows = max(16, 1 << (width * share - 1).bit_length())
    tiles = num_seqs * shape.groups

    def make(keys: int, warps: int, stages: int, per_sm: float, rows: int = rows) -> Tiling:
        splits = max(1, min(64, int(per_sm * H200.num_sms) // (tiles * -(-width * share // rows))))
        return Tiling(rows=rows, keys=keys, warps=warps, stages=stages, splits=splits)

    if shape.kv_dtype.itemsize == 1:
        return [make(64, 4, 3, 2), make(64, 8, 3, 2), make(32, 4, 4, 3), make(32, 2, 4, 4)]
    if rows >= 64:
        return [make(64, 4, 3, 2, 64), make(32, 4, 3, 2, 64), make(64, 8, 3, 1, 128)]
    found = [
        make(64, 4, 3, 2),
        make(64, 4, 3, 1),
        make(64, 4, 4, 2),
        make(64, 4, 3, 3),
        make(128, 4, 2, 2),
        make(128, 8, 3, 1),
    ]
    if rows == 32:
        return [*found, make(64, 4, 3, 2, 16), make(64, 2, 3, 2)]
    return [
        *found,
        make(32, 4, 4, 4),
        make(32, 2, 4, 4),
        make(64, 4, 3, 2, 32),
        make(64, 4, 3, 1, 32),
        make(64, 2, 3, 2),
        make(64, 2, 3, 3),
    ]


def compile_one(job: Job) -> None:
    """Compile one kernel by launching it on something small; Triton keeps it on disk for the other processes."""
    shape, width, tiling = job
    pool = torch.zeros(8 << 20, dtype=torch.bfloat16, device=DEVICE)
    batch = make_batch(shape, [0], width, pool)
    attempt(lambda: batch.call(tiling))


def compile_all(cases: list[Case], workers: int) -> None:
    jobs: dict[tuple[Any, ...], Job] = {}
    for shape, num_seqs, width, _ in cases:
        for tiling in (*decode_tilings(shape, num_seqs, width), auto_tiling(shape, num_seqs, width)):
            key = replace(tiling, splits=min(2, tiling.splits))
            jobs.setdefault((shape, key), (shape, width, tiling))
    started = time.perf_counter()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as executor:
        list(executor.map(compile_one, jobs.values()))
    print(f"compiled {len(jobs)} kernels in {time.perf_counter() - started:.1f} s", flush=True)


def auto_tiling(shape: Shape, num_seqs: int, width: int) -> Tiling:
    """Return what the engine chooses on an H200, whose copy engine fetches the pages that `can_copy` names."""
    return choose_tiling(
        num_seqs=num_seqs,
        num_groups=shape.groups,
        share=shape.heads // shape.groups,
        width=width,
        head_dim=shape.dim,
        itemsize=shape.dtype.itemsize,
        kv_itemsize=shape.kv_dtype.itemsize,
        gpu=H200,
        copies=shape.dim in (64, 128) and shape.dtype == shape.kv_dtype and shape.dtype.itemsize == 2,
    )


def graph_us(call: Callable[[int], Any], floor_us: float) -> float:
    """Return microseconds of one call, from a graph of as many as take about GRAPH_S."""
    for layer in range(2):
        call(layer)
    torch.cuda.synchronize()
    count = int(max(4, min(64, GRAPH_S * 1e6 / max(floor_us, 1))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(count):
            call(layer)
    graph.replay()
    times = []
    for _ in range(5):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) * 1e3 / count)
    return statistics.median(times)


def make_pool() -> Tensor:
    """Return 10 GB of numbers, of which caches are cut."""
    pool = torch.empty(5 << 30, dtype=torch.bfloat16, device=DEVICE)
    for piece in pool.split(1 << 28):
        piece.normal_()
    return pool


def copy_bytes_per_s(pool: Tensor) -> float:
    """Return bytes read plus bytes written, a second; not inside a graph, whose copies a slower engine does."""
    half = pool.numel() // 2
    times = []
    for _ in range(4):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        pool[:half].copy_(pool[half : 2 * half])
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) * 1e-3)
    return 2 * half * pool.element_size() / min(times)


def decode_cases() -> Iterator[Case]:
    for context in (64, 256):
        yield SHAPES["8B"], 1, 1, context
    for context, num_seqs in itertools.product((600, 4096, 32768), (1, 64, 8, 32, 256)):
        if num_seqs * context > 8 * 32768 and context > 600:
            continue
        for width in (1, 4, 8):
            yield SHAPES["8B"], num_seqs, width, context
        for width in (1, 4):
            yield SHAPES["1B"], num_seqs, width, context
    for num_seqs, width in itertools.product((1, 32), (17, 25)):
        yield SHAPES["8B"], num_seqs, width, 600
    yield SHAPES["8B"], 1, 1, 131072
    yield FP8, 1, 4, 32768
    yield FP8, 64, 4, 600


def long_cases() -> Iterator[Case]:
    """Yield what the first tilings were not chosen by: long contexts, and other shares of heads."""
    loads = [(640, (8, 64, 32)), (2048, (8, 64, 32, 128)), (8192, (1, 8, 32)), (24576, (1, 8)), (65536, (1, 4))]
    for context, batches in reversed(loads):
        for num_seqs, width in itertools.product(batches, (1, 4, 6)):
            yield SHAPES["8B"], num_seqs, width, context
            if width < 6 and num_seqs in (1, 8, 64):
                yield from ((shape, num_seqs, width, context) for shape in OTHER_SHAPES)


def brief(tiling: Tiling) -> str:
    return f"M{tiling.rows} K{tiling.keys} w{tiling.warps} s{tiling.stages} x{tiling.splits}"


def timer(batch: Batch, tiling: Tiling | None, floor_us: float) -> Callable[[], float]:
    return lambda: graph_us(lambda i: batch.call(tiling, layer=i), floor_us)


def time_decode(cases: list[Case], pool: Tensor, copy: float, deadline: float, log: list[dict[str, Any]]) -> None:
    for shape, num_seqs, width, context in cases:
        if time.perf_counter() > deadline:
            print("out of time", flush=True)
            return
        batch = make_batch(shape, [context - width] * num_seqs, width, pool)
        floor_us = num_seqs * context * shape.token_bytes / copy * 1e6
        auto = auto_tiling(shape, num_seqs, width)
        candidates = [*decode_tilings(shape, num_seqs, width), auto]
        times = {t: attempt(timer(batch, t, floor_us)) for t in unique(candidates)}
        ranked = sorted(times, key=lambda t: times[t] if isinstance(times[t], float) else float("inf"))
        log.append(
            {"shape": shape.name, "seqs": num_seqs, "width": width, "context": context, "floor_us": floor_us}
            | {"tilings": [asdict(t) | {"us": times[t], "auto": t == auto} for t in ranked]}
        )
        us = times[ranked[0]]
        share = f"{floor_us / us:.2f}" if isinstance(us, float) else us
        print(
            f"{shape.name:6} B{num_seqs:<3} W{width:<2} T{context:<6} share {share} | "
            + "; ".join(
                f"{brief(t)} {times[t]:.1f}{'*' if t == auto else ''}" if isinstance(times[t], float) else times[t]
                for t in ranked
            ),
            flush=True,
        )


def time_overlap(pool: Tensor, log: list[dict[str, Any]]) -> None:
    """Time the engine's own choice with and without programmatic dependent launch."""
    overlap = attention.pdl
    for num_seqs, width in ((1, 1), (1, 4), (1, 8), (8, 1), (64, 4)):
        batch = make_batch(SHAPES["8B"], [600 - width] * num_seqs, width, pool)
        row: dict[str, Any] = {"seqs": num_seqs, "width": width}
        for name, switch in (("us", overlap), ("us_without_pdl", lambda: False)):
            attention.pdl = switch
            row[name] = attempt(timer(batch, None, 5))
        attention.pdl = overlap
        log.append(row)
        print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="batch 1 and 8 at 600 tokens")
    parser.add_argument("--workers", type=int, default=14, help="processes that compile")
    parser.add_argument("--seconds", type=float, default=75, help="stop starting decode cases after so long")
    parser.add_argument("--long", action="store_true", help="long contexts and other shares of heads")
    args = parser.parse_args()
    started = time.perf_counter()
    torch.manual_seed(0)
    cases = list(long_cases() if args.long else decode_cases())
    if args.quick:
        cases = [c for c in cases if c[1] <= 8 and c[3] == 600]
    compile_all(cases, args.workers)
    pool = make_pool()
    record: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    record["copy_bytes_per_s"] = copy = copy_bytes_per_s(pool)
    print(f"copy {copy / 1e12:.2f} TB/s; set up in {time.perf_counter() - started:.1f} s", flush=True)
    record |= {"overlap": [], "decode": []}
    if not args.long:
        time_overlap(pool, record["overlap"])
    time_decode(cases, pool, copy, started + args.seconds, record["decode"])
    print(f"done after {time.perf_counter() - started:.1f} s", flush=True)
    if args.out:
        args.out.write_text(json.dumps(record, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
