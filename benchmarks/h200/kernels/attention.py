"""Paged attention on one GPU: is it right, how long does it take, and which way of cutting it up is fastest?

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

from draftwise.engine.kernels.cuda import attention
from draftwise.engine.kernels.cuda.attention import Tiling, can_copy, choose_tiling, decode_attention
from draftwise.engine.kernels.cuda.matmul_configs import Device

DEVICE = "cuda"
PAGE = 16
GRAPH_S = 0.006  # one replay takes about so long
H200 = Device(num_sms=132, shared_bytes=232_448, hopper=True)


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
Job = tuple[Shape, int, Tiling | None, bool, bool]
"""Shape, query tokens, tiling, whether ragged, whether causal."""

SHAPES = {s.name: s for s in (Shape(name="8B"), Shape(name="1B", dim=64))}
OTHER_SHAPES = (
    Shape(name="14B", heads=40),
    Shape(name="MHA", groups=32),
    Shape(name="MoE", groups=4),
    Shape(name="1.5B", heads=12, groups=2),
)
FP8 = Shape(name="8B-fp8", kv_dtype=torch.float8_e4m3fn)
ODD = (
    Shape(name="fp16", dtype=torch.float16, kv_dtype=torch.float16),
    Shape(name="fp32", heads=8, groups=2, dim=64, dtype=torch.float32, kv_dtype=torch.float32),
    Shape(name="D80", heads=8, groups=8, dim=80),
    Shape(name="D96", heads=32, groups=32, dim=96),
    Shape(name="D256", heads=16, groups=8, dim=256),
    Shape(name="G1", heads=8, groups=1, dim=64),
    FP8,
)


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

    def call(self, tiling: Tiling | None, *, layer: int = 0, causal: bool = True, out: Tensor | None = None) -> Tensor:
        return decode_attention(
            self.q_NAD,
            self.caches[layer % len(self.caches)],
            self.table_BP,
            self.first_row_B,
            self.starts_B,
            self.lengths_B,
            width=self.width,
            causal=causal,
            scale=self.shape.dim**-0.5,
            out=out,
            tiling=tiling,
        )


def make_batch(
    shape: Shape, starts: list[int], lengths: list[int], width: int, pool: Tensor, *, ragged: bool = False
) -> Batch:
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
    starts_B, lengths_B = (torch.tensor(x, device=DEVICE) for x in (starts, lengths))
    first = lengths_B.cumsum(0) - lengths_B if ragged else torch.arange(num_seqs, device=DEVICE) * width
    rows = sum(lengths) if ragged else num_seqs * width
    q_NAD = torch.randn(rows, shape.heads, shape.dim, device=DEVICE, dtype=shape.dtype)
    return Batch(
        shape=shape,
        width=width,
        q_NAD=q_NAD,
        caches=caches,
        table_BP=table_BP,
        first_row_B=first,
        starts_B=starts_B,
        lengths_B=lengths_B,
    )


def reference(batch: Batch, seq: int, causal: bool) -> tuple[Tensor, slice]:
    """Return the output [rows, A * D] of one sequence in float64, and which rows those are."""
    start, length, first = (int(t[seq]) for t in (batch.starts_B, batch.lengths_B, batch.first_row_B))
    context = start + length
    tokens = batch.caches[0][batch.table_BP[seq].long()].flatten(0, 1)[:context].double()
    share = batch.shape.heads // batch.shape.groups
    k_ATD, v_ATD = (tokens[:, i].repeat_interleave(share, 1).transpose(0, 1) for i in (0, 1))
    q_ACD = batch.q_NAD[first : first + length].double().transpose(0, 1)
    scores_ACT = q_ACD @ k_ATD.transpose(1, 2) * batch.shape.dim**-0.5
    if causal:
        positions = torch.arange(context, device=DEVICE)
        scores_ACT.masked_fill_(positions > positions[start:, None], float("-inf"))
    return (scores_ACT.softmax(-1) @ v_ATD).transpose(0, 1).flatten(1), slice(first, first + length)


def check(batch: Batch, tiling: Tiling | None, *, causal: bool, limit: float) -> str:
    """Return PASS, or what is wrong: error too large, unwritten rows, a second run that differs."""
    rows = batch.q_NAD.shape[0]
    spoil(batch)
    outs = [
        torch.full((rows, batch.shape.heads * batch.shape.dim), float("nan"), device=DEVICE, dtype=batch.shape.dtype)
        for _ in range(2)
    ]
    for out in outs:
        batch.call(tiling, causal=causal, out=out)
    if not outs[0].isfinite().all():
        return "FAIL not finite"
    if not torch.equal(*outs):
        return "FAIL two runs differ"
    worst = 0.0
    for seq, length in enumerate(batch.lengths_B.tolist()):
        if length:
            want, own = reference(batch, seq, causal)
            worst = max(worst, float((outs[0][own].double() - want).norm() / want.norm()))
    return f"PASS {worst:.1e}" if worst < limit else f"FAIL error {worst:.2e}"


def spoil(batch: Batch) -> None:
    """Let the first cache hold what is no number wherever no sequence has a token, which must not matter."""
    used = torch.zeros(batch.caches[0].shape[:2], dtype=torch.bool, device=DEVICE).flatten()
    for table_P, start, length in zip(batch.table_BP, batch.starts_B.tolist(), batch.lengths_B.tolist(), strict=True):
        tokens = torch.arange(start + length, device=DEVICE)
        used[table_P.long()[tokens // PAGE] * PAGE + tokens % PAGE] = True
    flat = batch.caches[0].flatten(0, 1)
    flat[~used] = torch.full((), float("nan"), device=DEVICE).to(flat.dtype)


def kernels_to_check() -> list[Job]:
    """Return (shape, width, tiling, ragged, causal) of what is timed, and of other types, head sizes and rows."""
    todo: list[Job] = []
    for shape, width in itertools.product(SHAPES.values(), (1, 4, 8, 17, 25)):
        todo += [(shape, width, t, False, True) for t in unique(decode_tilings(shape, 5, width))]
        todo += [(shape, width, t, False, True) for t in unique(decode_tilings(shape, 256, width))]
    for shape, width, ragged, causal in itertools.product(
        (*SHAPES.values(), *OTHER_SHAPES), (4, 32, 700), (False, True), (False, True)
    ):
        todo.append((shape, width, None, ragged, causal))
    return todo + [(shape, width, None, width == 5, True) for shape in ODD for width in (5, 32)]


def check_all(pool: Tensor, log: list[dict[str, Any]]) -> None:
    """Check each kernel on sequences of unlike lengths, one of them without a token."""
    for shape, width, tiling, ragged, causal in kernels_to_check():
        lengths = [width, max(1, width // 2), width, 0, 1]
        batch = make_batch(shape, [0, 15, 333, 4097, 1000], lengths, width, pool, ragged=ragged)
        if not ragged and width > 1:
            batch.q_NAD[-1] = float("nan")  # padding may hold anything
        limit = 1e-5 if shape.dtype == torch.float32 else 1e-2
        name = f"{shape.name} width {width} {'ragged' if ragged else 'uniform'} {'causal' if causal else 'all'}"
        kept = batch.caches[0].clone()
        result = attempt(lambda b=batch, t=tiling, c=causal, x=limit: check(b, t, causal=c, limit=x))
        batch.caches[0].copy_(kept)
        log.append({"case": name, "tiling": asdict(tiling) if tiling else None, "result": result})
        if not result.startswith("PASS"):
            print(result, name, tiling, flush=True)
    good = sum(row["result"].startswith("PASS") for row in log)
    print(f"correct: {good} of {len(log)} cases PASS", flush=True)


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
    shape, width, tiling, ragged, causal = job
    pool = torch.zeros(8 << 20, dtype=torch.bfloat16, device=DEVICE)
    lengths = [width, 1] if ragged else [width]
    batch = make_batch(shape, [0] * len(lengths), lengths, width, pool, ragged=ragged)
    attempt(lambda: batch.call(tiling, causal=causal))


def compile_all(cases: list[Case], checks: list[Job], workers: int) -> None:
    jobs: dict[tuple[Any, ...], Job] = {}
    timed = [
        (shape, width, tiling, False, True)
        for shape, num_seqs, width, _ in cases
        for tiling in (*decode_tilings(shape, num_seqs, width), auto_tiling(shape, num_seqs, width))
    ]
    for shape, width, tiling, ragged, causal in [*timed, *checks]:
        chosen = tiling or auto_tiling(shape, 5, width)
        key = replace(chosen, splits=min(2, chosen.splits))
        jobs.setdefault((shape, key, ragged, causal), (shape, width, chosen, ragged, causal))
    started = time.perf_counter()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as executor:
        list(executor.map(compile_one, jobs.values()))
    print(f"compiled {len(jobs)} kernels in {time.perf_counter() - started:.1f} s", flush=True)


def auto_tiling(shape: Shape, num_seqs: int, width: int) -> Tiling:
    return choose_tiling(
        num_seqs=num_seqs,
        num_groups=shape.groups,
        share=shape.heads // shape.groups,
        width=width,
        head_dim=shape.dim,
        itemsize=shape.dtype.itemsize,
        kv_itemsize=shape.kv_dtype.itemsize,
        gpu=H200,
        copies=can_copy(
            torch.empty(1, PAGE, 2, shape.groups, shape.dim, dtype=shape.kv_dtype, device=DEVICE), shape.dtype
        ),
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
        batch = make_batch(shape, [context - width] * num_seqs, [width] * num_seqs, width, pool)
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
        batch = make_batch(SHAPES["8B"], [600 - width] * num_seqs, [width] * num_seqs, width, pool)
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
    parser.add_argument("--quick", action="store_true", help="batch 1 and 8 at 600 tokens, without the checks")
    parser.add_argument("--workers", type=int, default=14, help="processes that compile")
    parser.add_argument("--seconds", type=float, default=75, help="stop starting decode cases after so long")
    parser.add_argument("--long", action="store_true", help="long contexts and other shares of heads, not checked")
    parser.add_argument("--check", action="store_true", help="check only")
    args = parser.parse_args()
    started = time.perf_counter()
    torch.manual_seed(0)
    cases = list(long_cases() if args.long else decode_cases())
    if args.quick or args.check:
        cases = [c for c in cases if c[1] <= 8 and c[3] == 600 and args.quick]
    compile_all(cases, [] if args.quick or args.long else kernels_to_check(), args.workers)
    pool = make_pool()
    record: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    record["copy_bytes_per_s"] = copy = copy_bytes_per_s(pool)
    print(f"copy {copy / 1e12:.2f} TB/s; set up in {time.perf_counter() - started:.1f} s", flush=True)
    for name in ("correct", "overlap", "decode"):
        record[name] = []
    if not (args.quick or args.long):
        check_all(pool, record["correct"])
    print(f"checked after {time.perf_counter() - started:.1f} s", flush=True)
    if not (args.long or args.check):
        time_overlap(pool, record["overlap"])
    time_decode(cases, pool, copy, started + args.seconds, record["decode"])
    print(f"done after {time.perf_counter() - started:.1f} s", flush=True)
    if args.out:
        args.out.write_text(json.dumps(record, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
