"""Are the files of `draftwise deploy` read back as what was ordered? Many drawn setups, every platform and layout.

    python benchmarks/interop/deployed_files.py --examples 500 --out benchmarks/interop/results/deployed_files.json

The suite holds the same law (`tests/support/read_back_law.py`) against a few dozen setups. Any flag of a release with
any value that its command line can carry is drawn, any speculative config and every method; a setup that a platform
cannot carry has to be refused by name and counts for nothing. The exit code is 1 when a file says something else.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter
from datetime import date
from math import ceil
from pathlib import Path
from typing import Any

import hypothesis

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.read_back_law import Case, check_law, list_cases

from draftwise import __version__

RELEASES = ("0.16.0", "0.33.0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=500, help="of each platform, spread over layouts and releases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="platforms, separated by commas")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cases = [case for case in list_cases() if args.only is None or case.to in args.only.split(",")]
    of_platform = Counter(case.to for case in cases)
    rows = [
        check(case, release, ceil(args.examples / (of_platform[case.to] * len(RELEASES))), args.seed)
        for case in cases
        for release in RELEASES
    ]
    if args.out is not None:
        args.out.write_text(json.dumps(provenance(args) | {"rows": rows}, indent=1) + "\n")
    wrong = [row for row in rows if row["fault"]]
    print(f"{len(rows)} laws, {sum(row['read_back'] for row in rows)} setups read back; broken: {len(wrong)}")
    sys.exit(bool(wrong))


def check(case: Case, release: str, examples: int, seed: int) -> dict[str, Any]:
    began, fault, read = time.monotonic(), "", 0
    try:
        read = check_law(case, release, examples=examples, seed=seed)
    except Exception as error:  # whatever breaks it, the other laws are still held
        fault = f"{type(error).__name__}: {str(error)[:500]}"
    seconds = round(time.monotonic() - began, 1)
    row = {"case": str(case), "vllm": release, "examples": examples, "read_back": read, "fault": fault}
    print(f"{row} ({seconds} s)", flush=True)
    return row


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "seed": args.seed,
        "versions": {
            "draftwise": __version__,
            "hypothesis": hypothesis.__version__,
            "python": platform.python_version(),
        },
    }


if __name__ == "__main__":
    main()
