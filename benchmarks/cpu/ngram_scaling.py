"""Times prompt lookup by prompt length: ours, which indexes once, and vLLM's, which scans the sequence at every step.

    python benchmarks/cpu/ngram_scaling.py --vllm-python OTHER_VENV/bin/python    # without it: ours only

Both draft 5 tokens after each of 500 steps of 2 tokens, for one sequence of the Python standard library's text.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from provenance import provenance, write
from suffix_vs_arctic import standard_library

sys.path.append(str(Path(__file__).parents[1] / "h200"))

from record import command_line

PROMPTS = (200, 2_000, 10_000, 50_000)
RANGES = ((5, 5), (2, 4), (1, 32))
NUM_STEPS, K, MAX_MODEL_LEN = 500, 5, 100_000


def time_ours(text: list[int], size: int, shortest: int, longest: int) -> tuple[float, float, list]:
    import torch

    from draftwise.engine.attention.spans import Spans
    from draftwise.engine.proposers.ngram import NgramProposer
    from draftwise.engine.proposers.proposer import Confirmed

    options = {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}
    proposer = NgramProposer(**options, max_num_seqs=1, max_model_len=MAX_MODEL_LEN)

    def new(start: int, end: int) -> Confirmed:
        zero_B = torch.zeros(1, dtype=torch.long)
        return Confirmed(
            slots_B=zero_B,
            spans=Spans.of([start], [end - start], "cpu"),
            tokens_N=torch.tensor(text[start:end]),
            num_prompt_B=zero_B + size - 1,
            limits_B=zero_B + K,
            page_table_BP=zero_B.int().unsqueeze(1),
            temperature_B=zero_B.float(),
            seeds_B=zero_B,
        )

    steps = [new(0, size), *(new(at, at + 2) for at in range(size, size + 2 * NUM_STEPS, 2))]
    begin = time.perf_counter()
    proposer.propose(steps[0], K)
    admitted = time.perf_counter()
    drafts = [proposer.propose(step, K) for step in steps[1:]]
    seconds = time.perf_counter() - admitted
    return admitted - begin, seconds, [d.tokens_BK[0, : d.lengths_B[0]].tolist() for d in drafts]


def time_vllm(text: list[int], size: int, shortest: int, longest: int) -> tuple[float, float, list]:
    import numpy as np
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    spec = {"prompt_lookup_min": shortest, "prompt_lookup_max": longest, "num_speculative_tokens": K}
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(**spec),
        model_config=SimpleNamespace(max_model_len=MAX_MODEL_LEN),
        scheduler_config=SimpleNamespace(max_num_seqs=1024),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    proposer = NgramProposer(config)
    tokens, num_tokens, drafts = np.array([text], np.int32), np.array([size], np.int32), []
    begin = time.perf_counter()
    for _ in range(NUM_STEPS):
        num_tokens += 2
        drafts += proposer.propose(K, [[1]], num_tokens, tokens)
    return 0.0, time.perf_counter() - begin, drafts


def measure(side: str) -> list[dict]:
    run = {"ours": time_ours, "vllm": time_vllm}[side]
    text = standard_library(random.Random(1), max(PROMPTS) + 2 * NUM_STEPS)
    rows = []
    for size in PROMPTS:
        for shortest, longest in RANGES:
            admit_s, steps_s, drafts = min((run(text, size, shortest, longest) for _ in range(3)), key=sum_of_times)
            row = {"prompt": size, "lookup": [shortest, longest], "admit_ms": 1e3 * admit_s}
            rows.append(row | {"step_us": 1e6 * steps_s / NUM_STEPS, "drafts": drafts})
    return rows


def sum_of_times(run: tuple[float, float, list]) -> float:
    return run[0] + run[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-python", type=command_line, help="interpreter that can import vllm 0.32")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "ngram_scaling.json")
    parser.add_argument("--side", choices=("ours", "vllm"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print("\n" + json.dumps(measure(args.side)))
        return
    pythons = {"ours": sys.executable} | ({"vllm": args.vllm_python} if args.vllm_python else {})
    sides = {}
    for side, python in pythons.items():
        out = subprocess.run([python, __file__, "--side", side], check=True, capture_output=True, text=True).stdout
        sides[side] = json.loads(out.splitlines()[-1])
    rows = []
    for row in sides["ours"]:
        other = next(
            (r for r in sides.get("vllm", []) if (r["prompt"], r["lookup"]) == (row["prompt"], row["lookup"])), {}
        )
        same = {"same_drafts": other["drafts"] == row["drafts"], "vllm_step_us": other["step_us"]} if other else {}
        rows.append({key: row[key] for key in ("prompt", "lookup", "admit_ms", "step_us")} | same)
        print(rows[-1])
    result = {
        "what": "NgramProposer.propose: a prompt's admission (ms, once) and a step (us); vLLM's propose: a step (us)",
        "command": "python benchmarks/cpu/ngram_scaling.py --vllm-python PYTHON",
        **provenance("torch", "numpy"),
        "vllm": "0.32.0" if args.vllm_python else None,
        "rows": rows,
    }
    write(result, args.out)


if __name__ == "__main__":
    main()
