"""The schedule that `draftwise schedule` chooses beside every fixed k and plain decoding, over a ramp of batch sizes.

    python benchmarks/h200/schedule_steps.py --out OUT/schedule_steps.json --commit COMMIT
    python benchmarks/h200/schedule_steps.py --out OUT --scale tiny --device cpu --ramp 1 2 4 8 --calibrated 1 2 4 8

The embedded engine with dummy weights and an EAGLE-3 head; a draft token stands with the same chance if those before it
do. Plain decoding and the largest k are timed at a few sizes, which is the calibration; the profile is the acceptance
that was set. From both come the best k and the schedule, as an operator gets them. Then each arm is timed at every size
of the ramp: steps of full batches by the wall clock, one engine after the other, in a second round in the other order.
Tokens a second are those of the acceptance that was set, so that luck in drawing does not count. The file is written
after each arm, and judged when all have rows; after --seconds no other arm is begun. The second command is a rehearsal.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from cases import CASES, Case
from floors import kv_bytes_for
from shapes import SCALES, Scale, write_folders
from side import Side
from step_costs import as_calibration
from unseen_shapes import find_gpu, write

from draftwise import __version__
from draftwise.core import Calibration
from draftwise.plan.schedule.ranges import Range, make_schedule_keys

sys.path.insert(0, str(Path(__file__).parents[1]))

from ramp import GOALS, PLAIN, SCHEDULE, advise, draw_profile, fixed, hold

BEGAN = time.monotonic()
_WARM = 24
_SMALL, _REPEATS = 16, 3
"""Batches up to this size are short to run: their median of several runs is taken, so that a hiccup does not count."""


def main() -> None:
    """Calibrate, choose, measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kmax", type=int, default=5)
    parser.add_argument("--acceptance", type=float, default=0.6, help="chance of a draft token after those before it")
    parser.add_argument("--ramp", type=int, nargs="+", default=[1, 4, 16, 64, 128, 192, 256], help="ascending")
    parser.add_argument("--calibrated", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=170, help="after which no arm is begun")
    parser.add_argument("--scale", choices=SCALES, default="8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folders", type=Path, default=Path("/dev/shm/draftwise-bench"))
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found: dict[str, Any] = {"about": describe(args), "goals": GOALS, "calibrated": [], "rows": []}
    for _ in measure(args, found):
        write(args.out, found)
    found["about"]["took_s"] = round(time.monotonic() - BEGAN)
    write(args.out, found)
    print(json.dumps(found.get("result", {})))


def describe(args: argparse.Namespace) -> dict[str, Any]:
    """Return where and how the ramp is measured."""
    return {
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "command": " ".join(["python", *sys.argv]),
        "commit": args.commit,
        "versions": {"draftwise": __version__, "torch": torch.__version__},
        "device": torch.cuda.get_device_name() if args.device == "cuda" else platform.machine(),
        "scale": args.scale,
        "acceptance": args.acceptance,
        "ramp": args.ramp,
        "prompt_tokens": args.prompt_tokens,
        "output_tokens": args.output_tokens,
        "clock": "wall clock, steps of full batches",
    }


def measure(args: argparse.Namespace, found: dict[str, Any]) -> Iterator[str]:
    """Yield each arm's name when its rows, and what they say together, are in `found`."""
    bench = Bench(args, found)
    bench.time(PLAIN, None, calibrates=True)
    yield PLAIN
    bench.time(fixed(args.kmax), make_case(args.kmax), calibrates=True)
    yield fixed(args.kmax)
    calibration = calibrate(args, bench.scale, found["calibrated"])
    profile = draw_profile(calibration, args.acceptance)
    advice = advise(profile, calibration, args.ramp)
    ranges = advice.choice.ranges
    found["chosen"] = {"ranges": ranges, "k": advice.choice.fixed_k, "gain": advice.choice.schedule_gain}
    print(json.dumps(found["chosen"]), flush=True)
    others = {fixed(k): make_case(k) for k in range(args.kmax - 1, 0, -1)}
    arms = {PLAIN: None, fixed(args.kmax): make_case(args.kmax), SCHEDULE: make_case(0, ranges), **others}
    for place in range(args.rounds):
        for name in list(arms)[2:] if place == 0 else list(arms)[:: -1 if place % 2 else 1]:
            if time.monotonic() - BEGAN > args.seconds:
                print("out of time", flush=True)
                return
            bench.time(name, arms[name], ranges=ranges if name == SCHEDULE else ())
            if rounds := list_rounds(found["rows"], arms, args.ramp):
                found["result"] = hold(advice, profile, calibration, rounds, args.ramp)
            yield name


class Bench:
    """One engine at a time, timed at batch sizes.

    Args:
        args: of the command.
        found: what the rows are added to.
    """

    def __init__(self, args: argparse.Namespace, found: dict[str, Any]) -> None:
        self._args, self._found = args, found
        sizes = {"prompt_tokens": args.prompt_tokens, "output_tokens": args.output_tokens}
        self.scale = replace(SCALES[args.scale], **sizes)
        folders = write_folders(args.folders / args.scale, self.scale)
        self._side = Side(self.scale, folders, device=args.device, acceptance=args.acceptance)

    def time(self, arm: str, case: Case | None, *, calibrates: bool = False, ranges: Sequence[Range] = ()) -> None:
        """Open an arm's engine and add its row at every size of the ramp, before it at those that calibrate.

        Args:
            arm: its name.
            case: how it decodes; None for plain.
            calibrates: whether it is one of the two that calibrate.
            ranges: its schedule; empty for a fixed k.
        """
        args, case = self._args, case or CASES[PLAIN]
        most = max(*args.ramp, *args.calibrated)
        kv_bytes = kv_bytes_for(case, self.scale, most, args.output_tokens)
        opened = self._side.open(case=case, max_num_seqs=most, kv_bytes=kv_bytes)
        for size in args.calibrated if calibrates else ():
            row = {"case": PLAIN if arm == PLAIN else f"eagle3-k{case.k}", "batch": size}
            self._found["calibrated"].append(row | self._row(size))
        for size in args.ramp:
            k = next((k for first, last, k in ranges if first <= size <= last), case.k)
            self._found["rows"].append({"arm": arm, "batch": size, "k": k} | self._row(size))
        shown = [round(row["ms_step"], 2) for row in self._found["rows"][-len(args.ramp) :]]
        print(f"[{time.monotonic() - BEGAN:.0f} s] {arm}, up in {opened['ready_s']} s: {shown} ms", flush=True)

    def _row(self, size: int) -> dict[str, Any]:
        repeats, tokens = _REPEATS if size <= _SMALL else 1, self._args.output_tokens
        return self._side.row(batch=size, output_tokens=tokens, warm_tokens=min(_WARM, tokens), repeats=repeats)


def make_case(k: int, ranges: Sequence[Range] = ()) -> Case:
    """Return the EAGLE-3 head with a fixed k, or with a schedule."""
    keys = make_schedule_keys(ranges) if ranges else {"num_speculative_tokens": k}
    return Case(spec={"method": "eagle3", **keys}, drafter="eagle3", wave=0)


def calibrate(args: argparse.Namespace, scale: Scale, rows: Sequence[dict[str, Any]]) -> Calibration:
    """Return the steps of plain decoding and of the largest k as a calibration."""
    return as_calibration(
        rows,
        scale,
        gpu=find_gpu(describe(args)["device"]),
        engine="draftwise",
        args={"max_num_seqs": max(*args.ramp, *args.calibrated)},
        context=args.prompt_tokens + args.output_tokens / 2,
        most_rows=math.inf,
    )


def list_rounds(
    rows: Sequence[dict[str, Any]], arms: Iterable[str], ramp: Sequence[int]
) -> list[dict[str, list[float]]]:
    """Return the seconds of every arm's step at each size of the ramp, of each round that is complete."""
    found = {arm: [row["ms_step"] / 1e3 for row in rows if row["arm"] == arm] for arm in arms}
    size, complete = len(ramp), min(map(len, found.values())) // len(ramp)
    return [{arm: each[size * n : size * (n + 1)] for arm, each in found.items()} for n in range(complete)]


if __name__ == "__main__":
    main()
