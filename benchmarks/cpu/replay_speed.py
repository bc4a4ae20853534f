"""Times replays from text alone: 1,000 requests with prompts of 1,000 tokens and answers of 300.

    python benchmarks/cpu/replay_speed.py --out benchmarks/cpu/results/replay_speed.json

The tokens are the Python standard library's, from places drawn with a seed: text in which lookups find something.
Timed is everything from tokens to the numbers of the profile, for every k up to 8, in seconds and in CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sysconfig
import time
from pathlib import Path
from typing import Any

from provenance import provenance, write

from draftwise.core import SpecConfig
from draftwise.replaying.acceptance_profile import summarize
from draftwise.replaying.lookup_drafts import NgramReplayer, SuffixReplayer
from draftwise.replaying.replay_directory import to_anchors
from draftwise.replaying.replaying import choose_ks
from draftwise.replaying.transcripts import Replayer, Transcript

REQUESTS, PROMPT, ANSWER, K = 1_000, 1_000, 300, 8


def main() -> None:
    """Time both methods and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    requests = make_requests()
    ngram = NgramReplayer(k=K, shortest=2, longest=4)
    rows = [
        time_replay("ngram, every k to 8", ngram, requests),
        time_replay("suffix, k = 8", SuffixReplayer(ks=(K,), options={}), requests),
    ]
    about = provenance() | {"requests": REQUESTS, "prompt": PROMPT, "answer": ANSWER}
    result = {"about": about, "rows": rows}
    print(json.dumps(result, indent=1))
    write(result, out)


def make_requests(count: int = REQUESTS, vocabulary: int | None = None) -> list[Transcript]:
    """Return the requests, each from a place of its own in the text (a few less where places coincide).

    Args:
        count: how many.
        vocabulary: ids stay below it; None for any.
    """
    size = PROMPT + ANSWER
    rng = random.Random(0)
    text = standard_library(rng, 10**7)
    if vocabulary is not None:
        text = [token % vocabulary for token in text]
    starts = [rng.randrange(len(text) - size) for _ in range(count)]
    return [
        Transcript(
            id=str(start),
            prompt_ids=tuple(text[start : start + PROMPT]),
            answer_ids=tuple(text[start + PROMPT : start + size]),
        )
        for start in dict.fromkeys(starts)
    ]


def standard_library(rng: random.Random, num_tokens: int) -> list[int]:
    """Return the words of the standard library as ids, its files in an order of chance."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    rng.shuffle(files)
    ids: dict[str, int] = {}
    tokens: list[int] = []
    for file in files:
        words = re.findall(r"\w+|[^\w\s]|\n *", file.read_text(encoding="utf-8", errors="replace"))
        tokens += [ids.setdefault(word, len(ids)) for word in words]
        if len(tokens) >= num_tokens:
            break
    return tokens[:num_tokens]


def time_replay(name: str, replayer: Replayer, requests: list[Transcript], k: int = K) -> dict[str, Any]:
    """Return the seconds from tokens to drafts, and from drafts to the profile's numbers."""
    began, worked = time.perf_counter(), time.process_time()
    rows = {each.id: each.by_k for each in replayer.replay(requests)}
    replayed = time.perf_counter()
    (anchors,) = to_anchors(SpecConfig(method="any", num_speculative_tokens=k), requests, rows)
    (entry,) = summarize(anchors, [k for k in choose_ks(k, ()) if k in anchors.ks])
    ended = time.perf_counter()
    return {
        "replay": name,
        "seconds": round(ended - began, 2),
        "cpu_seconds": round(time.process_time() - worked, 2),
        "of_which_numbers": round(ended - replayed, 2),
        "tokens_per_step": round(entry.by_k[k].tokens_per_step.value, 3),
    }


if __name__ == "__main__":
    main()
