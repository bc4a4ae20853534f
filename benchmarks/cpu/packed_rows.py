"""Milliseconds of a pass over 1 to 9 rows with packed weights, and what the cost model assumes of it uncalibrated.

    python benchmarks/cpu/packed_rows.py --model FILE.gguf --out benchmarks/cpu/results/packed_rows.json

Rows are those of one sequence, as in verifying k drafts. With one thread, milliseconds are processor time, so that
other programs on the machine matter less; with more they are wall time. Each is the median of many passes, by turns
over the numbers of rows. `prior` is what the cost model says of this file before any calibration.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from provenance import provenance, write

from draftwise.checkpoints.gguf_files import read_gguf
from draftwise.core import ModelShape
from draftwise.engine.attention.pass_rows import Spans, plan_attention
from draftwise.engine.memory.kv import PagedKV
from draftwise.engine.models import load_model
from draftwise.engine.models.gguf_unpacking import checkpoint_of
from draftwise.plan.cost.machine import DecodeBatch, DecodeStep, Machine, cpu_prior
from draftwise.plan.cost.work import Work

ROWS = (1, 2, 3, 4, 5, 8, 9)


@torch.inference_mode()
def measure(model: Any, *, threads: int, context: int, rounds: int) -> dict[int, float]:
    """Return milliseconds by rows."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    pages = -(-(context + max(ROWS)) // 16)
    kv = PagedKV(model.shape, num_pages=pages, block_size=16, dtype=model.dtype, device="cpu")
    table = torch.arange(pages + 1, dtype=torch.int32).unsqueeze(0)

    def run(start: int, count: int) -> None:
        plan = plan_attention(Spans.of([start], [count], "cpu"), table, block_size=16)
        hidden, _ = model(torch.arange(100, 100 + count), torch.arange(start, start + count), kv, plan)
        model.logits(hidden)

    run(0, context)
    spent: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(rounds):
        for rows in ROWS:
            began = clock()
            run(context, rows)
            spent[rows].append(1e3 * (clock() - began))
    return {rows: round(statistics.median(each), 3) for rows, each in spent.items()}


def foresee(model: str, weights: int, size: int, context: int) -> dict[int, float]:
    """Return the same of the uncalibrated cost model."""
    config = json.loads((Path(checkpoint_of(model)) / "config.json").read_text())
    work = Work(dense_bytes=size, flops_per_row=2 * weights, weights=weights)
    machine = Machine(constants=cpu_prior().constants, work=work, shape=ModelShape.from_hf_config(config))
    batch = DecodeBatch(sequences=1, context=context)
    return {rows: round(1e3 * machine.seconds(DecodeStep(batch=batch, verified=rows - 1)), 3) for rows in ROWS}


def relate(found: dict[int, float]) -> dict[int, float]:
    """Return how many passes over one row each takes."""
    return {rows: round(ms / found[1], 2) for rows, ms in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    size, weights = (
        Path(args.model).stat().st_size,
        sum(math.prod(each.shape) for each in read_gguf(args.model).tensors.values()),
    )
    prior = foresee(args.model, weights, size, args.context)
    model = load_model(checkpoint_of(args.model), device="cpu")
    found = {n: measure(model, threads=n, context=args.context, rounds=args.rounds) for n in args.threads}
    result = provenance("torch") | {
        "settings": {"model": Path(args.model).name, "model_bytes": size, "weights": weights, "context": args.context},
        "ms": {"threads": found, "prior": prior},
        "over_one_row": {"threads": {n: relate(each) for n, each in found.items()}, "prior": relate(prior)},
    }
    print(json.dumps(result, indent=1))
    write(result, args.out)


if __name__ == "__main__":
    main()
