"""What does a step cost where a vocabulary or a width is not aligned?

    python benchmarks/h200/alignment.py --out OUT/alignment.json

Each odd shape is measured next to its neighbor of the next aligned size (`MULTIPLES`), in the same process and run:
eight layers of Llama-3.1-8B with dummy weights. `ratio` is the odd shape's ms/step over the neighbor's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from cases import CASES
from floors import kv_bytes_for
from record import machine
from shapes import SCALES, Scale, write_folders
from side import Side

from draftwise import __version__

ODD = {
    "vocab_size": (128257, 32001, 49159),
    "intermediate_size": (14340, 14377, 14400, 13696),
    "draft_vocab_size": (32001,),
}
"""Sizes of fine-tunes with a few tokens more, and multiples of 4, of nothing, of 64 and of 128."""

MULTIPLES = {"vocab_size": 64, "intermediate_size": 256, "draft_vocab_size": 64}


def make_scale(key: str, size: int) -> Scale:
    base = SCALES["8b"]
    if key == "draft_vocab_size":
        return replace(base, target=base.target | {"num_hidden_layers": 8}, draft_vocab_size=size)
    return replace(base, target=base.target | {"num_hidden_layers": 8, key: size})


def measure(scale: Scale, args: argparse.Namespace, folders: Path) -> Iterator[dict[str, Any]]:
    for case in args.case:
        side = Side(scale, write_folders(folders, scale, {CASES[case].drafter}), device=args.device)
        most = max(args.batch)
        side.open(case=case, max_num_seqs=most, kv_bytes=kv_bytes_for(CASES[case], scale, most, args.output_tokens))
        for batch in args.batch:
            row = side.row(batch=batch, output_tokens=args.output_tokens, warm_tokens=16, repeats=args.repeats)
            yield {"case": case, "batch": batch, "ms_step": row["ms_step"]}
        side.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", default=["plain", "eagle3-k3"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16, 32, 64])
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folders", type=Path, default=Path("/dev/shm/draftwise-alignment"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    about = machine() | {"draftwise": __version__, "torch": torch.__version__}
    known: dict[tuple[str, int], list[dict[str, Any]]] = {}

    def rows_of(key: str, size: int) -> list[dict[str, Any]]:
        if (key, size) not in known:
            known[key, size] = list(measure(make_scale(key, size), args, args.folders / f"{key}-{size}"))
        return known[key, size]

    found = []
    for key, sizes in ODD.items():
        for size in sizes:
            neighbor = -(-size // MULTIPLES[key]) * MULTIPLES[key]
            for odd, even in zip(rows_of(key, size), rows_of(key, neighbor), strict=True):
                ratio = round(odd["ms_step"] / even["ms_step"], 4)
                found.append(
                    {"size": key, "odd": size, "neighbor": neighbor}
                    | odd
                    | {"neighbor_ms_step": even["ms_step"], "ratio": ratio}
                )
                print(json.dumps(found[-1]), flush=True)
                args.out.write_text(json.dumps(about | {"rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
