"""A small part of the outcomes for the test suite: every kind of outcome of every release, in few cases."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from catalogue.oracle.compare import VALUES, flatten, in_folder, not_decidable, read_lines

__all__ = ["read_sample", "write_sample"]

_GIST = 90


def write_sample(folder: Path, out: Path, most: int) -> int:
    """Write at most `most` cases with the outcomes of every release and return how many there are.

    Cases are chosen greedily: next comes the one that shows most kinds of outcome that no chosen case shows. One line
    is a case with its outcomes, each with the releases that it belongs to.
    """
    cases = {case["id"]: case for case in read_lines(folder / "cases.jsonl")}
    outcomes: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for version, platform in in_folder(folder):
        for outcome in read_lines(folder / f"{version}.{platform}.jsonl"):
            if outcome["id"] in cases and not _depends_on_hub(cases[outcome["id"]], outcome, folder / "models"):
                outcomes[outcome["id"]][f"{version} {platform}"] = compact(outcome)
    chosen = list(_choose(outcomes, most))
    lines = [json.dumps(_line(cases[name], outcomes[name]), separators=(",", ":")) for name in chosen]
    with gzip.GzipFile(out, "wb", mtime=0) as file:
        file.write(("\n".join(lines) + "\n").encode())
    return len(chosen)


def _depends_on_hub(case: Mapping[str, Any], outcome: Mapping[str, Any], models: Path) -> bool:
    return bool(not_decidable(case, outcome, models))


def compact(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of an outcome is compared, without its text."""
    if outcome["accepted"]:
        resolved = flatten(outcome["resolved"])
        return {"accepted": True, "resolved": {name: resolved[name] for name in VALUES if name in resolved}}
    return {"accepted": False, "stage": outcome["stage"], "exception": outcome["exception"], "gist": gist(outcome)}


def gist(outcome: Mapping[str, Any]) -> str:
    """Return what a refusal says, without numbers, addresses and the names of pydantic's machinery."""
    text = re.sub(r"^\d+ validation errors? for ", "", outcome["message"])
    text = re.sub(r"0x[0-9a-f]+", "", text)
    return re.sub(r"\d+", "N", text).replace("Value error, ", "")[:_GIST].rstrip()


def _kind(outcome: Mapping[str, Any]) -> str:
    if not outcome["accepted"]:
        return json.dumps([outcome["stage"], outcome["exception"], outcome["gist"]])
    resolved = outcome["resolved"]
    names = ("method", "draft_architectures", "runner", "async_scheduling", "quantization", "parallel_drafting")
    shown = [resolved.get(name) for name in names]
    return json.dumps(
        [*shown, resolved.get("draft_tensor_parallel_size") in (None, 1), resolved.get("prompt_lookup_min", 0)]
    )


def _choose(outcomes: Mapping[str, Mapping[str, Mapping[str, Any]]], most: int) -> Iterator[str]:
    """Yield the names of cases until every kind of outcome of every release is shown, or `most` are reached."""
    shows = {name: {(release, _kind(o)) for release, o in found.items()} for name, found in outcomes.items()}
    left = set().union(*shows.values()) if shows else set()
    guides = sorted(name for name in shows if name.startswith("guide-"))
    for _ in range(most):
        if not guides and not left:
            return
        name = guides.pop(0) if guides else max(shows, key=lambda name: len(shows[name] & left))
        left -= shows.pop(name)
        yield name


def _line(case: Mapping[str, Any], outcomes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    releases: dict[str, list[str]] = defaultdict(list)
    for release, outcome in sorted(outcomes.items()):
        releases[json.dumps(outcome)].append(release)
    kept = {key: case[key] for key in ("id", "target", "spec", "flags", "env")}
    return kept | {"outcomes": [[names, json.loads(outcome)] for outcome, names in releases.items()]}


def read_sample(path: Path) -> Iterable[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Yield (version, platform, case, outcome) for everything in a sample."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            case = json.loads(line)
            for releases, outcome in case.pop("outcomes"):
                for release in releases:
                    version, platform = release.split()
                    yield version, platform, case, {"id": case["id"], **outcome}
