"""Let the model write requests itself, sampled in the user's turn (Magpie, arXiv 2406.08464)."""

import argparse
import gzip
import json
from pathlib import Path

from draftwise import LLM, SamplingParams

SHORTEST, LONGEST = 16, 96
"""Characters of a request, and its tokens."""
HELD_OUT = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--count", type=int, default=24000, help="turns that are sampled; equal ones count once")
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl.gz file of requests to learn from")
    parser.add_argument(
        "--heldout", type=Path, required=True, help="a .jsonl file of requests to report on; one that is there is kept"
    )
    args = parser.parse_args()
    settings = {"max_model_len": 256, "max_num_seqs": 256, "enable_prefix_caching": False}
    llm = LLM(args.target, seed=args.seed, gpu_memory_utilization=0.3, **settings)  # others share the GPU
    tokenizer = llm.get_tokenizer()
    empty = tokenizer.apply_chat_template([{"role": "user", "content": ""}], add_generation_prompt=False)
    start = tokenizer.encode(empty[: empty.rindex("<|im_end|>")], False)
    params = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=LONGEST)
    outputs = llm.generate([{"prompt_token_ids": start}] * args.count, params)
    whole = [each.outputs[0] for each in outputs if each.outputs[0].finish_reason == "stop"]
    texts = list(dict.fromkeys(each.text.strip() for each in whole))
    kept = [{"role": "user", "content": text} for text in texts if len(text) >= SHORTEST and text.isprintable()]
    if not args.heldout.exists():
        first = enumerate(kept[:HELD_OUT])
        rows = [{"id": f"chat-{i:03}", "messages": [each], "max_tokens": 256} for i, each in first]
        args.heldout.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held_out = {json.loads(row)["messages"][0]["content"] for row in args.heldout.read_text().splitlines()}
    learnt = [each for each in kept if each["content"] not in held_out]
    written = args.out.with_name(args.out.name + ".part")
    with gzip.open(written, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps({"messages": [each]}) + "\n" for each in learnt)
    written.rename(args.out)
    print(f"chat: {len(learnt)} requests to learn from, {len(held_out)} held out, of {args.count} turns")


if __name__ == "__main__":
    main()
