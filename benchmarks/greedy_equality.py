"""Greedy output of every method beside plain decoding, token for token, on the bundled model and workloads.

    python benchmarks/greedy_equality.py --device cpu --dtype bfloat16 float32 float64 --out results.json

Each method runs on an engine with room (a batch of 16, then the same prompts again out of the prefix cache), on one
that takes six prompts at a time, which start while others decode, and on one without room (chunked prefill, so few
pages that sequences are preempted). Where an output differs from plain decoding's,
the plain engine says how far below the best choice they are at the first difference: within what rounding
does to a logit in that dtype it is a numerical tie, else an error. In float32 and float64 there must be no difference
at all. The exit code is 1 when something is wrong; rows are written as they are measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

from draftwise import LLM, SamplingParams, __version__
from draftwise.engine.engine_outputs import RequestOutput

METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "ngram_gpu": {"method": "ngram_gpu", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix", "num_speculative_tokens": 8},
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 4},
    "medusa": {"method": "medusa", "num_speculative_tokens": 4},
    "mlp_speculator": {"method": "mlp_speculator", "num_speculative_tokens": 4},
    "eagle": {"method": "eagle", "num_speculative_tokens": 4},
    "eagle3": {"method": "eagle3", "num_speculative_tokens": 5},
    "p_eagle": {"method": "eagle3", "num_speculative_tokens": 5, "parallel_drafting": True},
    "mtp": {"method": "mtp", "num_speculative_tokens": 3},
    "dflash": {"method": "dflash", "num_speculative_tokens": 8},
}
TIE_GAP = {"bfloat16": 0.25, "float16": 0.03, "float32": 1e-4, "float64": 0.0}
"""Nats: two logits of magnitude 16 that are two to four roundings of the dtype apart."""
ROOM = 2400
"""Pages for all prompts at once, so that two engines fit on one GPU."""
NEAR = 5
"""Tokens listed where outputs part."""
MAY_TIE = ("bfloat16", "float16")

Row = dict[str, Any]
Prompts = list[list[int]]


def add_bundle(parser: argparse.ArgumentParser) -> None:
    """Add the folders of the models and of the prompts, which have to be there."""

    def folder(text: str, holds: str) -> Path:
        if next(Path(text).glob(holds), None) is None:
            raise argparse.ArgumentTypeError(f"there is no {Path(text) / holds}")
        return Path(text)

    workloads = "src/draftwise/workloads/bundled"
    parser.add_argument("--bundle", type=partial(folder, holds="target/config.json"), default="bundle")
    parser.add_argument("--workloads", type=partial(folder, holds="*.jsonl"), default=workloads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_bundle(parser)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"], choices=TIE_GAP)
    parser.add_argument("--methods", nargs="+", choices=["plain", *METHODS], default=["plain", *METHODS])
    parser.add_argument("--prompts", type=int, default=8, help="of each workload")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further method after so long")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    began, rows = time.monotonic(), list[Row]()
    about = provenance(args.device) | {"max_tokens": args.max_tokens}
    for dtype in args.dtype:
        reference = Reference(args, dtype)
        for method in args.methods:
            if time.monotonic() - began > args.seconds:
                rows.append({"dtype": dtype, "method": method, "left_out": "no time left"})
                continue
            for row in check_method(reference, args, dtype, method):
                rows.append(row)
                print(as_line(row), flush=True)
            write(args.out, about | {"seconds": round(time.monotonic() - began, 1), "rows": rows})
        del reference
    wrong = [row for row in rows if is_wrong(row)]
    print(f"{len(rows)} runs in {time.monotonic() - began:.0f} s; wrong: {len(wrong)}")
    sys.exit(bool(wrong))


def provenance(device: str) -> Row:
    """Return where and how a run on a device takes place."""
    return {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "versions": {"draftwise": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
    }


def write(path: Path | None, result: Row) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


def gap_below_best(best: Mapping[int, Any], *tokens: int) -> float:
    """Return how far below the best log-probability the worst of these tokens is; infinite where it is not listed."""
    listed = {token: entry.logprob for token, entry in best.items()}
    return max(listed.values()) - min(listed.get(token, float("-inf")) for token in tokens)


class Reference:
    """Plain decoding of the prompts: its outputs, and how close its choices were.

    Closeness is asked for in requests of its own: with log-probabilities a step may take another path through the
    engine than the outputs that are compared.
    """

    def __init__(self, args: argparse.Namespace, dtype: str) -> None:
        self._llm = LLM(str(args.bundle / "target"), device=args.device, dtype=dtype, num_gpu_blocks_override=ROOM)
        self.prompts = self._read_prompts(args.workloads, args.prompts)
        self.params = SamplingParams(temperature=0, max_tokens=args.max_tokens)
        self.outputs = [output.outputs[0].token_ids for output in generate(self._llm, self.prompts, self.params)]

    def gap(self, index: int, tokens: Sequence[int]) -> float | None:
        """Return how far below the best choice the worse is where `tokens` part from plain output; None: they do not.

        It need not be the second: several logits may be equal in a narrow dtype.
        """
        plain = self.outputs[index]
        if plain == tokens:
            return None
        at = next((i for i, (x, y) in enumerate(zip(plain, tokens, strict=False)) if x != y), None)
        if at is None:
            return float("inf")
        params = SamplingParams(temperature=0, max_tokens=1, logprobs=NEAR)
        (output,) = generate(self._llm, [self.prompts[index] + plain[:at]], params)
        return gap_below_best((output.outputs[0].logprobs or [])[0], plain[at], tokens[at])

    def _read_prompts(self, folder: Path, count: int) -> Prompts:
        tokenizer = self._llm.get_tokenizer()
        lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()[:count])
        return [
            tokenizer.encode(prompt["prompt"])
            if "prompt" in prompt
            else tokenizer.encode(tokenizer.apply_chat_template(prompt["messages"]), False)
            for prompt in map(json.loads, lines)
        ]


def check_method(reference: Reference, args: argparse.Namespace, dtype: str, method: str) -> Iterator[Row]:
    """Yield a row for each circumstance that the method is tried in."""
    spec = None
    if method != "plain":
        folder = args.bundle / method
        spec = METHODS[method] | ({"model": str(folder)} if folder.is_dir() else {})
    longest = max(map(len, reference.prompts)) + args.max_tokens + 1
    pages = -(-longest // 16) + 3  # the longest alone has room; those that grow beside each other have not
    cramped = {"max_model_len": longest, "max_num_batched_tokens": 96, "num_gpu_blocks_override": pages}
    roomy = {"num_gpu_blocks_override": ROOM}
    few = roomy | {"max_num_seqs": 6, "max_num_batched_tokens": 600}
    ways = ((roomy, ("batch of 16", "prefix cached")), (few, ("six at a time",)), (cramped, ("preempted, chunked",)))
    for settings, circumstances in ways:
        began = time.monotonic()
        llm = LLM(str(args.bundle / "target"), speculative_config=spec, device=args.device, dtype=dtype, **settings)
        ready_s = time.monotonic() - began
        for circumstance in circumstances:
            yield (
                {"dtype": dtype, "method": method, "circumstance": circumstance}
                | compare(reference, llm, dtype)
                | {"ready_s": round(ready_s, 2)}
            )
        del llm
        gc.collect()


def compare(reference: Reference, llm: LLM, dtype: str) -> Row:
    """Run the prompts; return how many outputs equal plain decoding's and what the others' gaps are."""
    before, began = llm.engine.stats(), time.monotonic()
    outputs = generate(llm, reference.prompts, reference.params)
    found = [reference.gap(i, output.outputs[0].token_ids) for i, output in enumerate(outputs)]
    gaps = [gap for gap in found if gap is not None]
    after = llm.engine.stats()
    llm.engine.scheduler.pool.check_integrity()
    spec = after.spec - before.spec
    return {
        "prompts": len(outputs),
        "equal": len(outputs) - len(gaps),
        "ties": sum(gap <= TIE_GAP[dtype] for gap in gaps),
        "real_differences": sum(gap > TIE_GAP[dtype] for gap in gaps),
        "gaps": [round(gap, 6) for gap in gaps],
        "acceptance_length": spec.acceptance_length,
        "drafts": spec.num_drafts,
        "preemptions": after.num_preemptions - before.num_preemptions,
        "cached_tokens": after.prefix_cache_hits - before.prefix_cache_hits,
        "pages_left_held": round(after.kv_cache_usage, 6),
        "seconds": round(time.monotonic() - began, 2),
    }


def generate(llm: LLM, prompts: Prompts, params: SamplingParams) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)


def is_wrong(row: Row) -> bool:
    """Say whether a row shows an error of the engine or of the check."""
    if "left_out" in row:
        return True
    differs = row["real_differences"] > 0 or (row["ties"] > 0 and row["dtype"] not in MAY_TIE)
    missed = (row["circumstance"] == "prefix cached" and row["method"] == "plain" and not row["cached_tokens"]) or (
        row["circumstance"].startswith("preempted") and not row["preemptions"]
    )
    return differs or missed or row["pages_left_held"] > 0


def as_line(row: Row) -> str:
    length = f"{row['acceptance_length']:.2f}" if row["acceptance_length"] else "-"
    return (
        f"{'WRONG' if is_wrong(row) else 'ok':5} {row['dtype']:9} {row['method']:15} {row['circumstance']:19} "
        f"equal {row['equal']}/{row['prompts']} ties {row['ties']} real {row['real_differences']} length {length} "
        f"preempted {row['preemptions']} cached {row['cached_tokens']} {row['seconds']} s (start {row['ready_s']} s)"
    )


if __name__ == "__main__":
    main()
