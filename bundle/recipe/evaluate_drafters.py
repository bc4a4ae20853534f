"""Measure every drafter of the bundle at temperature 0 on held-out prompts, through the engine; write drafters.json."""

import argparse
import json
from pathlib import Path
from typing import Any

from draftwise import LLM, SamplingParams
from draftwise.core import SpecStats
from draftwise.engine.engine_outputs import RequestOutput

WORKLOADS = ("code", "prose", "rewrite")
PARALLEL = {"parallel_drafting": True}
DRAFTERS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "medusa": ({"method": "medusa"}, (2, 4)),
    "mlp_speculator": ({"method": "mlp_speculator"}, (2, 4)),
    "draft_model": ({"method": "draft_model"}, (4,)),
    "eagle": ({"method": "eagle"}, (3, 5)),
    "eagle3": ({"method": "eagle3"}, (3, 5, 8)),
    "p_eagle": ({"method": "eagle3"} | PARALLEL, (3, 6)),
    "mtp": ({"method": "mtp"}, (1, 3)),
    "dflash": ({"method": "dflash"}, (3, 8)),
}
"""For each folder of the bundle its method, and the k that are measured."""


def read_prompts(llm: LLM, file: Path, count: int) -> tuple[list[dict[str, Any]], list[SamplingParams]]:
    rows = [json.loads(line) for line in file.read_text().splitlines()[:count]]
    tokenizer = llm.get_tokenizer()
    prompts = []
    for row in rows:
        text = tokenizer.apply_chat_template(row["messages"]) if "messages" in row else row["prompt"]
        prompts.append({"prompt_token_ids": tokenizer.encode(text, False)})
    return prompts, [SamplingParams(temperature=0, max_tokens=row["max_tokens"]) for row in rows]


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def summary(stats: SpecStats, same: int, count: int) -> dict[str, Any]:
    return {
        "acceptance_length": round(stats.acceptance_length or 1.0, 3),
        "accepted_per_pos": [round(rate, 3) for rate in stats.rate_per_pos],
        "drafts": stats.num_drafts,
        "outputs_equal": f"{same}/{count}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True, help="folder with target and drafters")
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=64, help="of each kind")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="+", choices=DRAFTERS, default=list(DRAFTERS))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    target = str(args.bundle / "target")
    settings: dict[str, Any] = {"dtype": args.dtype, "device": args.device, "max_model_len": 1024}
    settings["kv_cache_memory_bytes"] = 2 << 30  # several engines share a GPU
    plain = LLM(target, **settings)
    asked = {name: read_prompts(plain, args.heldout / f"{name}.jsonl", args.prompts) for name in WORKLOADS}
    expected = {name: tokens_of(plain.generate(*asked[name])) for name in WORKLOADS}
    rows = []
    for drafter in args.only:
        config, ks = DRAFTERS[drafter]
        for k in ks:
            spec = config | {"model": str(args.bundle / drafter), "num_speculative_tokens": k}
            llm = LLM(target, speculative_config=spec, **settings)
            for name in WORKLOADS:
                before = llm.engine.stats().spec
                outputs = tokens_of(llm.generate(*asked[name]))
                same = sum(map(list.__eq__, outputs, expected[name]))
                row = {"drafter": drafter, "k": k, "workload": name}
                row |= summary(llm.engine.stats().spec - before, same, len(outputs))
                rows.append(row)
                print(json.dumps(row), flush=True)
    report = {"temperature": 0, "dtype": args.dtype, "prompts_per_workload": args.prompts, "rows": rows}
    args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
