"""What is kept of measure_vllm.py's runs: crossovers and cells, whether two runs found the same, and a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from draftwise.core import Comparison, Crossover, Decision, Interval
from draftwise.reporting.conditions import describe_unmeasured
from draftwise.reporting.sentences import describe_decision

__all__ = ["as_rows", "as_table", "compare_crossovers", "merged", "write"]

NO_END = "inf"


def as_rows(decision: Decision) -> dict[str, Any]:
    """Return what is kept of a decision beside its whole summary."""
    return {
        "sentence": describe_decision(decision),
        "unmeasured": describe_unmeasured(decision),
        "crossovers": [_crossover(each) for each in decision.crossovers],
        "cells": [_cell(each) for each in decision.comparisons],
    }


def _crossover(each: Crossover) -> dict[str, Any]:
    row = {name: getattr(each, name) for name in ("candidate", "value", "low", "high", "adopt_below")}
    return {name: _rounded(value) for name, value in row.items()}


def _cell(each: Comparison) -> dict[str, Any]:
    ratio, length = each.throughput or each.speedup, each.counters.spec.acceptance_length
    row = {"candidate": each.candidate, "condition": each.condition.label, "verdict": str(each.verdict)}
    row |= {"passes": len(each.repetitions), "acceptance_length": length}
    row |= {"speedup": each.speedup.value, "speedup_low": each.speedup.low, "speedup_high": each.speedup.high}
    row |= {"throughput": ratio.value, "throughput_low": ratio.low, "throughput_high": ratio.high}
    row |= {"ttft": each.ttft and each.ttft.value}
    return {name: _rounded(value) for name, value in row.items()}


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) and math.isfinite(value) else value


def merged(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return results as one, with the verdict on the first two runs: did each find the crossovers of the other?"""
    runs = [run for result in results for run in result["runs"]]
    found = [run["crossovers"] for run in runs if "crossovers" in run]
    again = list(compare_crossovers(found[0], found[1])) if len(found) > 1 else []
    loaded = list({json.dumps(each): each for result in results for each in result.get("loaded", ())}.values())
    return {"about": results[0]["about"], "found_again": again, "loaded": loaded, "runs": runs}


def write(path: Path, content: dict[str, Any], *, hide: str = "") -> None:
    """Write a result; infinity becomes a text, and the folder of the runs a name."""
    text = json.dumps(content, indent=1, default=str).replace("Infinity", f'"{NO_END}"')
    path.write_text((text.replace(hide, "RUNS") if hide else text) + "\n")


def compare_crossovers(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield, for each candidate of both runs, whether each run's crossover lies in the other's interval."""
    for one in first:
        for other in second:
            if one["candidate"] == other["candidate"]:
                yield {
                    "candidate": one["candidate"],
                    "first": [one[name] for name in ("low", "value", "high")],
                    "second": [other[name] for name in ("low", "value", "high")],
                    "second_in_first": _lies_in(other, one),
                    "first_in_second": _lies_in(one, other),
                }


def _lies_in(found: dict[str, Any], interval: dict[str, Any]) -> bool:
    """Whether a crossover lies in an interval; one beyond the largest load only in an interval without an end."""
    ends = (NO_END, math.inf)
    low, high = interval["low"], math.inf if interval["high"] in ends else interval["high"]
    if found["value"] is None:
        beyond = found["high"] in ends
        return high == math.inf if beyond else interval["value"] is None and high < math.inf
    return bool(low <= found["value"] <= high)


def as_table(content: dict[str, Any]) -> str:
    """Return the speed-ups of all runs and the crossovers as Markdown."""
    lines = []
    for run in content["runs"]:
        labels = list(dict.fromkeys(cell["condition"] for cell in run.get("cells", ())))
        labels.sort(key=lambda label: int("".join(filter(str.isdigit, label)) or 0))
        lines += ["", f"seed {run['seed']}: {run.get('sentence', 'nothing measured')}", ""]
        lines += [f"| candidate | {' | '.join(labels)} | crossover |", "|---" * (len(labels) + 2) + "|"]
        crossovers = {each["candidate"]: "{low}..{value}..{high}".format(**each) for each in run.get("crossovers", ())}
        for candidate in dict.fromkeys(cell["candidate"] for cell in run.get("cells", ())):
            cells = {cell["condition"]: cell for cell in run["cells"] if cell["candidate"] == candidate}
            shown = [_shown(cells.get(label)) for label in labels]
            lines.append(f"| {candidate} | {' | '.join(shown)} | {crossovers.get(candidate, '-')} |")
    return "\n".join([*lines, "", *(json.dumps(each) for each in content.get("found_again", ()))])


def _shown(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "-"
    value, low, high = (float(cell[key]) for key in ("speedup", "speedup_low", "speedup_high"))
    return f"{value:.2f} ({Interval(value=value, low=low, high=high).span}) {cell['verdict']}"
