"""Measure the bundle at temperature 0 on held-out prompts and write evaluation.json."""

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from checks import judge
from generate import ended, generate
from models import load_model
from transformers import AutoTokenizer, LlamaForCausalLM

from draftwise.deciding.validity.output_checks import distinct_ngram_ratio, find_loop

WORKLOADS = ("code", "prose", "rewrite")
DRAFT_TOKENS = 4
MAX_LOOP_SHARE = 0.05
MIN_EDIT_SHARE = 0.80


def read_prompts(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def encode(tokenizer: Any, prompt: dict[str, Any]) -> list[int]:
    if "messages" in prompt:
        text = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True, tokenize=False)
    else:
        text = prompt["prompt"]
    return tokenizer.encode(text, add_special_tokens=False)


@torch.no_grad()
def drafted_right(draft: LlamaForCausalLM, prompt: list[int], output: list[int]) -> list[bool]:
    """Return for each output token whether the draft model would have proposed it."""
    logits = draft(torch.tensor([prompt + output], device=draft.device)).logits[0, len(prompt) - 1 : -1]
    return [made == token for made, token in zip(logits.argmax(-1).tolist(), output, strict=True)]


def count_steps(right: list[bool], draft_tokens: int) -> int:
    """Return the target passes that greedy speculation needs to emit len(right) tokens."""
    position = steps = 0
    while position < len(right):
        accepted = 0
        while accepted < draft_tokens and position + accepted < len(right) and right[position + accepted]:
            accepted += 1
        position += accepted + 1
        steps += 1
    return steps


def measure_outputs(outputs: list[list[int]]) -> dict[str, float]:
    bodies = [output[:-1] if ended(output) else output for output in outputs]
    return {
        "prompts": len(outputs),
        "loop_share": mean(find_loop(body) is not None for body in bodies),
        "distinct_4gram_ratio": mean(map(distinct_ngram_ratio, bodies)),
        "ended_share": mean(map(ended, outputs)),
        "mean_output_tokens": mean(map(len, outputs)),
    }


def measure_rewrites(texts: list[str], prompts: list[dict[str, Any]]) -> dict[str, Any]:
    verdicts = [judge(text, prompt["check"]) for text, prompt in zip(texts, prompts, strict=True)]
    kinds = sorted({prompt["check"]["kind"] for prompt in prompts})
    by_kind = {
        kind: mean(v["contains_edit"] for v, p in zip(verdicts, prompts, strict=True) if p["check"]["kind"] == kind)
        for kind in kinds
    }
    shares = {f"{name}_share": mean(verdict[name] for verdict in verdicts) for name in verdicts[0]}
    return {**shares, "contains_edit_share_by_kind": by_kind}


def measure_draft(rights: list[list[bool]]) -> dict[str, float]:
    tokens = sum(map(len, rights))
    return {
        "draft_agreement": sum(map(sum, rights)) / tokens,
        f"mean_emitted_at_{DRAFT_TOKENS}": tokens / sum(count_steps(right, DRAFT_TOKENS) for right in rights),
    }


def meets_thresholds(results: dict[str, dict[str, Any]]) -> bool:
    loops = all(result["loop_share"] < MAX_LOOP_SHARE for result in results.values())
    return loops and results["rewrite"]["contains_edit_share"] >= MIN_EDIT_SHARE


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True, help="folder with target and draft_model")
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--workload-count", type=int, default=64, help="first prompts, which are the workload files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=Path, help="also write every prompt and output here")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.bundle / "target")
    target = load_model(args.bundle / "target", args.device, torch.bfloat16).eval()
    has_draft = (args.bundle / "draft_model").exists()
    draft = load_model(args.bundle / "draft_model", args.device, torch.bfloat16).eval() if has_draft else None
    groups: dict[str, dict[str, dict[str, Any]]] = {"heldout": {}, "workload": {}}
    samples = []
    for name in WORKLOADS:
        prompts = read_prompts(args.heldout / f"{name}.jsonl")
        ids = [encode(tokenizer, prompt) for prompt in prompts]
        outputs = generate(target, ids, prompts[0]["max_tokens"], batch_size=256)
        texts = [tokenizer.decode(output, skip_special_tokens=True) for output in outputs]
        rights = [drafted_right(draft, i, o) for i, o in zip(ids, outputs, strict=True)] if draft else []
        for group, end in (("heldout", None), ("workload", args.workload_count)):
            result = measure_outputs(outputs[:end])
            if name == "rewrite":
                result |= measure_rewrites(texts[:end], prompts[:end])
            if rights:
                result |= measure_draft(rights[:end])
            groups[group][name] = result
        samples += [{**p, "output": t, "ended": ended(o)} for p, t, o in zip(prompts, texts, outputs, strict=True)]
    report = {
        "temperature": 0,
        "dtype": "bfloat16",
        "thresholds": {"loop_share_below": MAX_LOOP_SHARE, "contains_edit_share_at_least": MIN_EDIT_SHARE},
        "meets_thresholds": all(meets_thresholds(results) for results in groups.values()),
        **groups,
    }
    args.out.write_text(json.dumps(rounded(report), indent=2) + "\n")
    print(json.dumps(rounded(report), indent=1))
    if args.samples:
        args.samples.write_text("".join(json.dumps(sample) + "\n" for sample in samples))


if __name__ == "__main__":
    main()
