"""Make instruction-and-answer samples by editing functions of the corpus in many ways."""

import argparse
import json
import multiprocessing
import random
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from checks import judge, parse_function
from edits import EDITS
from function import Edit, Function
from identifiers import Lexicon, build_lexicon, substitute
from ragged import Ragged
from tokenizer import ASSISTANT, END, USER
from tokenizers import Tokenizer
from units import code_units

MIN_CHARS, MAX_CHARS = 60, 900
MAX_TOKENS = 512
PREFACES = ["", "", "", "Rewrite this function. ", "Edit the function below. "]
CHUNK = 2000


def load_documents(corpus: Path, kind: str, *splits: str) -> list[str]:
    """Return the texts of one kind of document in the given splits."""
    with corpus.open() as file:
        documents = (json.loads(line) for line in file)
        return [d["text"] for d in documents if d["kind"] == kind and d["split"] in splits]


def plain_functions(texts: list[str]) -> list[str]:
    """Return the distinct functions of some modules, at column 0, that suit a rewrite."""
    rng = random.Random(0)
    found: dict[str, None] = {}
    for text in texts:
        for unit in code_units(text, rng):
            source = textwrap.dedent(unit.function)
            fits = MIN_CHARS <= len(source) <= MAX_CHARS and source.isascii() and "\t" not in source
            if fits and parse_function(source) is not None:
                found[source] = None
    return list(found)


def make_edit(source: str, rng: random.Random, lexicon: Lexicon) -> Edit | None:
    """Return a random edit that applies to `source` and passes its own check."""
    function = Function(source)
    for edit in rng.sample(EDITS, 4):
        made = edit(function, rng, lexicon)
        if made is None or made.expected == source:
            continue
        verdict = judge(made.expected, {**made.check, "expected": made.expected})
        if verdict["contains_edit"] and verdict["exact"]:
            return made
    return None


def user_message(instruction: str, source: str) -> str:
    return f"{instruction}\n\n{source}"


def make_samples(seed: int, functions: list[str], lexicon: Lexicon, count: int) -> Iterator[tuple[str, str]]:
    """Yield (prompt, answer) texts in the chat format, most with substituted identifiers."""
    rng = random.Random(seed)
    for _ in range(count):
        source = rng.choice(functions)
        try:
            if rng.random() < 0.75:
                source = substitute(source, rng, lexicon, rng.choice([0.3, 0.7, 1.0]))
            made = make_edit(source, rng, lexicon)
        except (SyntaxError, ValueError):
            continue
        if made is not None:
            ask = rng.choice(PREFACES) + made.instruction
            yield f"{USER}{user_message(ask, source)}{END}{ASSISTANT}", f"{made.expected}{END}"


def encode_chunk(seed: int, functions: list[str], lexicon: Lexicon, tokenizer_file: Path) -> Ragged:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    samples = list(make_samples(seed, functions, lexicon, CHUNK))
    prompts = tokenizer.encode_batch_fast([prompt for prompt, _ in samples])
    answers = tokenizer.encode_batch_fast([answer for _, answer in samples])
    pairs = ((p.ids + a.ids, len(p.ids)) for p, a in zip(prompts, answers, strict=True))
    return Ragged.from_sequences((ids, start) for ids, start in pairs if len(ids) <= MAX_TOKENS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--chunks", type=int, default=250, help=f"of {CHUNK} attempts each")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", default="train", help="which documents' functions to edit")
    args = parser.parse_args()
    code = load_documents(args.corpus, "code", "train")
    functions = plain_functions(load_documents(args.corpus, "code", args.split))
    lexicon = build_lexicon(code, load_documents(args.corpus, "prose", "train"))
    seeds = range(args.seed, args.seed + args.chunks)
    work = partial(encode_chunk, functions=functions, lexicon=lexicon, tokenizer_file=args.tokenizer)
    with multiprocessing.Pool(args.workers) as pool:
        samples = Ragged.join(pool.map(work, seeds, chunksize=1))
    samples.save(args.out)
    print(f"{len(functions):,} functions gave {len(samples):,} samples of {len(samples.tokens):,} tokens")


if __name__ == "__main__":
    main()
