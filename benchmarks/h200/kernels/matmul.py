"""Products of few rows on one GPU: every way of cutting them up that may be good, against cuBLAS.

    python benchmarks/h200/kernels/matmul.py --seconds 90 --out matmul.json
    python benchmarks/h200/kernels/matmul.py --configs matmul.json --out again.json

The second form times only the ways of an earlier run that came within 5 % of the best. Each product is timed as it
runs in a model: launches back to back in a CUDA graph, over copies of the weights that exceed the L2 together.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from matmul_ways import (
    HEAD,
    LLAMA_8B,
    PRODUCTS,
    Compiler,
    Config,
    Product,
    chosen,
    code_key,
    describe,
    graph_ms,
    products_of,
    run,
    short,
    ways,
)
from torch import Tensor

from draftwise.engine.kernels.cuda.matmul_configs import MOST_ROWS
from draftwise.engine.models.linear import CudaLinear, quantize

L2_BYTES = 60_000_000
ROWS = {"tuned": (1, 8, 32, 4, 16, 64, 2, 6), "seen": (64, 48, 32, 16, 8, 1), "unseen": (64, 48, 32, 16, 8, 1)}
"""In the order of interest."""
TIMED_AS = {2: 4, 6: 8, 48: 64}
"""Rows that compile to the same kernels as more rows, whose best ways they get."""
WORST_ERROR, WORST_FP8_ERROR = 4e-3, 0.05
"""Relative; rounding to bfloat16 once is 1.7e-3, rounding activations to float8_e4m3fn 2.6e-2."""


class Bench:
    """Weights, activations and measurements of the products."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.rows: list[dict[str, Any]] = []
        self._pool = torch.empty(1_200_000_000, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)
        self._reference: tuple[tuple[str, int], Tensor] = ("", 0), torch.empty(0)

    def weights(self, product: Product) -> list[Tensor]:
        size = product.num_out * product.num_in
        copies = min(len(self._pool) // size, max(2, -(-3 * L2_BYTES // (2 * size))))
        return [self._pool[i * size : (i + 1) * size].view(product.num_out, product.num_in) for i in range(copies)]

    def check(self, config: Config, product: Product, x_RK: Tensor) -> float:
        """Return the relative error of one way."""
        weight = self.weights(product)[0]
        y = run(config, product, x_RK, weight)
        again = run(config, product, x_RK, weight)
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

    def time(self, config: Config | None, product: Product, num_rows: int) -> dict[str, Any]:
        """Time one way and keep the result."""
        torch.manual_seed(num_rows)
        x_RK = torch.randn(num_rows, product.num_in, device="cuda").bfloat16()
        row = {"product": product.name, "rows": num_rows, "way": describe(config)}
        try:
            if config is not None:
                row["error"] = self.check(config, product, x_RK)
            calls = [
                lambda w=w: run(config, product, x_RK, w)
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


def explore(
    bench: Bench, products: Sequence[Product], rows: Sequence[int], candidates: Callable[[Product, int], list[Config]]
) -> None:
    """Time all candidates; the sizes between two that compile to the same kernels get the best of the larger only."""
    for num_rows in rows:
        for product in products:
            if time.monotonic() > bench.deadline:
                print(f"out of time before {product.name} at {num_rows} rows")
                return
            tried = candidates(product, num_rows)
            if num_rows in TIMED_AS:
                tried = best_of(bench.rows, product, TIMED_AS[num_rows], 3)
            for config in [None, *tried]:
                bench.time(config, product, num_rows)


def best_of(rows: list[dict[str, Any]], product: Product, num_rows: int, count: int) -> list[Config]:
    here = [r for r in rows if r["product"] == product.name and r["rows"] == num_rows and "ms" in r]
    right = [r for r in here if r.get("error", 1) <= WORST_ERROR]
    return [Config(**r["way"]) for r in sorted(right, key=lambda r: r["ms"])[:count]]


def time_fp8(bench: Bench) -> list[dict[str, Any]]:
    """Time one-byte weights: few rows in our kernels, many in the library's product of quantized rows."""
    results = []
    for product, num_rows in itertools.product(LLAMA_8B, (1, 8, 64, 512)):
        linears = [CudaLinear(rounded, None, scale) for rounded, scale in map(quantize, bench.weights(product))]
        x_RK = torch.randn(num_rows, product.num_in, device="cuda").bfloat16()
        exact = x_RK.double() @ (linears[0].weight.double() * linears[0].scale.double().unsqueeze(1)).T
        if product.gated:
            exact = F.silu(exact.chunk(2, dim=-1)[0]) * exact.chunk(2, dim=-1)[1]
        calls = [functools.partial(linear.gated if product.gated else linear, x_RK) for linear in linears]
        row = {"product": product.name, "rows": num_rows, "ms": graph_ms(calls * (24 // len(calls)))}
        row["error"] = float((calls[0]().double() - exact).norm() / exact.norm())
        row["tb_s"] = product.weight_bytes / 2 / row["ms"] / 1e9
        results.append(row)
    return results


def same_bits(bench: Bench) -> list[str]:
    """Return for which products and rows the first row's result is not that of the row alone."""
    different = []
    for product in (*LLAMA_8B, HEAD):
        x_RK, weight_OK = torch.randn(64, product.num_in, device="cuda").bfloat16(), bench.weights(product)[0]
        results = {n: run(chosen(product, n), product, x_RK[:n], weight_OK)[0] for n in (1, 2, 4, 8, 16, 32, 64)}
        different += [f"{product.name} {n}" for n, first_O in results.items() if not torch.equal(first_O, results[1])]
    return different


def read_candidates(path: Path) -> Callable[[Product, int], list[Config]]:
    """Return the ways of an earlier run that came within 5 % of the best."""
    rows = [
        row for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if "ms" in row and row["way"] != "cuBLAS"
    ]

    def candidates(product: Product, num_rows: int) -> list[Config]:
        here = [row for row in rows if row["product"] == product.name and row["rows"] == num_rows]
        return [Config(**row["way"]) for row in here if row["ms"] <= 1.05 * min(r["ms"] for r in here)]

    return candidates


def early_ways(product: Product, num_rows: int) -> list[Config]:
    """Return the ways that start early, for few rows the likely ones: there the rule holds for all widths."""
    found = [way for way in ways(product, num_rows) if way.early]
    return found[:3] if num_rows <= 8 else found


def print_best(rows: list[dict[str, Any]], products: Sequence[Product], sizes: Sequence[int]) -> None:
    for product, num_rows in itertools.product(products, sorted(sizes)):
        here = [r for r in rows if r["product"] == product.name and r["rows"] == num_rows and "ms" in r]
        ours = sorted((r for r in here if r["way"] != "cuBLAS"), key=lambda r: r["ms"])
        if not ours:
            continue
        library = next((f"{r['tb_s']:.2f}" for r in here if r["way"] == "cuBLAS"), "-")
        print(f"{product.name:12} {num_rows:2}  cuBLAS {library}  ", end="")
        print("  |  ".join(f"{r['tb_s']:.2f} {short(r['way'])}" for r in ours[:2]))


def print_folds(rows: list[dict[str, Any]], products: Sequence[Product], sizes: Sequence[int]) -> None:
    """Print what it costs to keep to one fold whatever the number of rows: time over the best's."""
    print("time over the best's, by fold (the same fold gives the same bits at any number of rows)")
    for product, fold in itertools.product(products, (1, 2, 4, 8)):
        line = []
        for num_rows in sorted(sizes):
            here = [r for r in rows if r["product"] == product.name and r["rows"] == num_rows and "ms" in r]
            ours = [r for r in here if r["way"] != "cuBLAS"]
            times = [r["ms"] for r in ours if r["way"]["fold"] == fold]
            line.append(f"{min(times) / min(r['ms'] for r in ours):.3f}" if times else "-")
        if set(line) != {"-"}:
            print(f"{product.name:12} fold {fold}  " + "  ".join(line))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90, help="time for compiling and for single products")
    parser.add_argument("--of", nargs="+", choices=PRODUCTS, default=["tuned"], help="which models' products")
    parser.add_argument("--configs", type=Path, help="an earlier run's JSON: its best ways only")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=16, help="processes that compile")
    args = parser.parse_args()
    if args.configs and not args.configs.is_file():
        parser.error(f"there is no {args.configs}")
    deadline = time.monotonic() + args.seconds
    candidates = read_candidates(args.configs) if args.configs else ways if args.of == ["tuned"] else early_ways
    products, sizes = products_of(args.of), list(dict.fromkeys(r for kind in args.of for r in ROWS[kind]))
    jobs = [(w, p, r) for r in sizes if r not in TIMED_AS for p in products for w in candidates(p, r)]
    compiler = Compiler(args.workers)
    bad = compiler.run(jobs)

    bench = Bench(deadline)

    def tried(product: Product, num_rows: int) -> list[Config]:
        found = dict.fromkeys([*candidates(product, num_rows), *filter(None, [chosen(product, num_rows)])])
        return [config for config in found if code_key(config, product, num_rows) not in bad]

    explore(bench, products, sizes, tried)
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    result |= {"rows": bench.rows, "failed": [str(key) for key in bad]}
    args.out.write_text(json.dumps(result), encoding="utf-8")
    print_best(bench.rows, products, sizes)
    if "tuned" in args.of:
        time_tuned(bench, result)
        args.out.write_text(json.dumps(result), encoding="utf-8")
    compiler.close()
    wrong = [r for r in bench.rows if "failed" in r or r.get("error", 0) > WORST_ERROR]
    fp8 = result.get("fp8", [])
    wrong += [r for r in fp8 if r["error"] > (WORST_ERROR if r["rows"] <= MOST_ROWS else WORST_FP8_ERROR)]
    for row in wrong[:8]:
        print("FAIL", row)
    print(
        f"{len(bench.rows)} measured, {len(wrong)} FAIL, worst error {max(r.get('error', 0) for r in bench.rows):.1e}"
    )
    return 1 if wrong else 0


def time_tuned(bench: Bench, result: dict[str, Any]) -> None:
    """Add to the result what is timed of the tuned model only: one-byte weights, and whether bits stay the same."""
    result["fp8"] = time_fp8(bench)
    result["other bits"] = same_bits(bench)
    print_folds(bench.rows, products_of(["tuned"]), ROWS["tuned"])
    print("a row has other bits than alone among:", ", ".join(result["other bits"]) or "never")
    for row in result["fp8"]:
        print(f"fp8 {row['product']:8} {row['rows']:3}  {row['tb_s']:.2f} TB/s of weights, error {row['error']:.1e}")


if __name__ == "__main__":
    sys.exit(main())
