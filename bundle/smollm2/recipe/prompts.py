"""Write requests of six kinds about the Python library, its documentation and daily matters."""

import argparse
import gzip
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "recipe"))

from identifiers import build_lexicon
from rewrites import load_documents, make_samples, plain_functions
from tokenizer import ASSISTANT, END, USER
from units import prose_entries, prose_sections

MIN_PASSAGE, MAX_PASSAGE = 300, 1600
"""Characters."""
ROLE = re.compile(r":[\w:+-]+:`[!~]?([^`<]+?)(?: <[^>`]+>)?`")
NAME = re.compile(r"^\.\. (\w+):: +([\w.]+)", re.MULTILINE)

QUESTIONS = [
    "What does `{name}` do in Python? Answer in a few sentences.",
    "Explain `{name}` to a beginner and show a short example.",
    "Write a short Python example that uses `{name}`.",
    "When should I use `{name}` in Python, and when not?",
    "List three common mistakes with `{name}`.",
    "Write a docstring for a function that wraps `{name}`.",
    "Give me a unit test for code that calls `{name}`.",
    "What are the parameters of `{name}`? Make a list.",
]
SUMMARIES = [
    "Summarize the following text in two sentences.",
    "Summarize this in one sentence.",
    "Write a short summary of the text below as three bullet points.",
    "What are the main points of this text?",
    "Rewrite the following text in simpler words.",
]
PASSAGE_QUESTIONS = [
    "Read the passage and answer: what is `{name}` for?\n\n{passage}",
    "{passage}\n\nAccording to the text above, what happens when it fails?",
    "{passage}\n\nQuestion: what does the text say about `{name}`?",
    "Answer only from this passage: which arguments or values does it name?\n\n{passage}",
    "{passage}\n\nQuote the sentence that describes `{name}` best.",
]
WORDS: dict[str, list[str]] = json.loads((Path(__file__).parent / "words.json").read_text())
FACTS = {
    "order": (
        ["name", "city", "item", "quantity", "price"],
        "{first} {last} from {city} ordered {n} {item} on {month} {day}. The price was {price} dollars each.",
    ),
    "person": (
        ["name", "age", "job", "city"],
        "{first} {last} is a {age}-year-old {job} who lives in {city}. Before that, the {job} lived in {city2}.",
    ),
    "event": (
        ["title", "date", "city", "speaker"],
        "The meeting about {item} takes place on {month} {day} in {city}. "
        "{first} {last}, a {job}, opens it at {hour} am.",
    ),
    "ticket": (
        ["customer", "product", "problem", "urgent"],
        "Hello, my name is {first} {last}. I bought {n} {item} in {city} and one of them is broken since "
        "{month} {day}. Please send a new one before {month2}.",
    ),
}
ASK_JSON = [
    "Extract {keys} from the text as a JSON object.\n\n{text}",
    "Return only JSON with the keys {keys}.\n\nText: {text}",
    "{text}\n\nWrite the {keys} of the text above as JSON.",
]
CHATS = [
    "Tell me about {topic}.",
    "Write a short story about {topic}.",
    "Give me five tips about {topic}.",
    "Explain {topic} to a ten-year-old.",
    "Write a friendly email about {topic} to a colleague.",
    "What are the pros and cons of {topic}?",
    "Write a poem about {topic}.",
    "Make a plan for a week that has to do with {topic}.",
    "What should I know about {topic} before I start?",
    "Compare {topic} with {other}.",
    "Ask me three questions about {topic} and answer them.",
]


class Source:
    """Passages, documented names and functions of one side of the split.

    Args:
        corpus: what recipe/corpus.py wrote.
        splits: of its documents.
    """

    def __init__(self, corpus: Path, *splits: str) -> None:
        prose = [ROLE.sub(r"\1", text).replace("``", "`") for text in load_documents(corpus, "prose", *splits)]
        lines = [text.split("\n") for text in prose]
        self.passages = [
            part for each in lines for part in prose_sections(each) if MIN_PASSAGE <= len(part) <= MAX_PASSAGE
        ]
        self.entries = [
            part for each in lines for part in prose_entries(each) if len(part) <= MAX_PASSAGE and NAME.match(part)
        ]
        self.functions = plain_functions(load_documents(corpus, "code", *splits))
        self.lexicon = build_lexicon(load_documents(corpus, "code", "train"), load_documents(corpus, "prose", "train"))


def name_of(entry: str) -> str:
    """Return what a documented object is called."""
    found = NAME.match(entry)
    assert found is not None
    return found[2]


def ask_library(source: Source, rng: random.Random) -> str:
    return rng.choice(QUESTIONS).format(name=name_of(rng.choice(source.entries)))


def ask_edit(source: Source, rng: random.Random) -> str:
    """Return an instruction and a function to change."""
    while True:
        for prompt, _ in make_samples(rng.randrange(2**32), source.functions, source.lexicon, 1):
            content = prompt.removeprefix(USER).removesuffix(f"{END}{ASSISTANT}")
            instruction, _, function = content.partition("\n\n")
            return f"{instruction}\n\n```python\n{function.rstrip()}\n```"


def ask_summary(source: Source, rng: random.Random) -> str:
    return f"{rng.choice(SUMMARIES)}\n\n{rng.choice(source.passages)}"


def ask_json(_source: Source, rng: random.Random) -> str:
    keys, text = rng.choice(list(FACTS.values()))
    values: dict[str, Any] = {
        "first": rng.choice(WORDS["first"]),
        "last": rng.choice(WORDS["last"]),
        "city": rng.choice(WORDS["cities"]),
    }
    values |= {
        "city2": rng.choice(WORDS["cities"]),
        "item": rng.choice(WORDS["items"]),
        "job": rng.choice(WORDS["jobs"]),
    }
    values |= {"month": rng.choice(WORDS["months"]), "month2": rng.choice(WORDS["months"]), "day": rng.randint(1, 28)}
    values |= {"n": rng.randint(2, 40), "age": rng.randint(19, 80), "hour": rng.randint(8, 11)}
    values |= {"price": rng.randint(5, 400)}
    return rng.choice(ASK_JSON).format(keys=", ".join(keys), text=text.format(**values))


def ask_passage(source: Source, rng: random.Random) -> str:
    entry = rng.choice(source.entries)
    return rng.choice(PASSAGE_QUESTIONS).format(name=name_of(entry), passage=entry)


def ask_chat(_source: Source, rng: random.Random) -> str:
    return rng.choice(CHATS).format(topic=rng.choice(WORDS["topics"]), other=rng.choice(WORDS["topics"]))


KINDS: dict[str, tuple[Callable[[Source, random.Random], str], int]] = {
    "library": (ask_library, 9000),
    "edit": (ask_edit, 12000),
    "summary": (ask_summary, 8000),
    "json": (ask_json, 6000),
    "passage": (ask_passage, 6000),
    "topic": (ask_chat, 2000),
}
"""Each kind's maker, and how many of it are learnt (equal ones count once)."""


def draw(kind: str, source: Source, rng: random.Random) -> Iterator[str]:
    """Yield different requests of one kind."""
    make, seen = KINDS[kind][0], set[str]()
    for _ in range(200_000):
        content = make(source, rng)
        if content not in seen:
            seen.add(content)
            yield content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="what recipe/corpus.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl.gz file of requests to learn from")
    parser.add_argument("--heldout", type=Path, required=True, help="folder of requests to report on")
    parser.add_argument("--count", type=int, default=100, help="requests held out of each kind")
    parser.add_argument("--seed", type=int, default=31)
    args = parser.parse_args()
    learnt, held_out = Source(args.corpus, "train", "policy"), Source(args.corpus, "heldout")
    args.heldout.mkdir(parents=True, exist_ok=True)
    known: set[str] = set()
    for number, kind in enumerate(KINDS):
        drawn = list(islice(draw(kind, held_out, random.Random(f"{args.seed} held out {number}")), args.count))
        known.update(drawn)
        rows = [
            {"id": f"{kind}-{i:03}", "messages": [{"role": "user", "content": content}], "max_tokens": 256}
            for i, content in enumerate(drawn)
        ]
        (args.heldout / f"{kind}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with gzip.open(args.out, "wt", encoding="utf-8") as out:
        for number, (kind, (_, count)) in enumerate(KINDS.items()):
            drawn = islice(draw(kind, learnt, random.Random(f"{args.seed} learnt {number}")), count)
            kept = [content for content in drawn if content not in known]
            out.writelines(json.dumps({"messages": [{"role": "user", "content": content}]}) + "\n" for content in kept)
            print(f"{kind:8} {len(kept)} requests to learn from, {args.count} held out")


if __name__ == "__main__":
    main()
