"""Greedy output of every method beside plain decoding, token for token, on the bundled model and workloads.

    python benchmarks/greedy_equality.py --device cpu --dtype bfloat16 float64 --out results.json

Where they differ, the gap between the two best log-probabilities at the first difference tells a numerical tie
(the gap is within what rounding does to a logit in that dtype) from an error. In float64 there must be none.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
from datetime import date
from pathlib import Path
from typing import Any

import torch

from draftwise import LLM, SamplingParams, __version__
from draftwise.engine.outputs import RequestOutput

METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "ngram_gpu": {"method": "ngram_gpu", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix", "num_speculative_tokens": 8},
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 4},
    "medusa": {"method": "medusa", "num_speculative_tokens": 4},
    "mlp_speculator": {"method": "mlp_speculator", "num_speculative_tokens": 4},
    "eagle": {"method": "eagle", "num_speculative_tokens": 4},
    "eagle3": {"method": "eagle3", "num_speculative_tokens": 5},
    "p_eagle": {"method": "eagle3", "num_speculative_tokens": 5, "parallel_drafting": True},
    "mtp": {"method": "mtp", "num_speculative_tokens": 3},
    "dflash": {"method": "dflash", "num_speculative_tokens": 8},
}
TIE_GAP = {"bfloat16": 0.25, "float16": 0.03, "float32": 1e-4, "float64": 0.0}
"""Nats: two logits of magnitude 16 that are two to four roundings of the dtype apart."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, default=Path("bundle"))
    parser.add_argument("--workloads", type=Path, default=Path("src/draftwise/measure/workloads"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32", "float64"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--prompts", type=int, default=8, help="of each workload")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    prompts = read_prompts(args.workloads, args.prompts)
    result = {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "versions": {"draftwise": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "device": torch.cuda.get_device_name() if args.device == "cuda" else platform.machine(),
        "prompts": len(prompts),
        "max_tokens": args.max_tokens,
        "dtypes": {
            dtype: check_dtype(
                args.bundle, prompts, args.methods, device=args.device, dtype=dtype, max_tokens=args.max_tokens
            )
            for dtype in args.dtype
        },
    }
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n")


def read_prompts(folder: Path, count: int) -> list[dict[str, Any]]:
    return [
        json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()[:count]
    ]


def check_dtype(
    bundle: Path, prompts: list[dict[str, Any]], methods: list[str], *, device: str, dtype: str, max_tokens: int
) -> dict[str, dict[str, Any]]:
    """Return, per method, how many outputs equal plain decoding and what the others' gaps are."""
    settings = {"device": device, "dtype": dtype}
    plain = generate(LLM(str(bundle / "target"), **settings), prompts, max_tokens)
    rows = {}
    for name in methods:
        spec = METHODS[name]
        drafter = {"model": str(bundle / name)} if (bundle / name).is_dir() else {}
        llm = LLM(str(bundle / "target"), speculative_config=spec | drafter, **settings)
        outputs = generate(llm, prompts, max_tokens)
        gaps = [gap for a, b in zip(plain, outputs, strict=True) if (gap := first_gap(a, b)) is not None]
        stats = llm.engine.stats().spec
        rows[name] = {
            "equal": len(prompts) - len(gaps),
            "ties": sum(gap <= TIE_GAP[dtype] for gap in gaps),
            "real_differences": sum(gap > TIE_GAP[dtype] for gap in gaps),
            "gaps": [round(gap, 6) for gap in gaps],
            "acceptance_length": stats.acceptance_length,
            "drafts": stats.num_drafts,
        }
        del llm
        gc.collect()
    return rows


def generate(llm: LLM, prompts: list[dict[str, Any]], max_tokens: int) -> list[RequestOutput]:
    tokenizer = llm.get_tokenizer()
    params = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=2)
    ids = [
        tokenizer.encode(p["prompt"])
        if "prompt" in p
        else tokenizer.encode(tokenizer.apply_chat_template(p["messages"]), False)
        for p in prompts
    ]
    return llm.generate([{"prompt_token_ids": row} for row in ids], params)


def first_gap(a: RequestOutput, b: RequestOutput) -> float | None:
    """Return how far apart the two best log-probabilities are where the outputs part; None if they do not."""
    ours, theirs = a.outputs[0], b.outputs[0]
    if ours.token_ids == theirs.token_ids:
        return None
    pairs = enumerate(zip(ours.token_ids, theirs.token_ids, strict=False))
    at = next((i for i, (x, y) in pairs if x != y), None)
    if at is None:
        return float("inf")
    best = sorted((entry.logprob for entry in (ours.logprobs or [])[at].values()), reverse=True)
    return best[0] - best[1]


if __name__ == "__main__":
    main()
