"""Write the prompts that the target answers for its drafters to learn from; none of them is held out."""

import argparse
import gzip
import json
import random
from pathlib import Path

from corpus import HELDOUT, read_python
from identifiers import Lexicon
from pack import Packer, prompt_pairs
from policy import PromptPool
from tokenizers import Tokenizer

SHARES = {"policy_code": 0.2, "code": 0.3, "policy_prose": 0.08, "train_prose": 0.12, "prose": 0.15, "rewrites": 0.15}
SKIPPED = {"_vendor", "vendor", "externals", "tests", "testing", "test"}
"""Folders of a package: copies of others, and tests, of which the standard library has many."""


def read_package(folder: Path) -> list[str]:
    """Return the modules of a Python package, without those that are named like a held-out module."""
    heldout = {Path(path).stem for path in HELDOUT["code"]}
    files = [file for file in sorted(folder.rglob("*.py")) if not SKIPPED & {*file.relative_to(folder).parts}]
    return [text for file in files if file.stem not in heldout and (text := read_python(file))]


def package_prompts(folders: list[Path], count: int, tokenizer: Path, seed: int) -> list[list[int]]:
    """Return up to `count` beginnings of functions of some packages, each function once."""
    texts = [text for folder in folders for text in read_package(folder)]
    pool = Packer(Lexicon([], []), tokenizer, 2).pack(texts, prompt_pairs)
    chosen = random.Random(seed).sample(range(len(pool)), min(count, len(pool)))
    return [pool.prompt(index) for index in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that pack.py and rewrites.py wrote")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl.gz file")
    parser.add_argument("--count", type=int, default=48_000)
    parser.add_argument(
        "--packages", type=Path, nargs="*", default=[], help="folders of Python packages to prompt from"
    )
    parser.add_argument("--package-count", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=30)
    args = parser.parse_args()
    if missing := [str(folder) for folder in args.packages if not folder.is_dir()]:
        parser.error(f"--packages: no folder {', '.join(missing)}")
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    _, prompts = PromptPool(args.data, args.seed, SHARES).deal(args.count)
    prompts += package_prompts(args.packages, args.package_count, args.tokenizer, args.seed)
    texts = dict.fromkeys(tokenizer.decode(prompt, skip_special_tokens=False) for prompt in prompts)
    with gzip.open(args.out, "wt", compresslevel=9, encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"prompt": text}, ensure_ascii=False) + "\n")
    print(f"{len(texts):,} prompts")


if __name__ == "__main__":
    main()
