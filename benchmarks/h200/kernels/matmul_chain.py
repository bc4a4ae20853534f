"""The chain of all matrix products of one step of Llama-3.1-8B, which is what counts in the end.

python benchmarks/h200/kernels/matmul_chain.py --rows 1 8 48 --out chain.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from matmul_ways import HEAD, LLAMA_8B, Compiler, Config, chosen, describe, graph_ms, run
from torch import Tensor

from draftwise.engine.kernels.cuda.launch import launch_next, pdl, wait


@triton.jit
def between_kernel(x_ptr, y_ptr, WIDTH: tl.constexpr, PDL: tl.constexpr):
    """What a norm, a rotation or attention costs at least: a row in, a row out."""
    launch_next(PDL)
    wait(PDL)
    column = tl.arange(0, WIDTH)
    tl.store(y_ptr + tl.program_id(0) * WIDTH + column, tl.load(x_ptr + tl.program_id(0) * WIDTH + column))


def between(x_RK: Tensor, y_RK: Tensor) -> None:
    between_kernel[(len(x_RK),)](x_RK, y_RK, WIDTH=x_RK.shape[1], PDL=pdl(), launch_pdl=pdl())


STEP = (*LLAMA_8B, HEAD)
COPY_TB_S = 4.27
Ways = dict[str, Config | None]


class Chain:
    """All products of one step of the 8B model."""

    def __init__(self) -> None:
        self._layers = [
            [torch.empty(p.num_out, p.num_in, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02) for p in LLAMA_8B]
            for _ in range(32)
        ]
        self._head = torch.empty(HEAD.num_out, HEAD.num_in, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)
        self.bytes = 32 * sum(p.weight_bytes for p in LLAMA_8B) + HEAD.weight_bytes

    def ms(self, ways: Ways, num_rows: int, *, gaps: bool) -> float:
        """Return the time of a step; `gaps`: with a small kernel wherever the model has some."""
        x = {k: torch.randn(num_rows, k, device="cuda").bfloat16() for k in (4096, 14336)}
        other = torch.empty_like(x[4096])

        def step() -> None:
            for layer in self._layers:
                for product, weight in zip(LLAMA_8B, layer, strict=True):
                    run(ways[product.name], product, x[product.num_in], weight)
                    for _ in range({"qkv": 2, "gate_up": 0}.get(product.name, 1) if gaps else 0):
                        between(x[4096], other)
            run(ways["head"], HEAD, x[4096], self._head)

        return graph_ms([step], 7)


def time_chain(best: dict[int, Ways], compiler: Compiler, *, variants: bool = False) -> list[dict[str, Any]]:
    """Time a step with cuBLAS, with what was best alone and with the package's choice, by number of rows.

    With and without gaps for other kernels; the package's choice also without dependent launches, and with
    `variants` also by Triton's pipelines and with cuBLAS for the products that are neither gated nor the head's.
    """
    cases: dict[int, dict[str, Ways]] = {}
    for num_rows, found in best.items():
        own: Ways = {product.name: chosen(product, num_rows) for product in STEP}
        named = {"cuBLAS": dict.fromkeys(own), "best alone": found, "chosen": own}
        if variants:
            named |= {"chosen, copies": changed(own, early=False)}
            named |= {"chosen, pointers": changed(own, early=False, copies=False)}
            named |= {"cuBLAS for the smaller": own | {"qkv": None, "o": None, "down": None}}
        cases[num_rows] = {name: ways for name, ways in named.items() if ways}
    jobs = [(ways[p.name], p, r) for r, named in cases.items() for ways in named.values() for p in STEP]
    compiler.run((config, product, num_rows) for config, product, num_rows in jobs if config is not None)
    chain, results = Chain(), []
    for num_rows, named in cases.items():
        for name, ways in named.items():
            for early in (True, False) if name == "chosen" else (True,):
                os.environ["DRAFTWISE_PDL"] = str(int(early))
                pdl.cache_clear()
                row: dict[str, Any] = {"rows": num_rows, "ways": name if early else f"{name}, late launches"}
                row |= {"configs": {product: describe(way) for product, way in ways.items()}}
                row |= {"ms": chain.ms(ways, num_rows, gaps=False), "gaps_ms": chain.ms(ways, num_rows, gaps=True)}
                results.append(row)
    os.environ.pop("DRAFTWISE_PDL")
    print(f"floor of the chain {chain.bytes / COPY_TB_S / 1e9:.3f} ms")
    return results


def changed(ways: Ways, **changes: bool) -> Ways:
    return {name: way and dataclasses.replace(way, **changes) for name, way in ways.items()}


def print_chain(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(f"chain {row['rows']:2} {row['ways']:24} {row['ms']:.3f} ms, with gaps {row['gaps_ms']:.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 32, 40, 48, 64])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=16, help="processes that compile")
    args = parser.parse_args()
    compiler = Compiler(args.workers)
    rows = time_chain({num_rows: {} for num_rows in args.rows}, compiler, variants=True)
    compiler.close()
    args.out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "chain": rows}), encoding="utf-8")
    print_chain(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
