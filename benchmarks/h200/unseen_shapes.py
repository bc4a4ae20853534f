"""Steps of shapes that the cost model was never tuned on, foreseen from a few of them: a mixture of experts, and FP8.

    python benchmarks/h200/unseen_shapes.py --shapes moe --out unseen_shapes.json
    python benchmarks/h200/unseen_shapes.py --shapes fp8 --out unseen_shapes.json    # the rows of the other stay
    python benchmarks/h200/unseen_shapes.py --shapes moe fp8 --measure none --out unseen_shapes.json
    python benchmarks/h200/unseen_shapes.py --shapes tiny tiny-fp8 --device cpu --batches 1 2 4 --shown 1 4 --out FILE

`moe` is Qwen3-30B-A3B's shape with half of its layers, `fp8` Llama-3.1-8B's with its weights in FP8; both have random
weights and run on the embedded engine. Three batch sizes of each case are shown to the model, the others are foreseen:
plain decoding in milliseconds, speculating as the ratio to plain. Each row is written when it is there; after --seconds
no further one is begun. The last command is a rehearsal on any machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import torch
from cases import CASES
from floors import kv_bytes_for
from shapes import SCALES, Scale, write_folders
from side import Side
from step_costs import PLAIN, Result, as_calibration, predict_rest, summarize

from draftwise import __version__
from draftwise.knowledge.gpus import get_gpu

GOALS = {"median_percent": 5, "p90_percent": 15}
_LAYERS = 24
_OUTPUT = 96
_WARM, _REPEATS = 24, 2


def _shape(name: str, *, layers: int | None = None) -> Scale:
    scale = SCALES[name]
    target = scale.target if layers is None else {**scale.target, "num_hidden_layers": layers}
    return dataclasses.replace(scale, target=target, output_tokens=min(_OUTPUT, scale.output_tokens))


SHAPES = {
    "moe": _shape("moe", layers=_LAYERS),
    "fp8": _shape("8b-fp8w"),
    "tiny": _shape("tiny"),
    "tiny-fp8": _shape("tiny-fp8"),
}


def main() -> None:
    """Measure what is asked for, foresee the steps that were not shown, and write both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["moe", "fp8"])
    parser.add_argument("--measure", choices=("all", "none"), default="all", help="none: judge the rows of --out again")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[PLAIN, "eagle3-k3", "ngram-k5", "dflash-k7"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 4, 32, 2, 16, 128], help="in this order")
    parser.add_argument("--shown", type=int, nargs="+", default=[1, 8, 64], help="of --batches")
    parser.add_argument("--seconds", type=float, default=180, help="after which no row is begun")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folders", type=Path, default=Path("/dev/shm/draftwise-bench"))
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    kept = json.loads(args.out.read_text()) if args.out.exists() else {}
    found: dict[str, Any] = {"goals": GOALS, "shapes": kept.get("shapes", {})}
    for shape in args.shapes:
        if args.measure == "all":
            found["shapes"][shape] = {"about": describe(args, shape), "rows": []}
            for row in measure(args, shape):
                found["shapes"][shape]["rows"].append(row)
                write(args.out, found)
                print(json.dumps({name: row[name] for name in ("case", "batch", "ms_step")}), flush=True)
        found["shapes"][shape] |= judge(found["shapes"][shape], shape)
        write(args.out, found)
        print(shape, json.dumps(found["shapes"][shape]["summary"], indent=1))


def describe(args: argparse.Namespace, shape: str) -> dict[str, Any]:
    """Return where and how a shape is measured."""
    scale = SHAPES[shape]
    return {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "commit": args.commit,
        "versions": {"draftwise": __version__, "torch": torch.__version__},
        "device": torch.cuda.get_device_name() if args.device == "cuda" else platform.machine(),
        "settings": scale.engine,
        "layers": scale.target["num_hidden_layers"],
        "prompt_tokens": scale.prompt_tokens,
        "output_tokens": scale.output_tokens,
        "shown": args.shown,
    }


def measure(args: argparse.Namespace, shape: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a shape, in the form of versus_vllm.py, until the time is over."""
    scale = SHAPES[shape]
    folders = write_folders(args.folders / f"unseen-{shape}-{scale.target['num_hidden_layers']}", scale)
    side, most = Side(scale, folders, device=args.device), max(args.batches)
    for case in args.cases:
        if time.monotonic() - BEGAN > args.seconds:
            break
        kv_bytes = kv_bytes_for(CASES[case], scale, most, scale.output_tokens)
        opened = side.open(case=case, max_num_seqs=most, kv_bytes=kv_bytes)
        print(f"[{time.monotonic() - BEGAN:.0f} s] {case} is up after {opened['ready_s']} s", flush=True)
        for batch in args.batches:
            if time.monotonic() - BEGAN > args.seconds:
                break
            row = side.row(batch=batch, output_tokens=scale.output_tokens, warm_tokens=_WARM, repeats=_REPEATS)
            yield {"case": case, "batch": batch} | row
    side.close()
    print(f"[{time.monotonic() - BEGAN:.0f} s] {shape} ends", flush=True)


def judge(measured: dict[str, Any], shape: str) -> dict[str, Any]:
    """Return every step that was not shown beside what the model of the others says of it."""
    scale, about = SHAPES[shape], measured["about"]
    calibration = as_calibration(
        measured["rows"],
        scale,
        gpu=find_gpu(about["device"]),
        engine="draftwise",
        args=scale.engine,
        context=about["prompt_tokens"] + about["output_tokens"] / 2,
    )
    cases = [each.name for each in calibration.settings]
    results = predict_rest(calibration, dict.fromkeys(cases, about["shown"]), cases)
    parts = {"all": results, **{case: [each for each in results if each.case == case] for case in cases}}
    return {
        "summary": {name: summarize(each) for name, each in parts.items() if each},
        "foreseen": [spell(each) for each in results],
    }


def spell(result: Result) -> dict[str, Any]:
    """Return a step that was foreseen: in milliseconds if it is plain, else over a plain one."""
    return {
        "case": result.case,
        "batch": result.batch,
        "measured": round(result.measured, 4),
        "foreseen": round(result.predicted, 4),
        "is_inside_90": result.inside,
    }


def find_gpu(name: str) -> str | None:
    """Return the name of a GPU in the table; None for a processor.

    Raises:
        InvalidSetup: a GPU that is not in the table, of whose data sheet nothing is known.
    """
    return get_gpu(name).name if "NVIDIA" in name else None


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


BEGAN = time.monotonic()

if __name__ == "__main__":
    main()
