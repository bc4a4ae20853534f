"""What structured output costs: decoding with a grammar beside decoding without, and masks of a large vocabulary.

    python benchmarks/cpu/structured.py --out benchmarks/cpu/results/structured.json

Engines with the bundled model decode the same prompts in three forms that take turns: free, under a grammar that
allows any text but no end of it (nearly the same words, so the ratio is what masks cost), and under a JSON schema
(other words, and other drafts that are accepted). No answer ends early. Everything has one thread and is also counted
in CPU time, which other processes disturb less. A figure is the median of all rounds, a ratio that of those within
rounds.
Masks alone are timed on the host for a vocabulary of Qwen's size, which is made of the words of the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sysconfig
import time
from itertools import chain, count, islice
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = "1"  # read by the libraries that are imported now

import torch
from provenance import provenance, write
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from draftwise import LLM, SamplingParams, StructuredOutputsParams
from draftwise.engine.sampling.draft import Draft
from draftwise.engine.sampling.grammar import Grammars

BUNDLE = Path(__file__).parents[2] / "bundle"
METHODS = {
    "plain": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "eagle3": {"method": "eagle3", "num_speculative_tokens": 3, "model": str(BUNDLE / "eagle3")},
}
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 16},
        "kind": {"enum": ["function", "class", "module"]},
        "lines": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "kind", "lines"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": ITEM, "minItems": 1000}
FORMS = {
    "free": None,
    "any text": StructuredOutputsParams(regex=r"[\s\S]*END OF ALL TEXT"),
    "schema": StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True),
}
NUM_TOKENS = 64
WIDE, NUM_DRAFTED, REPEATS = 151_936, 3, 30


def measure_decoding(rounds: int, batches: list[int]) -> list[dict]:
    """Return tokens/s of each method, batch and form."""
    rows = []
    for method, spec in METHODS.items():
        llm = LLM(str(BUNDLE / "target"), speculative_config=spec, device="cpu", enable_prefix_caching=False)
        for batch in batches:
            prompts = [f"def parse_{number}(text, start={number}):\n" for number in range(batch)]
            speeds: dict[str, list[float]] = {form: [] for form in FORMS}
            costs: dict[str, list[float]] = {form: [] for form in FORMS}
            lengths: dict[str, float | None] = {}
            words: dict[str, list[list[int]]] = {}
            for _ in range(rounds + 1):  # the first one warms up
                for form, structured in FORMS.items():
                    params = SamplingParams(
                        temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, structured_outputs=structured
                    )
                    before, start, began = llm.engine.stats().spec, time.perf_counter(), time.process_time()
                    outputs = [each.outputs[0] for each in llm.generate(prompts, params)]
                    seconds = time.perf_counter() - start
                    assert all(len(each.token_ids) == NUM_TOKENS for each in outputs), "an answer ended early"
                    speeds[form].append(batch * NUM_TOKENS / seconds)
                    costs[form].append(1e3 * (time.process_time() - began) / (batch * NUM_TOKENS))
                    lengths[form] = (llm.engine.stats().spec - before).acceptance_length
                    words[form] = [each.token_ids for each in outputs]
            rows += [
                {
                    "method": method,
                    "batch": batch,
                    "form": form,
                    "tokens_per_s": round(statistics.median(found[1:]), 1),
                    "speed_to_free": round(statistics.median(map(ratio, found[1:], speeds["free"][1:])), 3),
                    "cpu_ms_per_token": round(statistics.median(costs[form][1:]), 2),
                    "cpu_to_free": round(statistics.median(map(ratio, costs[form][1:], costs["free"][1:])), 3),
                    "acceptance_length": lengths[form] and round(lengths[form], 3),
                    "words_of_free": words[form] == words["free"],
                }
                for form, found in speeds.items()
            ]
            print(*rows[-len(FORMS) :], sep="\n")
    return rows


def ratio(one: float, other: float) -> float:
    return one / other


def wide_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer of WIDE tokens: bytes, then words with and without a space before them."""
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = (f"{space}{word}" for word in re.findall(r"[A-Za-z_]{2,12}|[0-9]{2,3}", text) for space in ("", "Ġ"))
    made = (f"x{number}x" for number in count())  # whatever the library is short of
    tokens = dict.fromkeys(chain(alphabet, ["<|end|>"]))
    tokens |= dict.fromkeys(islice(chain(dict.fromkeys(words), made), WIDE - len(tokens)))
    vocab = {token: number for number, token in enumerate(islice(chain(tokens, made), WIDE))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def measure_masks(batches: list[int]) -> dict:
    """Return what masks of a step cost the host, by batch: found with llguidance, and put on logits by torch."""
    tokenizer = wide_tokenizer()
    text = json.dumps([{"name": "parse_the_text", "kind": "function", "lines": 12}] * 3, separators=(",", ":"))
    ids = tokenizer.encode(text).ids
    (end,) = tokenizer.encode("<|end|>").ids
    start = time.process_time()
    grammars = Grammars(tokenizer.to_str, end_ids=[end], vocab_size=WIDE)
    grammars.compile(StructuredOutputsParams(regex="a"))
    load_s = time.process_time() - start
    start = time.process_time()
    grammars.compile(FORMS["schema"])
    compile_s = time.process_time() - start
    rows = []
    for batch in batches:
        states = [grammars.compile(FORMS["schema"]) for _ in range(batch)]
        logits = torch.zeros(batch, NUM_DRAFTED + 1, WIDE, dtype=torch.bfloat16)
        taken = []
        for place in range(REPEATS):
            for state in states:
                state.advance(ids[place : place + 1])
            draft = Draft.from_lists([ids[place + 1 : place + 1 + NUM_DRAFTED]] * batch, NUM_DRAFTED)
            begin = time.process_time()
            grammars.constrain(logits, states, draft)
            taken.append(1e3 * (time.process_time() - begin))
        rows.append({"batch": batch, "cpu_ms": round(statistics.median(taken), 2), "most_ms": round(max(taken), 2)})
        print(rows[-1])
    return {
        "vocabulary": WIDE,
        "rows_a_sequence": NUM_DRAFTED + 1,
        "load_tokenizer_s": round(load_s, 3),
        "compile_schema_s": round(compile_s, 4),
        "steps": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "structured.json")
    args = parser.parse_args()
    result = {
        "what": "decoding with and without a grammar: tokens/s, CPU ms a token, ratios; masks of a step: CPU ms",
        "command": f"python benchmarks/cpu/structured.py --rounds {args.rounds}",
        **provenance("torch", "llguidance"),
        "masks": measure_masks(args.batches),
        "decoding": measure_decoding(args.rounds, args.batches),
    }
    write(result, args.out)


if __name__ == "__main__":
    main()
