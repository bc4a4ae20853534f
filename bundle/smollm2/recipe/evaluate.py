"""Measure the drafters on held-out requests of each kind, by temperature, through the engine; write drafters.json."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "recipe"))

from evaluate_drafters import read_prompts, summary, tokens_of

from draftwise import LLM, SamplingParams

DRAFTERS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "eagle3": ({"method": "eagle3"}, (1, 2, 3, 5, 7)),
    "p_eagle": ({"method": "eagle3", "parallel_drafting": True}, (3, 6)),
    "mtp": ({"method": "mtp"}, (1, 3)),
    "dflash": ({"method": "dflash"}, (3, 7)),
    "draft_model": ({"method": "draft_model"}, (3, 5)),
    "ngram": ({"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}, (5,)),
    "suffix": ({"method": "suffix"}, (8,)),
}
"""For each drafter its method, and the k that are measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafters", type=Path, required=True, help="folder with a folder for each")
    parser.add_argument("--heldout", type=Path, required=True, help="folder of .jsonl files, one of each kind")
    parser.add_argument("--prompts", type=int, default=100, help="of each kind")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="+", choices=DRAFTERS, default=list(DRAFTERS))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    settings: dict[str, Any] = {"dtype": args.dtype, "device": args.device, "max_model_len": 1024, "max_num_seqs": 128}
    settings["kv_cache_memory_bytes"] = 2 << 30  # several engines share a GPU
    files = {file.stem: file for file in sorted(args.heldout.glob("*.jsonl"))}
    plain = LLM(args.target, **settings)
    asked = {name: read_prompts(plain, file, args.prompts) for name, file in files.items()}
    expected = {name: tokens_of(plain.generate(*each)) for name, each in asked.items()}
    rows = []
    for drafter in args.only:
        config, ks = DRAFTERS[drafter]
        own = {"model": str(args.drafters / drafter)} if (args.drafters / drafter).is_dir() else {}
        for k in ks:
            llm = LLM(args.target, speculative_config=config | own | {"num_speculative_tokens": k}, **settings)
            for name, (prompts, params) in asked.items():
                for temperature in args.temperatures:
                    drawn = [SamplingParams(temperature=temperature, max_tokens=each.max_tokens) for each in params]
                    before = llm.engine.stats()
                    outputs = tokens_of(llm.generate(prompts, drawn))
                    after = llm.engine.stats()
                    stats, tokens = after.spec - before.spec, after.generation_tokens - before.generation_tokens
                    same = sum(map(list.__eq__, outputs, expected[name]))
                    row = {"drafter": drafter, "k": k, "kind": name, "temperature": temperature}
                    row |= {"tokens_per_step": round(tokens / (tokens - stats.num_accepted_tokens), 3)}
                    row |= summary(stats, same, len(outputs))
                    if temperature > 0:
                        row.pop("outputs_equal")
                    rows.append(row)
                    print(json.dumps(row), flush=True)
            del llm
    report = {"dtype": args.dtype, "prompts_per_kind": args.prompts, "rows": rows}
    args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
