"""Writes the cases and model directories of the oracle, and compares outcomes with `check`.

    python -m catalogue.oracle cases FOLDER [--seed N] [--count N]
    python -m catalogue.oracle compare FOLDER [--releases 0.32.0,0.33.0] [--platform cuda|cpu] [--out REPORT.json] [-v]

Between the two, worker.py runs in an environment with vLLM and writes FOLDER/VERSION.PLATFORM.jsonl; see README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from catalogue.oracle.cases import generate, read_guides
from catalogue.oracle.compare import compare, in_folder, read_lines, report_of
from catalogue.oracle.models import write_models

SEED, COUNT = 20260, 2400
GUIDES = Path(__file__).with_name("guides.jsonl")
INSTALLED = "0.32.0"
"""The release that was installed as a whole; the others ran from their bare sources."""
THRESHOLDS = {INSTALLED: 0.99}
THRESHOLD_OF_OTHERS = 0.98


def main() -> None:
    options = read_options()
    if options.action == "cases":
        write_cases(options.folder, options.seed, options.count)
        return
    wanted = options.releases.split(",") if options.releases else None
    releases = []
    for version, platform in in_folder(options.folder):
        if (wanted is None or version in wanted) and options.platform in (None, platform):
            releases.append(compare_release(options.folder, version, platform))
            tell(releases[-1], verbose=options.verbose)
    if options.out:
        about = {"seed": options.seed, "generated_cases": options.count, "guide_examples": len(read_guides(GUIDES))}
        options.out.write_text(json.dumps(provenance() | about | {"releases": releases}, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if any(falls_short(release) for release in releases) else 0)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["cases", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--releases")
    parser.add_argument("--platform", choices=["cuda", "cpu"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("-v", "--verbose", action="store_true", help="list every disagreement with an example")
    return parser.parse_args()


def write_cases(folder: Path, seed: int, count: int) -> None:
    """Write FOLDER/models and FOLDER/cases.jsonl: generated cases, then the guides' examples."""
    write_models(folder / "models")
    cases = [*generate(seed, count), *read_guides(GUIDES)]
    (folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases), encoding="utf-8")


def compare_release(folder: Path, version: str, platform: str) -> dict[str, Any]:
    """Return the report on one outcome file."""
    outcomes = {outcome["id"]: outcome for outcome in read_lines(folder / f"{version}.{platform}.jsonl")}
    agreement = compare(read_lines(folder / "cases.jsonl"), outcomes, version, platform, folder / "models")
    return {"version": version, "platform": platform, **report_of(agreement)}


def falls_short(release: Mapping[str, Any]) -> bool:
    """Say whether a release misses its threshold, or one of the guides' examples was accepted falsely."""
    least = THRESHOLDS.get(release["version"], THRESHOLD_OF_OTHERS)
    return release["agreement"] < least or bool(release["false_accepted_guides"])


def tell(release: Mapping[str, Any], *, verbose: bool) -> None:
    """Print one release's result."""
    values = ", ".join(f"{name} {v['rate']:.4f}" for name, v in release["values"].items() if v["rate"] < 1)
    print(
        f"{release['version']:8} {release['platform']:4} {release['cases']} cases, agreement {release['agreement']:.4f},"
        f" accept/refuse {release['accept_or_refuse']:.4f}, false accepted {release['false_accepted']}"
        f" (guides: {release['false_accepted_guides'] or 'none'}); below one: {values or 'nothing'}"
    )
    for group in release["disagreements"] if verbose else ():
        print(f"  {group['cases']:4} {group['example']:12} {group['signature']}")


def provenance() -> dict[str, Any]:
    return {
        "what": "the same configurations through vLLM's own EngineArgs.create_engine_config() and through draftwise check",
        "command": "python -m catalogue.oracle compare FOLDER --out check_agreement.json",
        "agreement": "accept or refuse, and, when accepted, method, num_speculative_tokens, lookup bounds and draft TP",
        "platforms": {"cuda": "vLLM's CUDA platform with eight pretended H200", "cpu": "vLLM's CPU platform"},
        "installed": INSTALLED,
    }


if __name__ == "__main__":
    main()
