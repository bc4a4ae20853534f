"""What a layer adds to the residual stream, with the addition and norm behind it: the product whole and in parts.

python benchmarks/h200/kernels/matmul_parts.py --seconds 60 --out matmul_parts.json
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from matmul_ways import graph_ms
from torch import Tensor

from draftwise.engine.kernels.cuda import layer
from draftwise.engine.kernels.cuda.matmul import find_config, run_matmul
from draftwise.engine.kernels.cuda.matmul_configs import Config

PRODUCTS = {
    "14b down": (5120, 13824),
    "14b o": (5120, 5120),
    "14b3 down": (5120, 17408),
    "32b down": (5120, 25600),
    "32b o": (5120, 8192),
    "8b down": (4096, 14336),
    "8b o": (4096, 4096),
    "granite down": (4096, 12800),
    "gemma down": (3840, 15360),
    "gemma o": (3840, 4096),
    "falcon down": (3072, 23040),
}
"""Qwen2.5-14B, Qwen3-14B (14b3), Qwen3-32B, Llama-3.1-8B, Granite-3.3-8B, Gemma-3-12B, Falcon3-7B: outputs, inputs."""
WAYS = ((2, 128, 7), (3, 128, 3), (3, 128, 4), (3, 64, 7), (4, 128, 3), (2, 128, 3), (3, 128, 2), (4, 64, 5))
"""Parts, columns of a tile, stages."""
WORST_ERROR = 5e-3
"""Relative, of what the norm returns; bfloat16 is rounded three times."""


def add_product(config: Config | None, x_RK: Tensor, weight_OK: Tensor, stream_RO: Tensor, norm_O: Tensor) -> Tensor:
    """Return the normed rows; without a config cuBLAS multiplies."""
    delta = F.linear(x_RK, weight_OK) if config is None else run_matmul(config, x_RK, weight_OK)
    return layer.add_norm(stream_RO, delta, norm_O, None, 1e-5)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    until, rows = time.monotonic() + args.seconds, list[dict[str, Any]]()
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    pool = torch.empty(900_000_000, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)
    for num_rows, (name, (num_out, num_in)) in product((64, 32, 48, 24), PRODUCTS.items()):
        if time.monotonic() > until:
            break
        size = num_out * num_in
        copies = min(len(pool) // size, max(2, -(-180_000_000 // (2 * size))))  # more than the L2 holds
        weights = [pool[i * size : (i + 1) * size].view(num_out, num_in) for i in range(copies)]
        x, stream, norm = (
            torch.randn(n, device="cuda").bfloat16() for n in ((num_rows, num_in), (num_rows, num_out), num_out)
        )
        tried = {"whole": find_config(x, weights[0], gated=False), "library": None}
        tried["rule"] = find_config(x, weights[0], gated=False, in_parts=True)
        for parts, columns, stages in WAYS:
            way = Config(outputs=64, columns=columns, fold=1, stages=stages, parts=parts)
            tried[f"p{parts} k{columns} st{stages}"] = way
        exact, us = add_product(None, x, weights[0], stream, norm).float(), dict[str, float]()
        for way_name, config in tried.items():
            error = (add_product(config, x, weights[0], stream, norm).float() - exact).norm() / exact.norm()
            assert error < WORST_ERROR, (name, way_name, float(error))
            calls = [partial(add_product, config, x, weights[i % copies], stream, norm) for i in range(16)]
            us[way_name] = round(1e3 * graph_ms(calls, 3), 1)
        rows.append({"rows": num_rows, "product": name, "us": us})
        args.out.write_text(json.dumps(about | {"rows": rows}))
        print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
