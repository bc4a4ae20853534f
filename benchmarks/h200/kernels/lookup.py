"""Prompt lookup on one GPU: does it draft what `ngram` drafts on the host, and how long does a step take?

    python benchmarks/h200/kernels/lookup.py --out lookup.json

Each time is that of one step inside a CUDA graph of many, each on slots of its own and with the L2 flushed before the
graph. `torch us` is the same step in plain torch, which is what other devices run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from draftwise.engine.attention.spans import Spans
from draftwise.engine.proposers.ngram import NgramProposer
from draftwise.engine.proposers.ngram_gpu import NgramGpuProposer
from draftwise.engine.proposers.proposer import Confirmed
from draftwise.engine.sampling.draft import Draft

K, WIDTH, NUM_CALLS = 5, 6, 64
FLUSH_BYTES = 256 * 2**20
CHECKS = ((5, 5, 300, 3), (2, 4, 300, 50), (1, 1, 4096, 2000), (1, 32, 9000, 2), (3, 3, 9000, 128_000))
"""Shortest and longest suffix, context and number of different tokens."""
TIMES = (
    *((num_seqs, length, 5, 5) for length in (512, 4096) for num_seqs in (1, 8, 64, 256)),
    *((num_seqs, 4096, 1, 32) for num_seqs in (1, 64)),
    *((num_seqs, 131_072, 5, 5) for num_seqs in (1, 64)),
)
"""Sequences, context, shortest and longest suffix."""


def confirm(rows: list[list[int]], starts: list[int], limits: list[int], device: str) -> Confirmed:
    """Tell new tokens of slots 0, 1, ...: with ragged rows to the host, with uniform ones to the device."""
    count, lengths, width = len(rows), [len(row) for row in rows], max(map(len, rows))
    spans, tokens = Spans.of(starts, lengths, device), [token for row in rows for token in row]
    if device != "cpu" and width <= WIDTH:
        spans = Spans(starts_B=spans.starts_B, lengths_B=spans.lengths_B, width=WIDTH, host=None)
        tokens = [token for row in rows for token in [*row, *[1] * (WIDTH - len(row))]]
    return Confirmed(
        slots_B=torch.arange(count, device=device),
        spans=spans,
        tokens_N=torch.tensor(tokens, device=device),
        num_prompt_B=torch.ones(count, dtype=torch.long, device=device),
        limits_B=torch.tensor(limits, device=device),
        page_table_BP=torch.zeros(count, 1, dtype=torch.int32, device=device),
        temperature_B=torch.zeros(count, device=device),
        seeds_B=torch.zeros(count, dtype=torch.long, device=device),
    )


def to_lists(draft: Draft) -> list[list[int]]:
    rows = zip(draft.tokens_BK.tolist(), draft.lengths_B.tolist(), strict=True)
    return [row[:length] for row, length in rows]


def check(shortest: int, longest: int, context: int, vocabulary: int) -> tuple[str, int]:
    """Grow eight sequences on both sides, some beyond their context; return the verdict and the tokens drafted."""
    rng, count, steps = random.Random(0), 8, 12
    options = {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}
    options |= {"max_num_seqs": count, "max_model_len": context}
    host, device = NgramProposer(**options), NgramGpuProposer(**options, device="cuda")
    phrase = [rng.randrange(vocabulary) for _ in range(37)]
    sizes = range(context + steps * WIDTH)
    texts = [[phrase[i % 37] if rng.random() < 0.8 else rng.choice(phrase) for i in sizes] for _ in range(count)]
    starts, drafted = [0] * count, 0
    ends = [context - steps * (3 if b else rng.randrange(WIDTH, context // steps)) for b in range(count)]
    for step in range(steps):
        k = K if step else 0
        rows = [text[start:end] for text, start, end in zip(texts, starts, ends, strict=True)]
        limits = [rng.randrange(K + 2) if step else 0 for _ in range(count)]
        told = to_lists(host.propose(confirm(rows, starts, limits, "cpu"), k))
        if to_lists(device.propose(confirm(rows, starts, limits, "cuda"), k)) != told:
            return f"FAIL at step {step}", drafted
        drafted += sum(map(len, told))
        starts, ends = ends, [end + rng.randrange(1, WIDTH + 1) for end in ends]
    return "PASS" if drafted else "FAIL nothing was drafted", drafted


def microseconds(calls: list[Callable[[], Draft]]) -> float:
    """Return the median time of a call in a graph of all of them."""
    flush, graph = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda"), torch.cuda.CUDAGraph()
    calls[0]()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    readings = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        readings.append(1e3 * begin.elapsed_time(end) / len(calls))
    return statistics.median(readings[1:])


def measure(num_seqs: int, length: int, shortest: int, longest: int) -> dict:
    """Time a step of sequences that have `length` tokens, random ones: each of them is compared once."""
    num_calls = min(NUM_CALLS, max(1, 2**31 // (4 * num_seqs * length)))
    options = {"prompt_lookup_min": shortest, "prompt_lookup_max": longest, "max_model_len": length + WIDTH + K}
    proposer = NgramGpuProposer(**options, max_num_seqs=num_seqs * num_calls, device="cuda")
    proposer._tokens_SL.random_(0, 128_256)
    rng = random.Random(0)
    rows = [[rng.randrange(128_256) for _ in range(3)] for _ in range(num_seqs)]
    new = confirm(rows, [length - 3] * num_seqs, [K] * num_seqs, "cuda")
    news = [replace(new, slots_B=new.slots_B + call * num_seqs) for call in range(num_calls)]
    fused = microseconds([lambda new=new: proposer.propose(new, K) for new in news])
    row = {"sequences": num_seqs, "context": length, "suffix": [shortest, longest], "us": round(fused, 2)}
    if num_seqs * length <= 2**20:
        plain = microseconds([lambda new=new: _in_torch(proposer, new) for new in news[:4]])
        row["torch_us"] = round(plain, 1)
    return row


def _in_torch(proposer: NgramGpuProposer, new: Confirmed) -> Draft:
    proposer._append(new)
    return proposer._draft(new, K)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the readings as JSON")
    options = parser.parse_args()
    checks, rows = [], []
    for case in CHECKS:
        try:
            verdict, drafted = check(*case)
        except Exception as error:  # the other cases are still of use
            verdict, drafted = f"FAIL {type(error).__name__}: {error}", 0
        checks.append({"case": case, "verdict": verdict, "tokens_drafted": drafted})
        print(f"suffix {case[0]}-{case[1]} context {case[2]} tokens {case[3]}: {verdict} ({drafted} drafted)")
    print(f"{'B':>4} {'context':>8} {'suffix':>7} {'us':>8} {'torch us':>9}")
    for num_seqs, length, shortest, longest in TIMES:
        try:
            row = measure(num_seqs, length, shortest, longest)
        except Exception as error:  # the other cases are still of use
            row = {"sequences": num_seqs, "context": length, "error": str(error)}
        rows.append(row)
        plain = row.get("torch_us", "-")
        print(f"{num_seqs:4} {length:8} {f'{shortest}-{longest}':>7} {row.get('us', 'FAIL'):>8} {plain:>9}", flush=True)
    if options.out is not None:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        options.out.write_text(json.dumps(about | {"checks": checks, "times": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
