"""How far what the rules choose is from the best that was measured; needs no GPU.

    python benchmarks/h200/kernels/regret.py
    python benchmarks/h200/kernels/regret.py --pack matmul.json results/kernels/matmul_other.json

Regret is time over the best measured time, cuBLAS included: of products summed over a model's layer, of attention over
the cases of a context. The second form shortens what `matmul.py` or `attention.py --long` wrote, every way kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attention import FP8, H200, OTHER_SHAPES, SHAPES, auto_tiling
from matmul_ways import PRODUCTS, Product

from draftwise.engine.kernels.cuda.matmul_configs import Config, choose
from draftwise.engine.kernels.cuda.paged_attention import Tiling

RESULTS = Path(__file__).parent.parent / "results" / "kernels"
LIBRARY = "cuBLAS"
Times = dict[str, float]
"""Microseconds of the ways that were tried of one product at one number of rows, by name."""


def name_of(way: Config | Mapping[str, Any] | None, product: Product) -> str:
    """Return a way's name, the same for two that come to the same; None: cuBLAS."""
    if way is None:
        return LIBRARY
    config = way if isinstance(way, Config) else Config(**way)
    stages = min(config.stages, product.num_in // config.fold // config.columns)
    kind = "" if config.early else " late" if config.copies else " pointers"
    return f"o{config.outputs} k{config.columns} f{config.fold} s{stages}{kind}"


def size_of(product: Product) -> str:
    return f"{product.num_out} x {product.num_in}{' gated' if product.gated else ''}"


def pack_products(measured: dict[str, Any]) -> dict[str, Any]:
    """Return times by size of product, rows and way."""
    named = {product.name: product for products in PRODUCTS.values() for product in products}
    us: dict[str, dict[int, Times]] = defaultdict(lambda: defaultdict(dict))
    for row in measured["rows"]:
        if "ms" in row:
            product, way = named[row["product"]], None if row["way"] == LIBRARY else row["way"]
            us[size_of(product)][row["rows"]][name_of(way, product)] = round(row["ms"] * 1e3, 2)
    return {key: measured[key] for key in ("device", "torch", "triton")} | {"us": us}


def pack_attention(measured: dict[str, Any]) -> dict[str, Any]:
    """Return the same with times rounded to 10 ns."""
    for case in measured["decode"]:
        case["floor_us"] = round(case["floor_us"], 2)
        for tiling in case["tilings"]:
            tiling["us"] = round(tiling["us"], 2)
    return measured


def write(packed: dict[str, Any], path: Path) -> None:
    """Write it with a line for each product, or each case."""
    lines = []
    for key, value in packed.items():
        if key == "us":
            rows = ",\n".join(f"  {json.dumps(size)}: {json.dumps(times)}" for size, times in value.items())
            lines.append(f' "us": {{\n{rows}\n }}')
        elif isinstance(value, list):
            rows = ",\n".join(f"  {json.dumps(each)}" for each in value)
            lines.append(f" {json.dumps(key)}: [\n{rows}\n ]" if value else f" {json.dumps(key)}: []")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def find_time(times: Times, config: Config | None, product: Product) -> tuple[float | None, str]:
    """Return the microseconds of a way and a mark: "~" where it was timed with another number of stages only."""
    name = name_of(config, product)
    if name in times or config is None:
        return times.get(name), ""
    alike = [
        other
        for stages in range(config.stages, 1, -1)
        if (other := name_of(replace(config, stages=stages), product)) in times
    ]
    return (times[alike[0]], "~") if alike else (None, "?")


def silu_us(num_rows: int) -> float:
    """Return what the activation costs behind cuBLAS, read off layer.json at 14,336 columns."""
    return 0.8 + num_rows / 64


def print_products(us: dict[str, dict[str, Times]], num_rows: list[int], kinds: list[str]) -> None:
    """Print the regret of each model's layer, and of each kind of model."""
    for kind in kinds:
        layers: dict[str, list[Product]] = defaultdict(list)
        for product in PRODUCTS[kind]:
            if not product.name.endswith("head"):
                layers[product.name.rpartition(" ")[0]].append(product)
        of_kind: dict[int, list[float]] = defaultdict(list)
        print(f"\nproducts of {kind} models, regret of a layer at", *num_rows, "rows")
        for model, products in layers.items():
            cells = []
            for rows in num_rows:
                taken, best, marks = 0.0, 0.0, ""
                for product in products:
                    times = dict(us[size_of(product)][str(rows)])
                    if product.gated:
                        times[LIBRARY] += silu_us(rows)
                    num_out = product.num_out // 2 if product.gated else product.num_out
                    config = choose(rows, num_out, product.num_in, H200, gated=product.gated)
                    time, mark = find_time(times, config, product)
                    marks += mark
                    if time is not None:
                        taken, best = taken + time, best + min(times.values())
                cells.append(f"{taken / best:.3f}{marks:2}")
                of_kind[rows].append(taken / best)
            print(f"{model:18}", "  ".join(cells))
        print(f"{'mean':18}", "    ".join(f"{statistics.mean(of_kind[rows]):.3f}" for rows in num_rows))
        print(f"{'most':18}", "    ".join(f"{max(of_kind[rows]):.3f}" for rows in num_rows))


def print_attention(cases: list[dict[str, Any]]) -> None:
    """Print the regret over each context, of plain decoding and of several tokens a sequence."""
    shapes = {shape.name: shape for shape in (*SHAPES.values(), *OTHER_SHAPES, FP8)}
    groups: dict[tuple[int, bool], list[tuple[float, float]]] = defaultdict(list)
    unmeasured = 0
    for case in cases:
        times = {
            Tiling(**{key: each[key] for key in Tiling.__slots__ if key in each}): each["us"]
            for each in case["tilings"]
            if isinstance(each["us"], float)
        }
        chosen = times.get(auto_tiling(shapes[case["shape"]], case["seqs"], case["width"]))
        if chosen is None:
            unmeasured += 1
        else:
            groups[case["context"], case["width"] > 1].append((chosen, min(times.values())))
    print("\nattention, regret by context: one token a sequence | several")
    for context in sorted({context for context, _ in groups}):
        line = []
        for several in (False, True):
            pairs = groups[context, several]
            taken, best = (sum(times) for times in zip(*pairs, strict=True)) if pairs else (1.0, 1.0)
            most = max((a / b for a, b in pairs), default=1.0)
            line.append(f"{taken / best:.3f} most {most:.3f} of {len(pairs):2}")
        print(f"{context:6}", " | ".join(line))
    print(f"{unmeasured} of {len(cases)} cases: what the rule takes was not measured")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", nargs=2, type=Path, metavar=("MEASURED", "OUT"))
    args = parser.parse_args()
    if args.pack:
        if not args.pack[0].is_file():
            parser.error(f"there is no {args.pack[0]}")
        measured = json.loads(args.pack[0].read_text(encoding="utf-8"))
        write(pack_products(measured) if "rows" in measured else pack_attention(measured), args.pack[1])
        return
    us = json.loads((RESULTS / "matmul_other.json").read_text(encoding="utf-8"))["us"]
    print_products(us, [1, 8, 16, 32, 48, 64], ["seen", "unseen"])
    cases = [
        case
        for name in ("attention.json", "attention_long.json")
        for case in json.loads((RESULTS / name).read_text(encoding="utf-8"))["decode"]
    ]
    print_attention(cases)


if __name__ == "__main__":
    main()
