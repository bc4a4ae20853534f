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
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from draftwise.engine.kernels.cuda import attention
from draftwise.engine.kernels.cuda.attention import Tiling, choose_tiling, decode_attention

DEVICE = "cuda"
PAGE = 16
GRAPH_S = 0.006  # one replay takes about so long
NUM_SMS = 132


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


SHAPES = {s.name: s for s in (Shape(name="8B"), Shape(name="1B", dim=64))}
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


def kernels_to_check() -> list[tuple[Shape, int, Tiling | None, bool, bool]]:
    """Return (shape, width, tiling, ragged, causal) of what is timed, and of other types, head sizes and rows."""
    todo: list[tuple[Shape, int, Tiling | None, bool, bool]] = []
    for shape, width in itertools.product(SHAPES.values(), (1, 4, 8, 17, 25)):
        todo += [(shape, width, t, False, True) for t in unique(decode_tilings(shape, 5, width))]
        todo += [(shape, width, t, False, True) for t in unique(decode_tilings(shape, 256, width))]
    todo += [(SHAPES["8B"], 700, t, False, True) for t in prefill_tilings()]
    for width, ragged, causal in itertools.product((4, 32, 700), (False, True), (False, True)):
        todo.append((SHAPES["8B"], width, None, ragged, causal))
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
        result = attempt(lambda b=batch, t=tiling, c=causal, x=limit: check(b, t, causal=c, limit=x))
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
        splits = max(1, min(64, int(per_sm * NUM_SMS) // (tiles * -(-width * share // rows))))
        return Tiling(rows=rows, keys=keys, warps=warps, stages=stages, splits=splits)

    if shape.kv_dtype.itemsize == 1:
        return [make(64, 4, 3, 2), make(64, 8, 3, 2), make(32, 4, 4, 3), make(32, 2, 4, 4)]
    if rows >= 64:
        return [make(64, 4, 3, 2, 64), make(32, 4, 3, 2, 64), make(64, 8, 3, 1, 128)]
    found = [make(64, 4, 3, 2), make(64, 4, 3, 1), make(64, 4, 4, 2)]
    if rows == 32:
        return found
    apart = [replace(t, apart=True) for t in (*found, make(32, 2, 4, 4))]
    return [*found, make(32, 4, 4, 4), make(32, 2, 4, 4), *apart]


def prefill_tilings() -> list[Tiling]:
    def make(rows: int, keys: int, warps: int, stages: int) -> Tiling:
        return Tiling(rows=rows, keys=keys, warps=warps, stages=stages, splits=1)

    return [make(128, 64, 8, 3), make(64, 32, 4, 3), make(64, 32, 4, 4)]


Job = tuple[Shape, int, Tiling | None, bool, bool]


def compile_one(job: Job) -> None:
    """Compile one kernel by launching it on something small; Triton keeps it on disk for the other processes."""
    shape, width, tiling, ragged, causal = job
    pool = torch.zeros(4 << 20, dtype=torch.bfloat16, device=DEVICE)
    lengths = [width, 1] if ragged else [width]
    batch = make_batch(shape, [0] * len(lengths), lengths, width, pool, ragged=ragged)
    attempt(lambda: batch.call(tiling, causal=causal))


def compile_all(workers: int) -> None:
    jobs: dict[tuple[Any, ...], Job] = {}
    timed = [
        (shape, width, tiling, False, True)
        for shape, num_seqs, width, _ in decode_cases()
        for tiling in (*decode_tilings(shape, num_seqs, width), auto_tiling(shape, num_seqs, width))
    ]
    for shape, width, tiling, ragged, causal in [*timed, *kernels_to_check()]:
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
        num_sms=NUM_SMS,
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


def decode_cases() -> Iterator[tuple[Shape, int, int, int]]:
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


def brief(tiling: Tiling) -> str:
    return f"M{tiling.rows} K{tiling.keys} w{tiling.warps} s{tiling.stages} x{tiling.splits}{' apart' if tiling.apart else ''}"


def timer(batch: Batch, tiling: Tiling | None, floor_us: float) -> Callable[[], float]:
    return lambda: graph_us(lambda i: batch.call(tiling, layer=i), floor_us)


def time_decode(pool: Tensor, copy: float, deadline: float, log: list[dict[str, Any]]) -> None:
    for shape, num_seqs, width, context in decode_cases():
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


def contiguous(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return keys and values [1, G, B * T, D] of the first cache, gathered."""
    tokens = batch.caches[0].index_select(0, batch.table_BP.flatten().long()).flatten(0, 1)
    return tuple(tokens[:, i].transpose(0, 1).unsqueeze(0) for i in (0, 1))  # type: ignore[return-value]


def prefill_baselines(batch: Batch) -> dict[str, Callable[[int], Any]]:
    """Return what torch offers, on keys and values that lie in order already, and what it costs to bring them there."""
    num_seqs, chunk, start = len(batch.starts_B), batch.width, int(batch.starts_B[0])
    context = start + chunk
    k, v = contiguous(batch)
    k_BGTD, v_BGTD = (x[0].unflatten(1, (num_seqs, -1)).transpose(0, 1)[:, :, :context].contiguous() for x in (k, v))
    q_BACD = batch.q_NAD.unflatten(0, (num_seqs, chunk)).transpose(1, 2)
    flat_q, flat_k, flat_v = (
        batch.q_NAD,
        k_BGTD.transpose(1, 2).flatten(0, 1).contiguous(),
        v_BGTD.transpose(1, 2).flatten(0, 1).contiguous(),
    )
    ends_q, ends_k = (torch.arange(num_seqs + 1, device=DEVICE, dtype=torch.int32) * n for n in (chunk, context))

    def flash(_: int) -> Any:
        return torch.ops.aten._flash_attention_forward(
            flat_q, flat_k, flat_v, ends_q, ends_k, chunk, context, 0.0, True, False
        )

    def sdpa(backend: SDPBackend) -> Callable[[int], Any]:
        def call(_: int) -> Any:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q_BACD, k_BGTD, v_BGTD, is_causal=True, enable_gqa=True)

        return call

    def cudnn_two(_: int) -> Any:
        """The chunk's own keys and those before it by themselves, joined by their weights: exact."""
        op = torch.ops.aten._scaled_dot_product_cudnn_attention
        old, old_log, *_ = op(q_BACD, k_BGTD[:, :, :start], v_BGTD[:, :, :start], None, True, 0.0, False)
        new, new_log, *_ = op(q_BACD, k_BGTD[:, :, start:], v_BGTD[:, :, start:], None, True, 0.0, True)
        share = torch.sigmoid(old_log - new_log).to(old.dtype).view(*old.shape[:3], 1)
        return torch.lerp(new, old, share)

    found: dict[str, Callable[[int], Any]] = {"flash varlen": flash, "gather": lambda _: contiguous(batch)}
    if start == 0:
        found |= {"sdpa flash": sdpa(SDPBackend.FLASH_ATTENTION), "sdpa cudnn": sdpa(SDPBackend.CUDNN_ATTENTION)}
    else:
        found["cudnn in two"] = cudnn_two
    return found


def time_prefill(pool: Tensor, log: list[dict[str, Any]]) -> None:
    shape = SHAPES["8B"]
    for num_seqs, chunk, context in ((1, 512, 512), (16, 512, 512), (1, 2048, 2048), (1, 512, 8192), (1, 2048, 16384)):
        start = context - chunk
        batch = make_batch(shape, [start] * num_seqs, [chunk] * num_seqs, chunk, pool)
        flops = num_seqs * 4 * shape.heads * shape.dim * (chunk * start + chunk * (chunk + 1) // 2)
        calls = attempt(lambda b=batch: prefill_baselines(b))
        calls = calls if isinstance(calls, dict) else {}
        want = attempt(lambda b=batch: reference(b, 0, True)[0])
        for tiling in [*prefill_tilings(), None]:
            name = brief(tiling) if tiling else "auto"
            calls[f"paged {name}"] = lambda i, t=tiling, b=batch: b.call(t, layer=i)
        times: dict[str, Any] = {}
        for name, call in calls.items():
            times[name] = attempt(lambda c=call, f=flops: graph_us(c, f / 400e12 * 1e6))
            got = attempt(lambda c=call, b=batch: first_output(c(0), b))
            if isinstance(got, Tensor) and isinstance(want, Tensor):
                error = float((got.double() - want).norm() / want.norm())
                if not error < 1e-2:
                    print(f"FAIL {name}: error {error:.2e}", flush=True)
                    times[f"{name} error"] = error
        log.append({"seqs": num_seqs, "chunk": chunk, "context": context, "flops": flops, "us": times})
        print(f"prefill {num_seqs} x {chunk} of {context}:", flush=True)
        for name, us in times.items():
            text = f"{us:8.1f} us {flops / us / 1e6:6.0f} TFLOP/s" if isinstance(us, float) else us
            print(f"    {name:28} {text}", flush=True)


def time_new_lengths(log: list[dict[str, Any]]) -> None:
    """Time cuDNN's first call for a length that it has not seen: it plans anew for each."""
    for length in (333, 777, 1234):
        q, k, v = (torch.randn(1, heads, length, 128, device=DEVICE, dtype=torch.bfloat16) for heads in (32, 8, 8))
        milliseconds = []
        for _ in range(2):
            torch.cuda.synchronize()
            started = time.perf_counter()
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            torch.cuda.synchronize()
            milliseconds.append((time.perf_counter() - started) * 1e3)
        log.append({"length": length, "first_ms": milliseconds[0], "second_ms": milliseconds[1]})
        print(f"cudnn, new length {length}: {milliseconds[0]:.2f} ms, then {milliseconds[1]:.2f} ms", flush=True)


def first_output(result: Any, batch: Batch) -> Tensor | None:
    """Return the first sequence's output [C, A * D], whatever the layout; None for keys and values."""
    out = result[0] if isinstance(result, tuple) and len(result) > 2 else result
    if not isinstance(out, Tensor):
        return None
    if out.dim() == 4:
        return out[0].transpose(0, 1).flatten(1)
    return out[: batch.width].flatten(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=14, help="processes that compile")
    parser.add_argument("--seconds", type=float, default=75, help="stop starting decode cases after so long")
    args = parser.parse_args()
    started = time.perf_counter()
    torch.manual_seed(0)
    compile_all(args.workers)
    pool = torch.empty(5 << 30, dtype=torch.bfloat16, device=DEVICE)
    for piece in pool.split(1 << 28):
        piece.normal_()
    record: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    record["copy_bytes_per_s"] = copy = copy_bytes_per_s(pool)
    print(f"copy {copy / 1e12:.2f} TB/s; set up in {time.perf_counter() - started:.1f} s", flush=True)
    for name in ("correct", "prefill", "overlap", "decode"):
        record[name] = []
    check_all(pool, record["correct"])
    print(f"checked after {time.perf_counter() - started:.1f} s", flush=True)
    time_prefill(pool, record["prefill"])
    print(attempt(lambda: time_new_lengths(record["prefill"])), flush=True)
    time_overlap(pool, record["overlap"])
    time_decode(pool, copy, started + args.seconds, record["decode"])
    print(f"done after {time.perf_counter() - started:.1f} s", flush=True)
    if args.out:
        args.out.write_text(json.dumps(record, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
