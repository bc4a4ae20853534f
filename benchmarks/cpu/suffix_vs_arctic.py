"""Times our suffix proposer against ArcticInference's C++ on the same traces, turn by turn, and compares every draft.

    python benchmarks/cpu/suffix_vs_arctic.py --arctic-python OTHER_VENV/bin/python

OTHER_VENV needs numpy and arctic-inference==0.1.1 (`pip install --no-deps arctic-inference==0.1.1 numpy`). Ours is
timed as the engine calls it, tensors in and out; theirs as vLLM 0.32 calls it (v1/spec_decode/suffix_decoding.py). The
text is the Python standard library, a word a token, so that it repeats itself as code does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np
from provenance import provenance, write

sys.path.append(str(Path(__file__).parents[1] / "h200"))

from record import command_line

DEPTH, CACHED_REQUESTS, K = 24, 10_000, 24  # vLLM's defaults
TIMES = ("admit", "step", "release")


# --- Traces: a list of batches; each row is (slot, prompt or None, new tokens) or ("release", slot).


def standard_library(rng: random.Random, num_tokens: int) -> list[int]:
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


def serve(rng: random.Random, requests: list[tuple[list[int], list[int]]], batch: int) -> list[list]:
    """Return the trace of serving (prompt, response) pairs in `batch` slots, 1-4 tokens a step."""
    trace, waiting, running = [], list(reversed(requests)), {}
    while waiting or running:
        rows = []
        for slot in range(batch):
            if slot in running and not running[slot]:
                del running[slot]
                rows.append(["release", slot])
            if slot not in running and waiting:
                prompt, response = waiting.pop()
                rows.append([slot, prompt, response[:1]])
                running[slot] = response[1:]
            elif slot in running:
                size = min(4, 1 + int(rng.expovariate(0.8)))
                rows.append([slot, None, running[slot][:size]])
                running[slot] = running[slot][size:]
        trace.append(rows)
    return trace


def noisy(rng: random.Random, tokens: list[int], share: float) -> list[int]:
    return [rng.randrange(30_000) if rng.random() < share else token for token in tokens]


def make_traces() -> dict[str, list[list]]:
    rng = random.Random(0)
    text = standard_library(rng, 700_000)

    def piece(size: int) -> list[int]:
        start = rng.randrange(len(text) - size)
        return text[start : start + size]

    rewrites = [(prompt, noisy(rng, prompt, 0.05)) for prompt in (piece(600) for _ in range(64))]
    pool = [(piece(500), piece(300)) for _ in range(16)]
    tokens = [[rng.randrange(50_000) for _ in range(1000)] for _ in range(64)]
    return {
        "code, 1 sequence": serve(rng, [(piece(1000), piece(400)) for _ in range(16)], 1),
        "code, 16 sequences": serve(rng, [(piece(1000), piece(400)) for _ in range(96)], 16),
        "rewrites of the prompt, 8 sequences": serve(rng, rewrites, 8),
        "requests that come again, 8 sequences": serve(rng, [rng.choice(pool) for _ in range(96)], 8),
        "prompts of 50,000 tokens, 2 sequences": serve(rng, [(piece(50_000), piece(600)) for _ in range(6)], 2),
        "random tokens, 8 sequences": serve(rng, [(t[:500], t[500:]) for t in tokens], 8),
        "one token for ever, 4 sequences": serve(rng, [([7] * 500, [7] * 500) for _ in range(16)], 4),
    }


# --- The two sides. Each replays a trace and returns seconds by kind, counts, a digest of all drafts and peak memory.


def replay_ours(trace: list[list]) -> dict:
    import torch

    from draftwise.engine.attention.spans import Spans
    from draftwise.engine.proposers.proposer import Confirmed
    from draftwise.engine.proposers.suffix import SuffixProposer
    from draftwise.lookup.suffix_cache import SuffixCache

    torch.set_num_threads(1)
    proposer = SuffixProposer(SuffixCache(max_tree_depth=DEPTH, max_cached_requests=CACHED_REQUESTS))
    seconds, counts, digest, prompts = dict.fromkeys(TIMES, 0.0), dict.fromkeys(TIMES, 0), hashlib.sha256(), {}
    known: dict[int, int] = {}
    for rows in trace:
        for row in [row for row in rows if row[0] == "release"]:
            begin = time.perf_counter()
            proposer.release(row[1])
            seconds["release"] += time.perf_counter() - begin
            counts["release"] += 1
        for kind, group in grouped(rows):
            prompts.update({slot: len(prompt) for slot, prompt, _ in group if prompt})
            new = [(prompt or []) + tokens for _, prompt, tokens in group]
            slots, lengths = [row[0] for row in group], list(map(len, new))
            starts = [0 if prompt else known[slot] for slot, prompt, _ in group]
            known.update({slot: start + size for slot, start, size in zip(slots, starts, lengths, strict=True)})
            zero_B = torch.zeros(len(group), dtype=torch.long)
            confirmed = Confirmed(
                slots_B=torch.tensor(slots),
                spans=Spans.of(starts, lengths, "cpu"),
                tokens_N=torch.tensor([token for tokens in new for token in tokens]),
                num_prompt_B=torch.tensor([prompts[slot] for slot in slots]),
                limits_B=zero_B + K,
                page_table_BP=zero_B.int().unsqueeze(1),
                temperature_B=zero_B.float(),
                seeds_B=zero_B,
            )
            begin = time.perf_counter()
            draft = proposer.propose(confirmed, K)
            seconds[kind] += time.perf_counter() - begin
            counts[kind] += len(group)
            for tokens, length in zip(draft.tokens_BK.tolist(), draft.lengths_B.tolist(), strict=True):
                digest.update(repr(tokens[:length]).encode())
    return {"seconds": seconds, "counts": counts, "drafts": digest.hexdigest(), "bytes": proposer.cache.memory_bytes}


def replay_arctic(trace: list[list]) -> dict:
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    cache = SuffixDecodingCache(max_tree_depth=DEPTH, max_cached_requests=CACHED_REQUESTS)
    seconds, counts, digest = dict.fromkeys(TIMES, 0.0), dict.fromkeys(TIMES, 0), hashlib.sha256()
    requests: dict[int, int] = {}
    texts: dict[int, np.ndarray] = {}
    sizes: dict[int, int] = {}
    num_started = peak = 0
    for at, rows in enumerate(trace):
        for row in [row for row in rows if row[0] == "release"]:
            begin = time.perf_counter()
            cache.stop_request(requests[row[1]])
            seconds["release"] += time.perf_counter() - begin
            counts["release"] += 1
        for kind, group in grouped(rows):
            for slot, prompt, tokens in group:
                if prompt:
                    requests[slot], num_started = num_started, num_started + 1
                    texts[slot], sizes[slot] = np.zeros(len(prompt) + 1000, np.int32), len(prompt)
                    texts[slot][: len(prompt)] = prompt
                texts[slot][sizes[slot] : sizes[slot] + len(tokens)] = tokens
                sizes[slot] += len(tokens)
            begin = time.perf_counter()
            drafts = []
            for slot, prompt, tokens in group:
                request, size = requests[slot], sizes[slot]
                if prompt:
                    cache.start_request(request, texts[slot][: len(prompt)])
                cache.add_active_response(request, tokens)
                pattern = texts[slot][max(0, size - DEPTH) : size]
                drafts.append(cache.speculate(request, pattern, max_spec_tokens=K).token_ids)
            seconds[kind] += time.perf_counter() - begin
            counts[kind] += len(group)
            for draft in drafts:
                digest.update(repr(draft).encode())
        if at % max(1, len(trace) // 20) == 0:  # walks the trees: not at every batch
            local_bytes = sum(tree.estimate_memory() for tree in cache._local_trees.values())
            peak = max(peak, cache._global_tree.estimate_memory() + local_bytes)
    return {"seconds": seconds, "counts": counts, "drafts": digest.hexdigest(), "bytes": peak}


def grouped(rows: list[list]) -> list[tuple[str, list[list]]]:
    """Return the admissions of a batch, then its steps (each side is called once for each kind)."""
    admitted = [row for row in rows if row[0] != "release" and row[1]]
    stepped = [row for row in rows if row[0] != "release" and not row[1]]
    return [(kind, group) for kind, group in (("admit", admitted), ("step", stepped)) if group]


# --- The comparison.


def measure(python: str, side: str, traces: Path) -> dict:
    command = [python, __file__, "--side", side, "--traces", str(traces)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def compare(traces: dict, ours: list[dict], arctic: list[dict]) -> list[dict]:
    rows = []
    for name in traces:
        a, b = [run[name] for run in ours], [run[name] for run in arctic]
        row = {"trace": name, "sequence_steps": a[0]["counts"]["step"], "requests": a[0]["counts"]["admit"]}
        row["same_drafts"] = len({run["drafts"] for run in a + b}) == 1
        for kind in TIMES:
            per = [[1e6 * run["seconds"][kind] / run["counts"][kind] for run in side] for side in (a, b)]
            ratio = statistics.median(x / y for x, y in zip(*per, strict=True))
            row |= {f"{kind}_us": statistics.median(per[0]), f"{kind}_us_arctic": statistics.median(per[1])}
            row[f"{kind}_ratio"] = ratio
        total = [[sum(run["seconds"].values()) for run in side] for side in (a, b)]
        row["total_ratio"] = statistics.median(x / y for x, y in zip(*total, strict=True))
        row |= {"peak_bytes": a[0]["bytes"], "peak_bytes_arctic": b[0]["bytes"]}
        rows.append(row)
    return rows


def compile_seconds() -> dict[str, float]:
    """Return the time to a process's first proposer (numba imported), without and with numba's cache of kernels."""
    code = (
        "import time, numba, draftwise.engine.proposers; begin = time.perf_counter();"
        "from draftwise.lookup.suffix_cache import SuffixCache as S; S(); print(time.perf_counter() - begin)"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = ["env", f"NUMBA_CACHE_DIR={folder}", sys.executable, "-c", code]
        times = [float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(2)]
    return {"cold": times[0], "cached": times[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arctic-python", type=command_line, help="interpreter that can import arctic_inference")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "suffix_vs_arctic.json")
    parser.add_argument("--side", choices=("ours", "arctic"), help=argparse.SUPPRESS)
    parser.add_argument("--traces", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        replay = {"ours": replay_ours, "arctic": replay_arctic}[args.side]
        print(json.dumps({name: replay(trace) for name, trace in json.loads(args.traces.read_text()).items()}))
        return
    if not args.arctic_python:
        parser.error("--arctic-python is needed: an interpreter with arctic-inference==0.1.1")
    traces = make_traces()
    ours, arctic = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "traces.json"
        file.write_text(json.dumps(traces))
        for _ in range(args.repeats):
            ours.append(measure(sys.executable, "ours", file))
            arctic.append(measure(args.arctic_python, "arctic", file))
    rows = compare(traces, ours, arctic)
    result = {
        "what": "microseconds per sequence, SuffixProposer and ArcticInference; ratio: ours / theirs, median of runs",
        "command": "python benchmarks/cpu/suffix_vs_arctic.py --arctic-python PYTHON",
        "repeats": args.repeats,
        "settings": {"max_tree_depth": DEPTH, "max_cached_requests": CACHED_REQUESTS, "num_speculative_tokens": K},
        **provenance("numba", "numpy", "torch"),
        "arctic-inference": "0.1.1",
        "compile_s": compile_seconds(),
        "traces": rows,
    }
    write(result, args.out)
    for row in rows:
        times = "  ".join(f"{kind} {row[f'{kind}_us']:9.1f} / {row[f'{kind}_us_arctic']:9.1f} us" for kind in TIMES)
        print(f"{row['trace']:38} {times}  total x{row['total_ratio']:.2f}  same drafts: {row['same_drafts']}")


if __name__ == "__main__":
    main()
