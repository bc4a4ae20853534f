"""Products of few rows on one GPU: every way of cutting them up that may be good, against cuBLAS.

    python benchmarks/h200/kernels/matmul.py --seconds 90 --out matmul.json
    python benchmarks/h200/kernels/matmul.py --configs best.json --out matmul.json

The second form times only the ways of an earlier run that came within 5 % of the best. Each product is timed as it
runs in a model: launches back to back in a CUDA graph, over copies of the weights that exceed the L2 together. The
last lines are the chain of all products of a step of Llama-3.1-8B, each layer with weights of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from draftwise.engine.kernels.cuda import matmul as products
from draftwise.engine.kernels.cuda.launch import launch_next, pdl, wait
from draftwise.engine.kernels.cuda.matmul_code import vector_kernel
from draftwise.engine.kernels.cuda.matmul_configs import MOST_ROWS, Config, padded
from draftwise.engine.kernels.cuda.matmul_fp8 import linear_fp8
from draftwise.engine.models.linear import quantise

L2_BYTES, SHARED_BYTES = 60_000_000, 232_448
ROWS = (1, 8, 32, 4, 16, 64, 2, 6)
"""In the order of interest."""
COPY_TB_S = 4.27
WORST_ERROR = 4e-3
"""Relative; rounding to bfloat16 once is 1.7e-3."""


@dataclass(frozen=True, slots=True)
class Product:
    """One product of a model; `num_out` counts gate and up where they are combined."""

    name: str
    num_out: int
    num_in: int
    gated: bool = False

    @property
    def weight_bytes(self) -> int:
        return 2 * self.num_out * self.num_in


LLAMA_8B = (
    Product("qkv", 6144, 4096),
    Product("o", 4096, 4096),
    Product("gate_up", 28672, 4096, gated=True),
    Product("down", 4096, 14336),
)
HEAD = Product("head", 128256, 4096)
PRODUCTS = (
    *LLAMA_8B,
    HEAD,
    Product("eagle3 qkv", 6144, 8192),
    Product("eagle3 fc", 4096, 12288),
    Product("eagle3 head", 32000, 4096),
    Product("1b qkv", 3072, 2048),
    Product("1b o", 2048, 2048),
    Product("1b gate_up", 16384, 2048, gated=True),
    Product("1b down", 2048, 8192),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector:
    """A product of very few rows without matrix instructions."""

    outputs: int
    warps: int


Way = Config | Vector


def run_vector(way: Vector, product: Product, x_RK: Tensor, weight_OK: Tensor) -> Tensor:
    num_out = product.num_out // (2 if product.gated else 1)
    y_RO = x_RK.new_empty(len(x_RK), num_out)
    vector_kernel[(triton.cdiv(num_out, way.outputs),)](
        x_RK,
        x_RK.stride(0),
        weight_OK,
        None,
        y_RO,
        len(x_RK),
        num_out,
        IN=product.num_in,
        ROWS=triton.next_power_of_2(len(x_RK)),
        BLOCK_O=way.outputs,
        BLOCK_K=256 * way.warps,
        GATED=product.gated,
        PDL=pdl(),
        num_warps=way.warps,
        launch_pdl=pdl(),
    )
    return y_RO


def run(way: Way | None, product: Product, x_RK: Tensor, weight_OK: Tensor, arrivals_T: Tensor) -> Tensor:
    """Return the product, computed one way; None: cuBLAS, which leaves gate and up as they are."""
    if way is None:
        return F.linear(x_RK, weight_OK)
    if isinstance(way, Vector):
        return run_vector(way, product, x_RK, weight_OK)
    if product.gated:
        return products.run_gated(way, x_RK, weight_OK)
    return products.run_matmul(way, x_RK, weight_OK, arrivals_T=arrivals_T)


def with_stages(config: Config, product: Product, num_rows: int, programs: int) -> Config | None:
    """Return the config with as many stages as let this many programs share a multiprocessor."""
    stage = config.stage_bytes(num_rows, gated=product.gated)
    stages = min(
        12, (SHARED_BYTES // programs - 2048) // stage, product.num_in // config.fold // config.splits // config.columns
    )
    return dataclasses.replace(config, stages=stages) if stages >= 3 or (programs == 1 and stages >= 2) else None


def cuts(product: Product, num_rows: int) -> list[tuple[int, int, int, int, int]]:
    """Return what is worth a try: rows of weights in a tile, fold, splits, columns, programs on a multiprocessor."""
    few, some = padded(num_rows) <= 8, padded(num_rows) <= 16
    if product.gated and some:
        small = [(64, 4, 1, 64, 4), (64, 4, 1, 128, 2), (64, 2, 1, 64, 4), (64, 2, 1, 128, 2), (64, 4, 1, 64, 3)]
        return [*small, (64, 1, 1, 128, 1), (64, 1, 1, 256, 1), (64, 1, 1, 128, 2)]
    if product.gated:
        return [(64, 1, 1, 128, 1), (128, 1, 1, 64, 1), (64, 1, 1, 64, 2), (128, 1, 1, 128, 1), (64, 2, 1, 64, 2)]
    if product.num_out > 16384:
        small = [(64, 2, 1, 128, 2), (64, 2, 1, 64, 4), (64, 4, 1, 128, 2), (64, 4, 1, 64, 4), (64, 4, 1, 128, 3)]
        return [
            *(small if some else []),
            (64, 1, 1, 128, 2),
            (64, 1, 1, 128, 3),
            (128, 1, 1, 128, 1),
            (128, 1, 1, 64, 2),
        ]
    if some:
        small = [(64, 8, 1, 64, 4)] if few else []
        main = [(64, 4, 1, 128, 2), (64, 4, 1, 128, 3), (64, 4, 1, 64, 4), (64, 4, 1, 64, 3), (64, 4, 1, 64, 6)]
        return [*main, *small, (64, 2, 1, 128, 2), (64, 2, 1, 64, 4), (64, 1, 4, 128, 2), (64, 1, 4, 64, 4)]
    tall = [(128, 1, 4, 64, 1), (128, 1, 4, 128, 1), (128, 1, 2, 64, 1)]
    folded = [(64, 2, 1, 64, 2), (64, 2, 1, 128, 1), (128, 2, 1, 64, 1)]
    return [(64, 1, 2, 128, 1), (64, 1, 2, 64, 1), (64, 1, 4, 128, 2), (64, 1, 4, 128, 1), *tall, *folded]


def ways(product: Product, num_rows: int) -> list[Way]:
    """Return the ways that are worth a try, none twice."""
    found: dict[Way, None] = {}
    for i, (tile, fold, splits, columns, programs) in enumerate(cuts(product, num_rows)):
        config = with_stages(
            Config(outputs=tile // fold, columns=columns, fold=fold, splits=splits), product, num_rows, programs
        )
        if config is None or product.num_in % (fold * splits * columns):
            continue
        found[config] = None
        if fold == 1 or splits == 1:
            found[dataclasses.replace(config, hopper=True)] = None
        if i == 0 and product in (*LLAMA_8B, HEAD):
            found.update({dataclasses.replace(config, prefetch=columns): None for columns in (0, 128, 512)})
    if num_rows <= 4:
        sizes = [(1, 8), (2, 8), (4, 8), (2, 4)] if num_rows == 1 else [(2, 8), (4, 8)]
        found.update({Vector(outputs=o, warps=w): None for o, w in sizes if product.num_in % (256 * w) == 0})
    return list(found)


def bucket(num_rows: int) -> int:
    """Return the fewest rows that compile to the same kernels."""
    return {2: 4, 6: 8}.get(num_rows, num_rows)


Job = tuple[Way, Product, int]


def compile_one(job: Job) -> tuple[Job, str | None]:
    """Run one way over few outputs, so that its code is in Triton's cache; return what went wrong."""
    way, product, num_rows = job
    try:
        small = dataclasses.replace(product, num_out=512)
        x, weight = (torch.zeros(n, product.num_in, dtype=torch.bfloat16, device="cuda") for n in (num_rows, 512))
        run(way, small, x, weight, torch.zeros(512, dtype=torch.int32, device="cuda"))
        torch.cuda.synchronize()
    except Exception as error:
        return job, f"{type(error).__name__}: {str(error)[:300]}"
    return job, None


class Compiler:
    """Processes that compile at the same time; they must be forked before this one uses the GPU."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("fork")
        self._pool = context.Pool(workers)
        self._alone = context.Pool(2, maxtasksperchild=1)

    def run(self, jobs: Iterable[Job]) -> set[tuple[object, ...]]:
        """Compile everything once; return the keys of what fails even with a process and CUDA context of its own."""
        unique = {code_key(*job): job for job in jobs}
        start = time.monotonic()
        failed = self._compile(self._pool, unique.values())
        failed = self._compile(self._alone, failed)
        print(f"{len(unique)} kernels compiled in {time.monotonic() - start:.1f} s, {len(failed)} failed", flush=True)
        for job, error in list(failed.items())[:8]:
            print("  ", *job, error)
        return {code_key(*job) for job in failed}

    def _compile(self, pool: Any, jobs: Iterable[Job]) -> dict[Job, str]:
        """Return the jobs that failed, and why; where nothing ends for long, something hangs and all are killed."""
        failed = dict.fromkeys(jobs, "nothing came back")
        try:
            results = pool.imap_unordered(compile_one, list(failed))
            while True:
                job, error = results.next(timeout=30)
                failed[job] = error or ""
        except StopIteration:
            pass
        except (ValueError, multiprocessing.TimeoutError):  # ValueError: killed before
            self.close()
        return {job: error for job, error in failed.items() if error}

    def close(self) -> None:
        for pool in (self._pool, self._alone):
            pool.terminate()


def code_key(way: Way, product: Product, num_rows: int) -> tuple[object, ...]:
    """Return what makes two products the same code."""
    return way, product.num_in, product.gated, num_rows if isinstance(way, Vector) else padded(num_rows)


def graph_ms(calls: list[Callable[[], object]], repeats: int = 5) -> float:
    """Return the median time of one call, all of them captured in one graph."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times) / len(calls)


class Bench:
    """Weights, activations and measurements of the products."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.rows: list[dict[str, Any]] = []
        self._pool = torch.empty(1_200_000_000, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)
        self.arrivals_T = torch.zeros(4096, dtype=torch.int32, device="cuda")
        self._reference: tuple[tuple[str, int], Tensor] = ("", 0), self.arrivals_T

    def weights(self, product: Product) -> list[Tensor]:
        size = product.num_out * product.num_in
        copies = min(len(self._pool) // size, max(2, -(-3 * L2_BYTES // (2 * size))))
        return [self._pool[i * size : (i + 1) * size].view(product.num_out, product.num_in) for i in range(copies)]

    def check(self, way: Way, product: Product, x_RK: Tensor) -> float:
        """Return the relative error of one way."""
        weight = self.weights(product)[0]
        y = run(way, product, x_RK, weight, self.arrivals_T)
        again = run(way, product, x_RK, weight, self.arrivals_T)
        assert torch.equal(y, again), "differs from run to run"
        expected = self._expected(product, x_RK, weight)
        return float((y.float() - expected).norm() / expected.norm())

    def _expected(self, product: Product, x_RK: Tensor, weight_OK: Tensor) -> Tensor:
        key = (product.name, len(x_RK))
        if self._reference[0] != key:
            exact = x_RK.float() @ weight_OK.float().T
            if product.gated:
                gate, up = exact.bfloat16().chunk(2, dim=-1)
                exact = (F.silu(gate) * up).float()
            self._reference = key, exact
        return self._reference[1]

    def free(self) -> None:
        """Give the weights' memory back."""
        self._pool = torch.empty(0, device="cuda")
        torch.cuda.empty_cache()

    def time(self, way: Way | None, product: Product, num_rows: int) -> dict[str, Any]:
        """Time one way and keep the result."""
        torch.manual_seed(num_rows)
        x_RK = torch.randn(num_rows, product.num_in, device="cuda").bfloat16()
        row = {"product": product.name, "rows": num_rows, "way": describe(way)}
        try:
            if way is not None:
                row["error"] = self.check(way, product, x_RK)
            calls = [
                lambda w=w: run(way, product, x_RK, w, self.arrivals_T)
                for w, _ in zip(
                    itertools.cycle(self.weights(product)), range(24 if product.num_out < 1e5 else 6), strict=False
                )
            ]
            row["ms"] = graph_ms(calls)
            row["tb_s"] = product.weight_bytes / row["ms"] / 1e9
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
        self.rows.append(row)
        return row


def describe(way: Way | None) -> dict[str, Any] | str:
    return "cuBLAS" if way is None else {"kind": type(way).__name__, **dataclasses.asdict(way)}


def parse(way: dict[str, Any]) -> Way:
    fields = dict(way)
    return {"Config": Config, "Vector": Vector}[fields.pop("kind")](**fields)


def short(way: dict[str, Any] | str) -> str:
    if isinstance(way, str):
        return way
    if way["kind"] == "Vector":
        return f"vector o{way['outputs']} w{way['warps']}"
    tma = ("tma2" if way["x_tma"] else "tma") if way["tma"] else "cp"
    return f"o{way['outputs']} k{way['columns']} f{way['fold']} s{way['splits']} st{way['stages']} " + (
        "hopper" if way["hopper"] else f"{tma} pre{way['prefetch']}"
    )


def explore(bench: Bench, candidates: Callable[[Product, int], list[Way]]) -> None:
    """Time all candidates; the sizes between two that compile to the same kernels get the best of the larger only."""
    for num_rows in ROWS:
        for product in PRODUCTS:
            if time.monotonic() > bench.deadline:
                print(f"out of time before {product.name} at {num_rows} rows")
                return
            tried = candidates(product, num_rows)
            if num_rows in (2, 6):
                tried = best_of(bench.rows, product.name, bucket(num_rows), 3)
                tried += [way for way in candidates(product, num_rows) if isinstance(way, Vector) and way not in tried]
            for way in [None, *tried]:
                bench.time(way, product, num_rows)


def best_of(rows: list[dict[str, Any]], name: str, num_rows: int, count: int) -> list[Way]:
    found = [r for r in rows if r["product"] == name and r["rows"] == num_rows and r.get("error", 1) <= WORST_ERROR]
    found = [r for r in found if "ms" in r]
    return [parse(r["way"]) for r in sorted(found, key=lambda r: r["ms"])[:count]]


@triton.jit
def between_kernel(x_ptr, y_ptr, WIDTH: tl.constexpr, PDL: tl.constexpr):
    """What a norm, a rotation or attention costs at least: a row in, a row out."""
    launch_next(PDL)
    wait(PDL)
    column = tl.arange(0, WIDTH)
    tl.store(y_ptr + tl.program_id(0) * WIDTH + column, tl.load(x_ptr + tl.program_id(0) * WIDTH + column))


def between(x_RK: Tensor, y_RK: Tensor) -> None:
    between_kernel[(len(x_RK),)](x_RK, y_RK, WIDTH=x_RK.shape[1], PDL=pdl(), launch_pdl=pdl())


class Chain:
    """All products of one step of the 8B model."""

    def __init__(self) -> None:
        self._layers = [
            [torch.empty(p.num_out, p.num_in, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02) for p in LLAMA_8B]
            for _ in range(32)
        ]
        self._head = torch.empty(HEAD.num_out, HEAD.num_in, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)
        self._arrivals = torch.zeros(4096, dtype=torch.int32, device="cuda")
        self.bytes = 32 * sum(p.weight_bytes for p in LLAMA_8B) + HEAD.weight_bytes

    def ms(self, ways: dict[str, Way | None], num_rows: int, *, gaps: bool) -> float:
        """Return the time of a step; `gaps`: with a small kernel wherever the model has some."""
        x = {k: torch.randn(num_rows, k, device="cuda").bfloat16() for k in (4096, 14336)}
        other = torch.empty_like(x[4096])

        def step() -> None:
            for layer in self._layers:
                for product, weight in zip(LLAMA_8B, layer, strict=True):
                    run(ways[product.name], product, x[product.num_in], weight, self._arrivals)
                    for _ in range({"qkv": 2, "gate_up": 0}.get(product.name, 1) if gaps else 0):
                        between(x[4096], other)
            run(ways["head"], HEAD, x[4096], self._head, self._arrivals)

        return graph_ms([step], 7)


Ways = dict[str, Way | None]


def with_prefetch(ways: Ways, megabytes: int) -> Ways:
    """Return the ways with so much of each product's weights asked for before its activations are there."""
    changed: Ways = {}
    for product in (*LLAMA_8B, HEAD):
        way = ways[product.name]
        if isinstance(way, Config):
            parts = product.num_out * way.fold * way.splits
            columns = min(megabytes * 2**19 // parts // 64 * 64, product.num_in // way.fold // way.splits)
            way = dataclasses.replace(way, prefetch=columns)
        changed[product.name] = way
    return changed


def chain_ways(bench: Bench, num_rows: int) -> dict[str, Ways]:
    """Return how to compute a step, by name: what was best alone, the package's choice, several sizes of prefetch."""
    best: Ways = {}
    for product in (*LLAMA_8B, HEAD):
        found = best_of(bench.rows, product.name, num_rows, 1)
        best[product.name] = found[0] if found else chosen(product, num_rows)
    named: dict[str, Ways] = {"cublas": dict.fromkeys(best), "best": best}
    named["chosen"] = {product.name: chosen(product, num_rows) for product in (*LLAMA_8B, HEAD)}
    if num_rows in (1, 8):
        named |= {f"best, {size} MB early": with_prefetch(best, size) for size in (0, 2, 4, 8, 16, 32)}
    return named


def time_chain(bench: Bench, compiler: Compiler) -> list[dict[str, Any]]:
    """Time a whole step with and without gaps for other kernels, and the best way also without early launches."""
    cases = {num_rows: chain_ways(bench, num_rows) for num_rows in (1, 4, 8, 16, 32, 64)}
    jobs = [
        (w, p, r)
        for r, named in cases.items()
        for ways in named.values()
        for p in (*LLAMA_8B, HEAD)
        if (w := ways[p.name])
    ]
    compiler.run(jobs)
    chain, results = Chain(), []
    for num_rows, named in cases.items():
        for name, ways in named.items():
            for early in (True, False) if name == "best" and num_rows in (1, 8, 32) else (True,):
                os.environ["DRAFTWISE_PDL"] = str(int(early))
                pdl.cache_clear()
                row: dict[str, Any] = {"rows": num_rows, "ways": name if early else f"{name}, late launches"}
                row |= {"configs": {product: describe(way) for product, way in ways.items()}}
                row |= {"ms": chain.ms(ways, num_rows, gaps=False), "gaps_ms": chain.ms(ways, num_rows, gaps=True)}
                results.append(row)
    os.environ.pop("DRAFTWISE_PDL")
    print(f"floor of the chain {chain.bytes / COPY_TB_S / 1e9:.3f} ms")
    return results


def fp8_configs(product: Product, x_RK: Tensor, weight_OK: Tensor) -> list[Config]:
    """Return a few ways for one-byte weights, whose tiles leave room for more columns."""
    first, num_rows = products.find_config(x_RK, weight_OK, gated=product.gated), len(x_RK)
    if first is None:
        return []
    found: dict[Config, None] = {}
    for columns, programs in ((128, 2), (256, 2), (128, 3), (128, 4), (256, 1)):
        config = dataclasses.replace(first, columns=columns)
        stage = config.stage_bytes(num_rows, gated=product.gated, weight_bytes=1)
        tiles = product.num_in // config.fold // config.splits // columns
        stages = min(12, (SHARED_BYTES // programs - 2048) // stage, tiles)
        if product.num_in % (config.fold * config.splits * columns) == 0 and stages >= 2:
            found[dataclasses.replace(config, stages=stages)] = None
    return list(found)


def time_fp8(bench: Bench) -> list[dict[str, Any]]:
    """Time one-byte weights: few rows in our kernels, many in the library's product of quantised rows."""
    results = []
    for product, num_rows in itertools.product(LLAMA_8B, (1, 8, 64, 512)):
        if time.monotonic() > bench.deadline:
            break
        pairs = [quantise(weight) for weight in bench.weights(product)]
        x_RK = torch.randn(num_rows, product.num_in, device="cuda").bfloat16()
        for config in [None] if num_rows > MOST_ROWS else fp8_configs(product, x_RK, pairs[0][0]):
            row = {"product": product.name, "rows": num_rows, "way": describe(config)}
            try:
                call = functools.partial(run_fp8, config, product, x_RK, bench.arrivals_T)
                exact = x_RK.double() @ (pairs[0][0].double() * pairs[0][1].double().unsqueeze(1)).T
                if product.gated and config is not None:
                    exact = F.silu(exact.chunk(2, dim=-1)[0]) * exact.chunk(2, dim=-1)[1]
                row["error"] = float((call(pairs[0]).double() - exact).norm() / exact.norm())
                calls = [
                    functools.partial(call, pair) for pair, _ in zip(itertools.cycle(pairs), range(24), strict=False)
                ]
                row["ms"] = graph_ms(calls)
                row["tb_s"] = product.weight_bytes / 2 / row["ms"] / 1e9
            except Exception as error:
                row["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
            results.append(row)
    return results


def run_fp8(
    config: Config | None, product: Product, x_RK: Tensor, arrivals_T: Tensor, pair: tuple[Tensor, Tensor]
) -> Tensor:
    if config is None:
        return linear_fp8(x_RK, *pair, None)
    if product.gated:
        return products.run_gated(config, x_RK, *pair)
    return products.run_matmul(config, x_RK, pair[0], None, pair[1], arrivals_T)


def chosen(product: Product, num_rows: int) -> Way | None:
    """Return what the package itself does."""
    x_RK, weight_OK = (
        torch.empty(n, product.num_in, dtype=torch.bfloat16, device="cuda") for n in (num_rows, product.num_out)
    )
    return products.find_config(x_RK, weight_OK, gated=product.gated)


def same_bits(bench: Bench) -> list[str]:
    """Return for which products, rows and ways the first row's result differs from the first row's among 16."""
    different = []
    for product in (*LLAMA_8B, HEAD):
        x_RK, weight_OK = torch.randn(64, product.num_in, device="cuda").bfloat16(), bench.weights(product)[0]
        expected_O = run(chosen(product, 16), product, x_RK[:16], weight_OK, bench.arrivals_T)[0]
        for num_rows, kind in itertools.product((1, 4, 8, 16, 32, 64), ("triton", "hopper")):
            way = chosen(product, num_rows)
            if not isinstance(way, Config) or (kind == "hopper" and min(way.fold, way.splits) > 1):
                continue
            way = dataclasses.replace(way, hopper=kind == "hopper")
            if not torch.equal(run(way, product, x_RK[:num_rows], weight_OK, bench.arrivals_T)[0], expected_O):
                different.append(f"{product.name} {num_rows} {kind}")
    return different


def read_candidates(path: Path) -> Callable[[Product, int], list[Way]]:
    """Return the ways of an earlier run that came within 5 % of the best."""
    rows = [
        row for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if "ms" in row and row["way"] != "cuBLAS"
    ]

    def candidates(product: Product, num_rows: int) -> list[Way]:
        here = [row for row in rows if row["product"] == product.name and row["rows"] == num_rows]
        return [parse(row["way"]) for row in here if row["ms"] <= 1.05 * min(r["ms"] for r in here)]

    return candidates


def print_best(rows: list[dict[str, Any]]) -> None:
    for product, num_rows in itertools.product(PRODUCTS, sorted(ROWS)):
        here = [r for r in rows if r["product"] == product.name and r["rows"] == num_rows and "ms" in r]
        ours = sorted((r for r in here if r["way"] != "cuBLAS"), key=lambda r: r["ms"])
        if not ours:
            continue
        library = next((f"{r['tb_s']:.2f}" for r in here if r["way"] == "cuBLAS"), "-")
        print(f"{product.name:12} {num_rows:2}  cuBLAS {library}  ", end="")
        print("  |  ".join(f"{r['tb_s']:.2f} {short(r['way'])}" for r in ours[:2]))


def print_parts(rows: list[dict[str, Any]]) -> None:
    """Print what it costs to sum in the same number of parts whatever the number of rows: time over the best's."""
    print("time over the best's, by parts (the same parts give the same bits at any number of rows)")
    for product in PRODUCTS:
        costs: dict[int, list[str]] = {}
        for num_rows in sorted(ROWS):
            here = [r for r in rows if r["product"] == product.name and r["rows"] == num_rows and "ms" in r]
            ours = [r for r in here if r["way"] != "cuBLAS"]
            for parts in (1, 2, 4, 8):
                times = [r["ms"] for r in ours if r["way"].get("fold", 0) * r["way"].get("splits", 0) == parts]
                cost = f"{min(times) / min(r['ms'] for r in ours):.3f}" if times else "-"
                costs.setdefault(parts, []).append(cost)
        for parts, line in costs.items():
            if any(cost != "-" for cost in line):
                print(f"{product.name:12} P={parts}  " + "  ".join(line))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90, help="time for compiling and for single products")
    parser.add_argument("--configs", type=Path, help="an earlier run's JSON: its best ways only")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=16, help="processes that compile")
    args = parser.parse_args()
    deadline = time.monotonic() + args.seconds
    candidates = read_candidates(args.configs) if args.configs else ways
    jobs = [(w, p, r) for r in ROWS if r != 6 for p in PRODUCTS for w in candidates(p, r)]
    compiler = Compiler(args.workers)
    bad = compiler.run(jobs)

    bench = Bench(deadline)

    def tried(product: Product, num_rows: int) -> list[Way]:
        found = dict.fromkeys([*candidates(product, num_rows), *filter(None, [chosen(product, num_rows)])])
        return [way for way in found if code_key(way, product, num_rows) not in bad]

    explore(bench, tried)
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    result |= {"rows": bench.rows, "failed": [str(key) for key in bad]}
    args.out.write_text(json.dumps(result), encoding="utf-8")
    bench.deadline += 10
    result["fp8"] = time_fp8(bench)
    result["other bits"] = same_bits(bench)
    bench.free()
    result["chain"] = time_chain(bench, compiler)
    compiler.close()
    args.out.write_text(json.dumps(result), encoding="utf-8")

    print_parts(bench.rows)
    print_best(bench.rows)
    print("the first row has other bits than among 16 rows:", ", ".join(result["other bits"]) or "never")
    for row in result["fp8"]:
        print(
            "fp8",
            row["product"],
            row["rows"],
            f"{row.get('tb_s', 0):.2f} TB/s, error",
            row.get("error"),
            short(row["way"]),
        )
    wrong = [r for r in bench.rows if "failed" in r or r.get("error", 0) > WORST_ERROR]
    wrong += [
        r for r in result["fp8"] if "failed" in r or r["error"] > (WORST_ERROR if r["rows"] <= MOST_ROWS else 0.05)
    ]
    for row in wrong[:8]:
        print("FAIL", row)
    print(
        f"{len(bench.rows)} measured, {len(wrong)} FAIL, worst error {max(r.get('error', 0) for r in bench.rows):.1e}"
    )
    for row in result["chain"]:
        print(f"chain {row['rows']:2} {row['ways']:24} {row['ms']:.3f} ms, with gaps {row['gaps_ms']:.3f}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
