"""Writes the oracle's cases and models, compares outcomes with `check`, and samples them for the test suite.

    python -m catalogue.oracle cases FOLDER [--seed N] [--count N] [--random-drafters N]
    python -m catalogue.oracle lines FOLDER --releases 0.32.0,0.33.0 [--seed N] [--count N] [--names] [--objects]
    python -m catalogue.oracle compare FOLDER [FOLDER ...] [--releases 0.32.0,0.33.0] [--platform cuda|cpu]
        [--out REPORT.json] [-v]
    python -m catalogue.oracle sample FOLDER --out SAMPLE.jsonl.gz [--count N]

Between the two, worker.py runs in an environment with vLLM and writes FOLDER/VERSION.PLATFORM.jsonl; see README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from catalogue.oracle.cases import generate, read_guides
from catalogue.oracle.compare import cases_of, compare, in_folder, read_lines, report_of
from catalogue.oracle.lines import generate_lines, name_models
from catalogue.oracle.models import write_models, write_names
from catalogue.oracle.random_drafters import generate_with_random_drafters, write_random_drafters
from catalogue.oracle.sample import write_sample
from draftwise.knowledge.vllm import get_release

SEED, COUNT = 20260, 2400
GUIDES = Path(__file__).with_name("guides.jsonl")
ABOUT = "about.json"
SWAPPED = "swapped"
INSTALLED = "0.32.0"
"""The release that was installed as a whole; the others ran from their bare sources."""
THRESHOLDS = {INSTALLED: 0.99}
THRESHOLD_OF_OTHERS = 0.98


def main() -> None:
    options = read_options()
    if options.action == "cases":
        write_cases(options.folders[0], options.seed, options.count, options.random_drafters)
    elif options.action == "lines":
        styles = {"names": options.names, "objects": options.objects}
        write_lines(options.folders[0], options.seed, options.count, options.releases or [], **styles)
    elif options.action == "sample":
        print(write_sample(options.folders[0], options.out, options.count), "cases")
    else:
        sys.exit(compare_all(options))


def compare_all(options: argparse.Namespace) -> int:
    """Compare every outcome file that was asked for; return the exit status."""
    sets = []
    for folder in options.folders:
        releases = []
        for version, platform in in_folder(folder):
            if version in (options.releases or [version]) and options.platform in (None, platform):
                releases.append(compare_release(folder, version, platform))
                tell(releases[-1], verbose=options.verbose)
        cases = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        sets.append({"cases": cases, "judged": date.today().isoformat(), "releases": releases})
    if options.out:
        write_report(options.out, sets)
    return int(any(falls_short(release) for entry in sets for release in entry["releases"]))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["cases", "lines", "compare", "sample"])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--random-drafters", type=int, default=0, help="draw the cases over this many random drafters")
    parser.add_argument("--names", action="store_true", help="draw published names, which only vLLM has config.json of")
    parser.add_argument("--objects", action="store_true", help="draw only flags that take JSON")
    parser.add_argument("--releases", type=lambda text: text.split(","))
    parser.add_argument("--platform", choices=["cuda", "cpu"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("-v", "--verbose", action="store_true", help="list every disagreement with an example")
    return parser.parse_args()


def write_cases(folder: Path, seed: int, count: int, random_drafters: int) -> None:
    """Write FOLDER/models and FOLDER/cases.jsonl: generated cases, then the guides' examples."""
    write_models(folder / "models")
    if random_drafters:
        names = write_random_drafters(folder / "models", seed, random_drafters)
        cases = list(generate_with_random_drafters(seed, count, names))
    else:
        cases = [*generate(seed, count), *read_guides(GUIDES)]
    (folder / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases), encoding="utf-8")
    about = {"count": len(cases), "seed": seed, "random_drafters": random_drafters}
    (folder / ABOUT).write_text(json.dumps(about) + "\n", encoding="utf-8")


def write_lines(
    folder: Path, seed: int, count: int, releases: Sequence[str], *, names: bool = False, objects: bool = False
) -> None:
    """Write FOLDER/models, and FOLDER/VERSION.lines.jsonl for each release: whole command lines.

    With `names`, FOLDER/swapped holds the same lines and other models under the same names.
    """
    places = {folder: False, folder / SWAPPED: True} if names else {folder: False}
    for place, swapped in places.items():
        if names:
            write_names(place / "models", swapped=swapped)
        else:
            write_models(place / "models")
        for version in releases:
            cases = generate_lines(seed, count, get_release(version), objects=objects)
            lines = (json.dumps(case) + "\n" for case in (name_models(seed, cases) if names else cases))
            (place / f"{version}.lines.jsonl").write_text("".join(lines), encoding="utf-8")
        styles = {name: True for name, asked in (("names", names), ("objects", objects)) if asked}
        about = {"whole_lines": count, "seed": seed} | styles
        (place / ABOUT).write_text(json.dumps(about) + "\n", encoding="utf-8")


def compare_release(folder: Path, version: str, platform: str) -> dict[str, Any]:
    """Return the report on one outcome file; lines of names are judged where no checkpoint lies."""
    file = f"{version}.{platform}.jsonl"
    outcomes = read_outcomes(folder / file)
    cases = read_lines(cases_of(folder, version))
    if not (folder / SWAPPED).is_dir():
        agreement = compare(cases, outcomes, version, platform, folder / "models")
    else:
        swapped = read_outcomes(folder / SWAPPED / file)
        with tempfile.TemporaryDirectory() as empty:
            agreement = compare(cases, outcomes, version, platform, Path(empty), swapped=swapped)
    return {"version": version, "platform": platform, **report_of(agreement)}


def read_outcomes(path: Path) -> dict[str, dict[str, Any]]:
    return {outcome["id"]: outcome for outcome in read_lines(path)}


def write_report(path: Path, sets: list[dict[str, Any]]) -> None:
    """Write the report, a line for each release; sets of the report before that were not compared stay in it."""
    kept = json.loads(path.read_text(encoding="utf-8"))["sets"] if path.exists() else []
    compared = [entry["cases"] for entry in sets]
    rows = []
    for entry in [*(each for each in kept if each["cases"] not in compared), *sets]:
        releases = ",\n    ".join(json.dumps(release) for release in entry["releases"])
        about = json.dumps({key: entry[key] for key in ("cases", "judged")}).removesuffix("}")
        rows.append(f'  {about}, "releases": [\n    {releases}]}}')
    head = json.dumps(provenance(), indent=1).removesuffix("\n}")
    path.write_text(head + ',\n "sets": [\n' + ",\n".join(rows) + "\n ]\n}\n", encoding="utf-8")


def falls_short(release: Mapping[str, Any]) -> bool:
    """Say whether a release misses its threshold, or one of the guides' examples was accepted falsely."""
    least = THRESHOLDS.get(release["version"], THRESHOLD_OF_OTHERS)
    return release["agreement"] < least or bool(release["false_accepted_guides"])


def tell(release: Mapping[str, Any], *, verbose: bool) -> None:
    """Print one release's result."""
    values = ", ".join(f"{name} {equal}/{of}" for name, (equal, of) in release["values"].items() if equal < of)
    print(
        f"{release['version']:8} {release['platform']:4} {release['cases']} cases,"
        f" agreement {release['agreement']:.4f}, accept/refuse {release['accept_or_refuse']:.4f},"
        f" false accepted {release['false_accepted']} (guides: {release['false_accepted_guides'] or 'none'});"
        f" not all equal: {values or 'nothing'}"
    )
    for group in release["disagreements"] if verbose else ():
        print(f"  {group['cases']:4} {group['example']:12} {group['signature']}")


def provenance() -> dict[str, Any]:
    return {
        "what": "the same configurations through vLLM's own EngineArgs.create_engine_config() and draftwise check",
        "command": "python -m catalogue.oracle compare FOLDER ... --out check_agreement.json",
        "agreement": "accept or refuse, and, when accepted, method, num_speculative_tokens, lookup bounds and draft TP",
        "platforms": {"cuda": "vLLM's CUDA platform with eight pretended H200", "cpu": "vLLM's CPU platform"},
        "installed": INSTALLED,
        "judged": "the day of the draftwise that judged a set; sets of other days were not compared again",
    }


if __name__ == "__main__":
    main()
