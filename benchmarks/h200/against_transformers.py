"""Log-probabilities of the engine beside transformers', on the bundled model: prompts, decoding and verification.

    python benchmarks/h200/against_transformers.py --out benchmarks/h200/results/against_transformers.json

The reference is transformers in float64. In a narrow dtype nobody is exact, so transformers' own error in that dtype
is measured, too; ours may be at most `MOST` times that (root mean square over all tokens). Prompt tokens come from
prefill, output tokens from decoding steps, plain and with drafts verified.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from traffic import read_texts

from draftwise import LLM, SamplingParams, __version__

sys.path.insert(0, str(Path(__file__).parents[1]))
from greedy_equality import add_bundle

MOST = 3.0
"""A wrong position, scale or layer gives errors a hundred times as large; another order of summing does not."""
DRAFTERS = {
    "plain": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "eagle3": {"method": "eagle3", "num_speculative_tokens": 5, "model": "eagle3"},
    "dflash": {"method": "dflash", "num_speculative_tokens": 8, "model": "dflash"},
}

Score = Callable[[list[int]], Tensor]
"""Token ids -> log-probability of each token but the first, float64."""


@torch.inference_mode()
def score_with_transformers(folder: Path, dtype: str, device: str) -> Score:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device).eval()

    def score(ids: list[int]) -> Tensor:
        with torch.inference_mode():
            logits = model(torch.tensor([ids], device=device)).logits[0, :-1].double()
        return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:], device=device)[:, None])[:, 0].cpu()

    return score


def compare(llm: LLM, texts: list[list[int]], exact: Score, same: Score) -> list[dict[str, Any]]:
    """Return the errors over prompt tokens and over output tokens, ours and transformers'."""
    params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in texts], params)
    errors: dict[str, tuple[list[Tensor], list[Tensor]]] = {"prompt": ([], []), "output": ([], [])}
    for ids, output in zip(texts, outputs, strict=True):
        tokens = output.outputs[0].token_ids
        whole = [*ids, *tokens]
        ours = [entry[token].logprob for token, entry in zip(ids[1:], (output.prompt_logprobs or [])[1:], strict=True)]
        ours += [entry[token].logprob for token, entry in zip(tokens, output.outputs[0].logprobs or [], strict=True)]
        right = exact(whole)
        split = len(ids) - 1
        for who, given in enumerate((torch.tensor(ours, dtype=torch.float64), same(whole))):
            errors["prompt"][who].append((given - right)[:split])
            errors["output"][who].append((given - right)[split:])
    return [
        {"tokens": what} | dict(zip(("ours", "transformers"), map(_rms, pair), strict=True))
        for what, pair in errors.items()
    ]


def _rms(errors: list[Tensor]) -> float:
    return float(torch.cat(errors).square().mean().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_bundle(parser)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--methods", nargs="+", choices=DRAFTERS, default=list(DRAFTERS))
    parser.add_argument("--prompts", type=int, default=4, help="of each workload")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    target, rows = args.bundle / "target", list[dict[str, Any]]()
    exact = score_with_transformers(target, "float64", args.device)
    for dtype in args.dtype:
        same = score_with_transformers(target, dtype, args.device)
        for method in args.methods:
            spec = DRAFTERS[method]
            if spec and "model" in spec:
                spec = spec | {"model": str(args.bundle / spec["model"])}
            llm = LLM(
                str(target), speculative_config=spec, device=args.device, dtype=dtype, num_gpu_blocks_override=1200
            )
            texts = read_texts(args.workloads, llm.get_tokenizer(), args.prompts)
            for row in compare(llm, texts, exact, same):
                rows.append({"dtype": dtype, "method": method} | row | {"ratio": row["ours"] / row["transformers"]})
                print(json.dumps(rows[-1]), flush=True)
            del llm
    result = {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "versions": {"draftwise": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
        "device": torch.cuda.get_device_name() if args.device == "cuda" else platform.machine(),
        "root_mean_square_errors": rows,
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(any(row["ratio"] > MOST for row in rows))


if __name__ == "__main__":
    main()
