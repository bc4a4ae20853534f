"""The embedded engine's side of versus_vllm.py, and what is looked at in it alone.

    python benchmarks/h200/our_side.py rows --case eagle3-k3 --batch 1 8 --out rows.json
    python benchmarks/h200/our_side.py profile --case plain eagle3-k3 --batch 1 32 --out profile.json

`profile` says where a steady step's time goes on the device: kernels by time, how many there are, and how long nothing
runs. Weights are dummies in the shapes of shapes.py. `peer` obeys versus_vllm.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from cases import CASES
from floors import kv_bytes_for
from peer import obey
from record import machine
from shapes import SCALES, Scale, write_folders
from side import Side

from draftwise import __version__


def measure_rows(side: Side, args: argparse.Namespace, scale: Scale) -> dict[str, Any]:
    """Measure cases alone, without vLLM beside them; print each row."""
    rows = []
    output, most = args.output_tokens or scale.output_tokens, max(args.batch)
    for name in args.case:
        opened = side.open(case=name, max_num_seqs=most, kv_bytes=kv_bytes_for(CASES[name], scale, most, output))
        for batch in args.batch:
            row = side.row(batch=batch, output_tokens=output, warm_tokens=min(32, output), repeats=args.repeats)
            rows.append({"engine": "draftwise", "case": name, "batch": batch} | row | {"ready_s": opened["ready_s"]})
            print(json.dumps(rows[-1]), flush=True)
            write(args.out, {"rows": rows})
    return {"rows": rows}


def measure_profile(side: Side, args: argparse.Namespace, scale: Scale) -> dict[str, Any]:
    """Profile cases at batch sizes; print a table each."""
    from profile_steps import as_table, profile_steps

    found, most = [], max(args.batch)
    for name in args.case:
        room = scale.output_tokens
        side.open(case=name, max_num_seqs=most, kv_bytes=kv_bytes_for(CASES[name], scale, most, room))
        for batch in args.batch:
            assert side.frontend is not None
            side.row(batch=batch, output_tokens=room // 2, warm_tokens=min(32, room // 2), repeats=1)
            profile = profile_steps(side.frontend, side.new_prompts(batch), room, num_steps=args.steps)
            found.append({"case": name, "batch": batch} | profile)
            print(f"\n{name}, batch {batch}\n{as_table(profile)}", flush=True)
            write(args.out, {"profiles": found})
    return {"profiles": found}


def obey_parent(side: Side, _args: argparse.Namespace, _scale: Scale) -> dict[str, Any]:
    """Serve versus_vllm.py."""
    names = ("open", "close", "row", "first", "floor", "transformers", "about")
    obey({name: getattr(side, name) for name in names})
    return {}


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Write a result with its provenance, if there is one and it is wanted."""
    if path is None or not result:
        return
    about = machine() | {"draftwise": __version__, "torch": torch.__version__}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about | result, indent=1) + "\n")


MODES = {"rows": measure_rows, "profile": measure_profile, "peer": obey_parent}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--case", nargs="+", choices=CASES, default=["plain"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=20, help="of profile")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--output-tokens", type=int)
    parser.add_argument("--scale", choices=SCALES, default="8b")
    parser.add_argument("--folders", type=Path, default=Path("/dev/shm/draftwise-bench"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--acceptance", choices=("synthetic", "real"), default="synthetic")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    scale = SCALES[args.scale]
    drafters = () if args.mode == "peer" else {CASES[name].drafter for name in args.case}  # a peer's are there
    folders = write_folders(args.folders / args.scale, scale, drafters)
    side = Side(scale, folders, device=args.device, synthetic=args.acceptance == "synthetic")
    write(args.out, MODES[args.mode](side, args, scale))


if __name__ == "__main__":
    main()
