"""Tokenise the corpus: a text stream, units with natural ends, and prompts for on-policy generation."""

import argparse
import multiprocessing
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from identifiers import Lexicon, build_lexicon, substitute
from ragged import Ragged
from rewrites import load_documents
from tokenizer import END_OF_TEXT
from tokenizers import Encoding, Tokenizer
from units import CodeUnit, code_units, cut_code, cut_prose, prose_units

MAX_TOKENS = 512
MAX_PROMPT_TOKENS = 320
MIN_FUNCTION_TOKENS = 24
CODE_VARIANTS = 4
PROSE_VARIANTS = 3

Pair = tuple[list[int], int]


def token_start(encoding: Encoding, character: int) -> int:
    """Return the index of the first token that reaches past `character`."""
    return next((i for i, (_, end) in enumerate(encoding.offsets) if end > character), len(encoding.ids))


def encode_unit(tokenizer: Tokenizer, text: str, start: int) -> Pair | None:
    """Return tokens ended by END_OF_TEXT, the context cut to fit, or None if the rest is too long."""
    encoding = tokenizer.encode(text + END_OF_TEXT)
    first = token_start(encoding, start)
    excess = max(0, len(encoding.ids) - MAX_TOKENS)
    if excess > first or len(encoding.ids) - first < MIN_FUNCTION_TOKENS:
        return None
    return encoding.ids[excess:], first - excess


def vary_code(text: str, rng: random.Random, lexicon: Lexicon) -> Iterable[CodeUnit]:
    """Yield the units of a module, then those of the module with substituted identifiers, and so on."""
    for variant in range(CODE_VARIANTS):
        varied = text
        if variant % 2:
            try:
                varied = substitute(text, rng, lexicon, 0.3)
                yield from code_units(varied, rng)
            except SyntaxError:
                continue
        else:
            yield from code_units(text, rng)


def code_pairs(text: str, rng: random.Random, lexicon: Lexicon, tokenizer: Tokenizer) -> list[Pair]:
    pairs = [encode_unit(tokenizer, unit.text, len(unit.context)) for unit in vary_code(text, rng, lexicon)]
    return [pair for pair in pairs if pair is not None]


def prose_pairs(text: str, rng: random.Random, lexicon: Lexicon, tokenizer: Tokenizer) -> list[Pair]:
    """Return the prose units of a document, most of them from a random paragraph on."""
    pairs = []
    for unit in prose_units(text):
        blocks = unit.split("\n\n")
        for variant in range(PROSE_VARIANTS):
            first = rng.randrange(max(1, len(blocks) - 1)) if variant else 0
            pairs.append(encode_unit(tokenizer, "\n\n".join(blocks[first:]).strip(), 1))
    return [pair for pair in pairs if pair is not None]


def prompt_pairs(text: str, rng: random.Random, lexicon: Lexicon, tokenizer: Tokenizer) -> list[Pair]:
    """Return beginnings of the units of a document (a module where it parses as one)."""
    try:
        prompts = [cut_code(unit, rng.choice([0, 0, 1, 2]))[0] for unit in code_units(text, rng)]
    except SyntaxError:
        prompts = [cut_prose(unit, rng)[0] for unit in prose_units(text)]
    ids = [encoding.ids[-MAX_PROMPT_TOKENS:] for encoding in tokenizer.encode_batch(prompts)]
    return [(prompt, len(prompt)) for prompt in ids if len(prompt) > MIN_FUNCTION_TOKENS]


class Packer:
    """Applies one of the *_pairs functions to texts in parallel, with a fixed seed for each text."""

    def __init__(self, lexicon: Lexicon, tokenizer_file: Path, workers: int) -> None:
        self.lexicon, self.tokenizer_file, self.workers = lexicon, tokenizer_file, workers

    def work(self, item: tuple[int, str, Callable[..., list[Pair]]]) -> list[Pair]:
        seed, text, make_pairs = item
        tokenizer = Tokenizer.from_file(str(self.tokenizer_file))
        return make_pairs(text, random.Random(seed), self.lexicon, tokenizer)

    def pack(self, texts: list[str], make_pairs: Callable[..., list[Pair]]) -> Ragged:
        items = [(seed, text, make_pairs) for seed, text in enumerate(texts)]
        with multiprocessing.Pool(self.workers) as pool:
            parts = pool.map(self.work, items, chunksize=4)
        unique = {(tuple(ids), start): None for part in parts for ids, start in part}
        return Ragged.from_sequences((list(ids), start) for ids, start in unique)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    texts = {
        (kind, split): load_documents(args.corpus, kind, split)
        for kind in ("code", "prose")
        for split in ("train", "policy", "heldout")
    }
    stream = texts["code", "train"] + texts["prose", "train"]
    random.Random(0).shuffle(stream)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    encoded = tokenizer.encode_batch_fast([text + END_OF_TEXT for text in stream])
    np.save(args.out / "text.npy", np.concatenate([np.array(e.ids, dtype=np.uint16) for e in encoded]))
    packer = Packer(build_lexicon(texts["code", "train"], texts["prose", "train"]), args.tokenizer, args.workers)
    for name, key, make_pairs in (
        ("code", ("code", "train"), code_pairs),
        ("prose", ("prose", "train"), prose_pairs),
        ("heldout_code", ("code", "heldout"), code_pairs),
        ("heldout_prose", ("prose", "heldout"), prose_pairs),
        ("policy_code", ("code", "policy"), prompt_pairs),
        ("policy_prose", ("prose", "policy"), prompt_pairs),
        ("train_prose", ("prose", "train"), prompt_pairs),
    ):
        packed = packer.pack(texts[key], make_pairs)
        packed.save(args.out / f"{name}.npz")
        print(f"{name:14} {len(packed):7,} sequences {len(packed.tokens):11,} tokens")


if __name__ == "__main__":
    main()
