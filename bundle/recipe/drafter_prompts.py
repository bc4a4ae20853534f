"""Write the prompts that the target answers for its drafters to learn from; none of them is held out."""

import argparse
import gzip
import json
from pathlib import Path

from policy import PromptPool
from tokenizers import Tokenizer

SHARES = {"policy_code": 0.2, "code": 0.3, "policy_prose": 0.08, "train_prose": 0.12, "prose": 0.15, "rewrites": 0.15}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that pack.py and rewrites.py wrote")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl.gz file")
    parser.add_argument("--count", type=int, default=48_000)
    parser.add_argument("--seed", type=int, default=30)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    _, prompts = PromptPool(args.data, args.seed, SHARES).deal(args.count)
    texts = dict.fromkeys(tokenizer.decode(prompt, skip_special_tokens=False) for prompt in prompts)
    with gzip.open(args.out, "wt", compresslevel=9, encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"prompt": text}, ensure_ascii=False) + "\n")
    print(f"{len(texts):,} prompts")


if __name__ == "__main__":
    main()
