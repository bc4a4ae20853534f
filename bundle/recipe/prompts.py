"""Write the held-out prompts: code and prose to continue, functions to rewrite."""

import argparse
import json
import random
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from edits import EDITS
from function import Function
from identifiers import build_lexicon
from rewrites import load_documents, plain_functions, user_message
from tokenizers import Tokenizer
from units import code_units, cut_code, cut_prose, prose_units

CONTINUE_TOKENS = 128
REWRITE_TOKENS = 320
MIN_PROMPT, MAX_PROMPT, MAX_REWRITE = 32, 450, 480
MIN_REST, MAX_REST = 24, 128
SEED = 20


def continuations(name: str, cuts: list[tuple[str, str]], tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """Yield the prompts whose length, and whose real continuation's length, are in bounds."""
    number = 0
    for prompt, rest in cuts:
        size, left = (len(tokenizer.encode(text).ids) for text in (prompt, rest))
        if MIN_PROMPT <= size <= MAX_PROMPT and MIN_REST <= left <= MAX_REST:
            yield {"id": f"{name}-{number:03}", "prompt": prompt, "max_tokens": CONTINUE_TOKENS}
            number += 1


def code_cuts(texts: list[str], seen: set[str], rng: random.Random) -> list[tuple[str, str]]:
    """Return the unseen functions cut before their body, in random order."""
    units = [unit for text in texts for unit in code_units(text, rng) if unit.function.strip() not in seen]
    rng.shuffle(units)
    return [cut_code(unit, 0) for unit in units]


def prose_cuts(texts: list[str], seen: set[str], rng: random.Random) -> list[tuple[str, str]]:
    """Return the unseen units of prose cut inside a sentence, where an empty answer would be wrong."""
    units = list(dict.fromkeys(unit for text in texts for unit in prose_units(text) if unit not in seen))
    rng.shuffle(units)
    cuts = [cut_prose(unit, rng) for unit in units]
    return [(prompt, rest) for prompt, rest in cuts if prompt[-1].isalnum()]


def rewrites(functions: list[str], lexicon: Any, tokenizer: Tokenizer, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Yield one request for each function that fits, going round the kinds of edit."""
    rng.shuffle(functions)
    edits, number = cycle(dict.fromkeys(EDITS)), 0
    waiting = next(edits)
    for source in functions:
        edit = waiting(Function(source), rng, lexicon)
        if edit is None or edit.expected == source:
            continue
        content = user_message(edit.instruction, source)
        if len(tokenizer.encode(content + edit.expected).ids) > MAX_REWRITE:
            continue
        yield {
            "id": f"rewrite-{number:03}",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": REWRITE_TOKENS,
            "check": {**edit.check, "expected": edit.expected},
        }
        waiting, number = next(edits), number + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--heldout", type=Path, required=True, help="folder for all prompts")
    parser.add_argument("--workloads", type=Path, required=True, help="folder for the first few of each")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--workload-count", type=int, default=64)
    args = parser.parse_args()
    tokenizer, rng = Tokenizer.from_file(str(args.tokenizer)), random.Random(SEED)
    code, prose = (load_documents(args.corpus, kind, "heldout") for kind in ("code", "prose"))
    train_code, train_prose = (load_documents(args.corpus, kind, "train", "policy") for kind in ("code", "prose"))
    seen_functions = {u.function.strip() for text in train_code for u in code_units(text, rng)}
    seen_prose = {unit for text in train_prose for unit in prose_units(text)}
    lexicon = build_lexicon(train_code, prose)
    functions = [source for source in plain_functions(code) if source not in seen_functions]
    made = {
        "code": continuations("code", code_cuts(code, seen_functions, rng), tokenizer),
        "prose": continuations("prose", prose_cuts(prose, seen_prose, rng), tokenizer),
        "rewrite": rewrites(functions, lexicon, tokenizer, rng),
    }
    for folder in (args.heldout, args.workloads):
        folder.mkdir(parents=True, exist_ok=True)
    for name, prompts in made.items():
        lines = [json.dumps(prompt) + "\n" for prompt in islice(prompts, args.count)]
        (args.heldout / f"{name}.jsonl").write_text("".join(lines))
        (args.workloads / f"{name}.jsonl").write_text("".join(lines[: args.workload_count]))
        print(f"{name:8} {len(lines)} held-out prompts, of which {args.workload_count} are the workload")


if __name__ == "__main__":
    main()
