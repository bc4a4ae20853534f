"""Times dense replays with a model: 1,000 requests with prompts of 1,000 tokens and answers of 300.

    python benchmarks/h200/dense_replay.py --out benchmarks/h200/results/dense_replay.json

Target and drafter have the shapes of shapes.py and random weights, so that nothing but the time means anything. Opening
(weights, memory, kernels) is timed apart; the replay is everything from tokens to the numbers of the profile.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import date
from pathlib import Path

import torch
from cases import CASES, spec_config
from shapes import SCALES, write_folders

from draftwise.core import SpecConfig
from draftwise.engine.replay.opening import open_replayer
from draftwise.version import __version__

sys.path.append(str(Path(__file__).parents[1] / "cpu"))
from replay_speed import make_requests, time_replay


def main() -> None:
    """Time each case and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="8b")
    parser.add_argument("--cases", nargs="+", default=["eagle3-k3"], choices=list(CASES))
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--max-num-seqs", type=int, help="that are replayed together  [default: the engine's]")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folders", type=Path, default=Path("/dev/shm/draftwise-bench"))
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    scale = SCALES[args.scale]
    folders = write_folders(args.folders / args.scale, scale)
    vocabulary = scale.target["vocab_size"]
    requests = make_requests(args.requests, vocabulary)
    settings = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "device": args.device,
        "max_num_seqs": args.max_num_seqs,
    }
    about = {
        "date": date.today().isoformat(),
        "commit": args.commit,
        "draftwise": __version__,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else args.device,
        "scale": args.scale,
        "requests": len(requests),
        "tokens": sum(each.num_tokens for each in requests),
    }
    rows = []
    for name in args.cases:
        spec = SpecConfig.parse(spec_config(CASES[name], folders, synthetic=False) or {})
        longest, began = max(each.num_tokens for each in requests), time.perf_counter()
        replayer = open_replayer(
            spec, folders.target, (spec.num_speculative_tokens,), longest=longest, forced=False, settings=settings
        )
        opened = round(time.perf_counter() - began, 2)
        rows.append(time_replay(name, replayer, requests, spec.num_speculative_tokens) | {"opening_s": opened})
        print(json.dumps(rows[-1]), flush=True)
        if args.out:
            args.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
        del replayer


if __name__ == "__main__":
    main()
