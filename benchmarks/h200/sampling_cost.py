"""What each sampling parameter costs: steps of a full batch with it, beside greedy ones, in turns.

    python benchmarks/h200/sampling_cost.py --scale 1.5b 8b --case plain eagle3-k3 --out OUT.json --commit COMMIT
    python benchmarks/h200/sampling_cost.py --scale 1.5b --vocabulary 32000 --out OUT.json --commit COMMIT

Every request of a batch has the parameter ("mixed": every second one). A ratio is the median over rounds of its
milliseconds a step over the greedy ones of the same round. Shapes, weights and clock are those of versus_vllm.py; a
small vocabulary takes the target's in place (for cases without a drafter). `--scale tiny --device cpu` rehearses it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import CASES
from clock import run, steady_row
from floors import kv_bytes_for
from record import about
from shapes import SCALES, write_folders
from side import Side

from draftwise import SamplingParams

GOAL = 1.05
_WARM_TOKENS = 24
FORMS: dict[str, Callable[[int], dict[str, Any]]] = {
    "greedy": lambda _: {},
    "temperature": lambda _: {"temperature": 0.8},
    "mixed": lambda i: {"temperature": 0.8 * (i % 2)},
    "seed": lambda i: {"temperature": 0.8, "seed": i},
    "top_k": lambda _: {"temperature": 0.8, "top_k": 50},
    "top_p": lambda _: {"temperature": 0.8, "top_p": 0.95},
    "min_p": lambda _: {"temperature": 0.8, "min_p": 0.05},
    "repetition_penalty": lambda _: {"repetition_penalty": 1.1},
    "presence_penalty": lambda _: {"presence_penalty": 0.5},
    "logit_bias": lambda i: {"logit_bias": {100 + i: 1.0}},
    "logprobs": lambda _: {"logprobs": 5},
    "mixed, seeds, penalties": lambda i: {"temperature": 0.8 * (i % 2), "seed": i, "repetition_penalty": 1.1},
}
"""Parameters of a batch's i-th request, beside length."""


def measure(side: Side, batch: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Return milliseconds a step by form, and the ratios to greedy."""
    assert side.frontend is not None
    found: dict[str, list[float]] = {form: [] for form in FORMS}
    for number in range(rounds + 1):
        for form, told in FORMS.items():
            length = tokens if number else _WARM_TOKENS  # the first round captures and compiles
            side.frontend.params = [_params(told(i)) for i in range(batch)]
            start, steps = run(side.frontend, side.new_prompts(batch), length)
            if number:
                found[form].append(steady_row(start, steps, batch)["ms_step"])
    ratios = {form: [a / b for a, b in zip(each, found["greedy"], strict=True)] for form, each in found.items()}
    return {
        "ms_step": {form: round(statistics.median(each), 3) for form, each in found.items()},
        "ratio": {form: round(statistics.median(each), 3) for form, each in ratios.items()},
        "ratios": {form: [round(one, 3) for one in each] for form, each in ratios.items()},
    }


def _params(told: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "ignore_eos": True, **told})


def main() -> None:
    """Parse the command line and measure, writing each row as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, nargs="+", default=["1.5b", "8b"])
    parser.add_argument("--case", choices=CASES, nargs="+", default=["plain"])
    parser.add_argument("--batch", type=int, nargs="+", default=[64])
    parser.add_argument("--vocabulary", type=int, help="the target's, in place of the scale's")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--folders", type=Path, default=Path("/dev/shm/draftwise-bench"))
    parser.add_argument("--out", type=Path, required=True)
    parser.set_defaults(vllm_python=None, acceptance="synthetic")  # what `about` tells of the others
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in args.scale:
        scale, folder = SCALES[name], args.folders / name
        if args.vocabulary:
            scale = replace(scale, target=scale.target | {"vocab_size": args.vocabulary})
            folder = args.folders / f"{name}-{args.vocabulary}"
        side = Side(scale, write_folders(folder, scale), device=args.device)
        for case in args.case:
            most = max(args.batch)
            side.open(case=case, max_num_seqs=most, kv_bytes=kv_bytes_for(CASES[case], scale, most, args.tokens))
            for batch in args.batch:
                row = measure(side, batch, args.tokens, args.repeats)
                told = {"scale": name, "vocabulary": scale.target["vocab_size"], "case": case, "batch": batch}
                rows.append(told | row)
                print(json.dumps(told | {"ratio": row["ratio"]}), flush=True)
                content = {"about": about(args), "goal": GOAL, "rows": rows}
                args.out.write_text(json.dumps(content, indent=1, default=str) + "\n")
        side.close()


if __name__ == "__main__":
    main()
