"""One-byte weights and keys on one GPU: every way that may be good, beside the library's product of quantized rows.

    python benchmarks/h200/kernels/fp8.py --seconds 60 --out fp8.json

Products are timed as they run in a model, see matmul.py; attention as attention.py does it, with keys in FP8.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton
from attention import FP8, Shape, auto_tiling, graph_us, make_batch
from matmul_ways import PRODUCTS, SHARED_BYTES, Product, graph_ms
from torch import Tensor

from draftwise.engine.kernels.cuda import matmul as products
from draftwise.engine.kernels.cuda.attention import Tiling
from draftwise.engine.kernels.cuda.layer import silu_mul
from draftwise.engine.kernels.cuda.matmul_configs import Config, Device, choose
from draftwise.engine.kernels.cuda.matmul_fp8 import linear_fp8

ROWS = (64, 32, 16)
MODELS = ("", "Qwen2.5-14B")
H200 = Device(num_sms=132, shared_bytes=SHARED_BYTES, hopper=True)
CASES = ((64, 1), (8, 1), (64, 4))
"""Sequences and tokens of each."""
CONTEXT = 640
LIBRARY = "library"


def products_timed() -> list[Product]:
    """Return the products of the models' layers."""
    every = [each for kind in PRODUCTS.values() for each in kind]
    return [each for each in every if each.name.rpartition(" ")[0] in MODELS and "head" not in each.name]


def configs(product: Product, num_rows: int) -> list[Config]:
    """Return the ways that are worth a try, the rule's first."""
    num_out = product.num_out // 2 if product.gated else product.num_out
    chosen = choose(num_rows, num_out, product.num_in, H200, gated=product.gated, weight_bytes=1)
    found = dict.fromkeys([chosen] if chosen else [])
    for fold, columns, resident in itertools.product((1, 2, 4), (128, 256), (1, 2, 3)):
        config = Config(outputs=64 // fold, columns=columns, fold=fold, stages=0, early=False)
        room = SHARED_BYTES // resident - 1536
        stages = min(7, room // config.stage_bytes(num_rows, gated=product.gated, weight_bytes=1))
        if stages >= 2 and product.num_in % (fold * columns) == 0 and fold * num_rows <= 128:
            found[replace(config, stages=stages)] = None
    return list(found)


def product_of(
    way: Config | str, product: Product, x_RK: Tensor, weight_OK: Tensor, scale_O: Tensor
) -> Callable[[], Tensor]:
    """Return the call of one way."""
    if isinstance(way, str):
        plain = functools.partial(linear_fp8, x_RK, weight_OK, scale_O, None)
        return (lambda: silu_mul(plain())) if product.gated else plain
    if product.gated:
        return functools.partial(products.run_gated, way, x_RK, weight_OK, scale_O)
    return functools.partial(products.run_matmul, way, x_RK, weight_OK, None, scale_O)


def tilings(shape: Shape, num_seqs: int, width: int) -> list[Tiling]:
    """Return the ways of attention that are worth a try, the rule's first."""
    share = shape.heads // shape.groups
    least = max(16, triton.next_power_of_2(width * share))
    found = {auto_tiling(shape, num_seqs, width): None}
    tries = itertools.product((least, 2 * least), (32, 64, 128), (2, 4, 8), (3,), (1, 2, 3))
    for rows, keys, warps, stages, each in tries:
        if keys // warps > 16 or keys // warps < 8 or (rows > least and keys < 128):
            continue
        splits = max(1, min(64, each * H200.num_sms // (num_seqs * shape.groups)))
        found[Tiling(rows=rows, keys=keys, warps=warps, stages=stages, splits=splits)] = None
    return list(found)


def compile_one(job: tuple[Any, ...]) -> None:
    """Compile one way by launching it on something small."""
    try:
        if isinstance(job[0], Product):
            product, num_rows, way = job
            small = replace(product, num_out=512)
            x_RK = torch.zeros(num_rows, product.num_in, dtype=torch.bfloat16, device="cuda")
            weight_OK = torch.zeros(512, product.num_in, device="cuda").to(torch.float8_e4m3fn)
            product_of(way, small, x_RK, weight_OK, torch.ones(512, device="cuda"))()
        else:
            num_seqs, width, tiling = job
            pool = torch.zeros(1 << 20, dtype=torch.bfloat16, device="cuda")
            make_batch(FP8, [0] * min(2, num_seqs), [width] * min(2, num_seqs), width, pool).call(tiling, causal=True)
        torch.cuda.synchronize()
    except Exception as error:  # what does not fit is left out again when it is timed
        print(job, type(error).__name__, str(error)[:80])


def jobs() -> Iterator[tuple[Any, ...]]:
    """Yield what to compile, each kernel once."""
    seen = set()
    for num_rows, product in itertools.product(ROWS, products_timed()):
        for way in configs(product, num_rows):
            if (key := (num_rows, product.num_in, product.gated, way)) not in seen:
                seen.add(key)
                yield product, num_rows, way
    for num_seqs, width in CASES:
        for tiling in tilings(FP8, num_seqs, width):
            key = (min(2, num_seqs), width, replace(tiling, splits=min(2, tiling.splits)))
            if key not in seen:
                seen.add(key)
                yield num_seqs, width, tiling


def time_products(deadline: float) -> Iterator[dict[str, Any]]:
    """Yield the microseconds of each way."""
    pool = torch.randn(900_000_000 // 4, device="cuda").to(torch.float8_e4m3fn).repeat(4)
    for num_rows, product in itertools.product(ROWS, products_timed()):
        size = product.num_out * product.num_in
        count = max(1, min(len(pool) // size, 8))
        weights = [pool[i * size : (i + 1) * size].view(product.num_out, product.num_in) for i in range(count)]
        scale_O = torch.full((product.num_out,), 0.02, device="cuda")
        x_RK = torch.randn(num_rows, product.num_in, device="cuda").bfloat16()
        for way in (LIBRARY, *configs(product, num_rows)):
            if time.monotonic() > deadline:
                return
            row = {"product": product.name, "rows": num_rows}
            row["way"] = way if isinstance(way, str) else f"o{way.outputs} k{way.columns} f{way.fold} s{way.stages}"
            try:
                calls = [product_of(way, product, x_RK, weight, scale_O) for weight in weights]
                row["us"] = round(graph_ms(calls * max(1, 16 // count), repeats=3) * 1e3, 2)
            except Exception as error:
                row["failed"] = f"{type(error).__name__}: {str(error)[:100]}"
            yield row


def time_attention(deadline: float) -> Iterator[dict[str, Any]]:
    """Yield the microseconds of each tiling."""
    pool = torch.empty(1 << 30, dtype=torch.bfloat16, device="cuda").normal_()
    for num_seqs, width in CASES:
        batch = make_batch(FP8, [CONTEXT - width] * num_seqs, [width] * num_seqs, width, pool)
        for tiling in tilings(FP8, num_seqs, width):
            if time.monotonic() > deadline:
                return
            row: dict[str, Any] = {"seqs": num_seqs, "width": width}
            row["way"] = f"r{tiling.rows} k{tiling.keys} w{tiling.warps} s{tiling.stages} x{tiling.splits}"
            try:
                call = functools.partial(batch.call, tiling, causal=True)
                row["us"] = round(graph_us(lambda layer, call=call: call(layer=layer), 20), 2)
            except Exception as error:
                row["failed"] = f"{type(error).__name__}: {str(error)[:100]}"
            yield row


def main() -> None:
    """Compile everything, then time it, best ways printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="deadline of the timing")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    began = time.monotonic()
    with ProcessPoolExecutor(args.workers, mp_context=multiprocessing.get_context("spawn")) as executor:
        list(executor.map(compile_one, jobs(), chunksize=2))
    print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
    deadline = time.monotonic() + args.seconds
    content: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    content |= {"triton": triton.__version__, "context": CONTEXT, "attention": [], "products": []}
    for kind, rows in (("attention", time_attention(deadline)), ("products", time_products(deadline))):
        for key, group in itertools.groupby(rows, key=lambda row: [row[name] for name in list(row)[:2]]):
            found = list(group)
            content[kind] += found
            args.out.write_text(json.dumps(content, indent=1) + "\n")
            timed = sorted((row for row in found if "us" in row), key=lambda row: row["us"])
            of_rule = next((row.get("us") for row in found if row["way"] != LIBRARY), None)
            of_library = next((row.get("us") for row in found if row["way"] == LIBRARY), None)
            best = ", ".join(f"{row['us']} {row['way']}" for row in timed[:4])
            print(key, best, "| rule", of_rule, "| library", of_library, flush=True)


if __name__ == "__main__":
    main()
